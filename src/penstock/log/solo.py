"""A group of one: the state owner of a partition that is not replicated.

It takes the place that a Raft core takes in a group of three: proposals become entries, entries
become durable, and only then does a proposer hear of it. No IO here: writes go out through the
handed-in `write`, completions come back as replication work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from penstock.kernel.errors import PenstockError, Rejected
from penstock.log.executor import Work
from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    Entry,
    HardState,
    Operation,
    SetHardState,
)

ME: Final = 1

OnCommitted = Callable[[int | Exception], None]
Write = Callable[[Operation, Any, bool], None]


class Proposal(NamedTuple):
    """A payload to be made durable; answered with its index, or with why there is none.

    `on_committed` must not raise and must take only its first answer.
    """

    payload: bytes
    on_committed: OnCommitted
    sync: bool = True


class Compaction(NamedTuple):
    """Maintenance: forget every entry up to an index; answered with that index or an error.

    `on_compacted` must not raise and must take only its first answer.
    """

    upto_index: int
    on_compacted: OnCommitted


class Written(NamedTuple):
    """A write that was answered by the WAL scheduler."""

    proposals: Sequence[Proposal]
    first_index: int
    error: Exception | None = None
    compaction: Compaction | None = None


class SoloState(NamedTuple):
    """What anyone may know of the partition."""

    leader: int
    term: int
    last_index: int
    commit_index: int
    in_flight: int


class StateOwner(Protocol):
    """What an executor drives: a group of one here, a Raft core elsewhere."""

    def restored(self, bounds: Bounds, hard_state: HardState) -> None:
        """The log is readable; begin to serve."""
        ...

    def step(self, kind: Work, items: Sequence[Any]) -> None:
        """Do one piece of work, or a batch of client work, in order."""
        ...

    def refuse(self, kind: Work, items: Sequence[Any], error: Exception) -> None:
        """Answer work that will not be done. Some of it may have been answered before."""
        ...

    def state(self) -> Any:
        """What to publish."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a waiter is still to be answered."""
        ...


class SoloOwner:
    """Orders proposals, keeps the commit index, answers every proposal exactly once.

    After a failed write the entries behind it have no place to stand: they fail too, each with
    the error that the store gives. Proposals that come meanwhile wait until nothing is in flight
    and then go on from where the store really is.
    """

    def __init__(self, partition: int, write: Write, bounds: Callable[[], Bounds]) -> None:
        self._partition = partition
        self._write = write
        self._bounds = bounds
        self._term = 1
        self._next_index = 1
        self._commit_index = 0
        self._in_flight = 0
        self._recovering = False
        self._held: deque[Proposal] = deque()

    def restored(self, bounds: Bounds, hard_state: HardState) -> None:
        """Go on after the last entry; in the first life of the partition remember the term."""
        self._term = max(1, hard_state.term)
        self._next_index = bounds.last_index + 1
        self._commit_index = bounds.last_index
        if not hard_state.term:
            self._in_flight += 1
            state = SetHardState(self._partition, self._term, ME)
            self._write(state, Written((), self._next_index), True)

    def step(self, kind: Work, items: Sequence[Any]) -> None:
        """Propose a batch, or take in the answer of a write."""
        for item in items:
            if isinstance(item, Written):
                self._written(item)
            elif isinstance(item, Compaction):
                self._compact(item)
            elif not isinstance(item, Proposal):
                raise Rejected(f"expected a proposal, a compaction or a write, found {item!r}")
        if kind is Work.CLIENT:
            self._propose(items)

    def refuse(self, kind: Work, items: Sequence[Any], error: Exception) -> None:
        """Answer what will not be done, or whose outcome nobody will learn."""
        for item in items:
            if isinstance(item, Proposal):
                item.on_committed(error)
            elif isinstance(item, Compaction):
                item.on_compacted(error)
            elif isinstance(item, Written):
                self.refuse(kind, item.proposals, error)
                self.refuse(kind, [item.compaction], error)

    def state(self) -> SoloState:
        """What anyone may know."""
        return SoloState(ME, self._term, self._next_index - 1, self._commit_index, self._in_flight)

    @property
    def busy(self) -> bool:
        """Whether a proposer still waits."""
        return bool(self._in_flight or self._held)

    def _propose(self, proposals: Sequence[Proposal]) -> None:
        if self._recovering:
            self._held.extend(proposals)
            return
        run: list[Proposal] = []
        for proposal in proposals:
            if run and proposal.sync is not run[0].sync:
                self._append(run)
                run = []
            run.append(proposal)
        if run:
            self._append(run)

    def _compact(self, compaction: Compaction) -> None:
        written = Written((), self._next_index, compaction=compaction)
        try:
            self._write(Compact(self._partition, compaction.upto_index), written, True)
        except PenstockError as error:
            compaction.on_compacted(error)
            return
        self._in_flight += 1

    def _append(self, run: list[Proposal]) -> None:
        first = self._next_index
        entries = [
            Entry(first + offset, self._term, proposal.payload)
            for offset, proposal in enumerate(run)
        ]
        written = Written(run, first)
        try:
            self._write(Append(self._partition, entries), written, run[0].sync)
        except PenstockError as error:  # refused: it never reaches the log, its place stays free
            self.refuse(Work.CLIENT, run, error)
            return
        self._next_index += len(run)
        self._in_flight += 1

    def _written(self, written: Written) -> None:
        self._in_flight -= 1
        if written.error is not None:
            self._recovering = self._recovering or written.compaction is None
            self.refuse(Work.REPLICATION, [written], written.error)
        elif written.compaction is not None:
            written.compaction.on_compacted(written.compaction.upto_index)
        elif written.proposals:
            upto = written.first_index + len(written.proposals) - 1
            self._commit_index = max(self._commit_index, upto)
            for offset, proposal in enumerate(written.proposals):
                proposal.on_committed(written.first_index + offset)
        if self._recovering and not self._in_flight:
            self._recovering = False
            self._next_index = self._bounds().last_index + 1
            held = list(self._held)
            self._held.clear()
            self._propose(held)
