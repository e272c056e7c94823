"""The fair WAL scheduler: every blocking write, many partitions in one store call and one sync."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from threading import Lock
from typing import Any, Final, Protocol

from penstock.flow.governor import COMMIT_WINDOW_MS_MIN, hold_ms
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.shell import SystemClock
from penstock.kernel.units import MIB
from penstock.log.queues import Group, QueueLimits
from penstock.log.shell.workers import GO, FairWorkers, Hold, WorkersStatus
from penstock.log.store import Append, Operation

OnWritten = Callable[[Exception | None], None]
Completion = tuple[OnWritten, Exception | None]
Deliver = Callable[[Callable[[], None]], object]

_LOGGER: Final = logging.getLogger("penstock.log")
_AS_MANY_AS_COME: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Sizes of the WAL scheduler. One worker is best for a store with one shared log."""

    workers: int = 1
    group_partitions_max: int = 64
    batch_max: int = 256
    group_bytes_max: int = 8 * MIB
    limits: QueueLimits = field(default_factory=QueueLimits)

    def __post_init__(self) -> None:
        if min(self.workers, self.group_partitions_max, self.batch_max, self.group_bytes_max) < 1:
            raise Rejected(f"expected sizes of at least 1, found {self}")


_Write = tuple[int, Operation, OnWritten, bool]  # partition, what, whom to tell, sync
_Encoded = tuple[Sequence[int], Sequence[Operation], Sequence[OnWritten], bool]


class GroupStore(Protocol):
    """What is needed of a `Store` here."""

    def stage(self, group: Sequence[Operation], /) -> Sequence[Operation]:
        """See `Store.stage`."""
        ...

    def write(self, group: Sequence[Operation], /, *, sync: bool) -> Mapping[int, Exception]:
        """See `Store.write`."""
        ...


class WalScheduler:
    """Takes operations from any thread and answers each exactly once when it is durable or failed.

    Operations of one partition are written, and answered, in the order they were submitted. The
    commit window, set by the governor, only collects what is queued: a lone write never waits.
    `deliver` gets a call for each group that gives its answers, and must run these in order, as
    an event loop does; without it they run on the worker's thread. An answer that raises harms no
    other.
    """

    def __init__(
        self,
        store: GroupStore,
        options: WalOptions | None = None,
        *,
        deliver: Deliver | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options or WalOptions()
        if deliver is not None and options.workers != 1:
            raise Rejected(f"expected one worker where answers are delivered, found {options}")
        self._store = store
        self._clock = clock or SystemClock()
        self._group_bytes_max = options.group_bytes_max
        self._window_ms = COMMIT_WINDOW_MS_MIN
        self._last_began_ns = -(10**12)
        self._workers: FairWorkers[_Write] = FairWorkers(
            "wal",
            self._write,
            workers=options.workers,
            group_partitions_max=options.group_partitions_max,
            batch_max=options.batch_max,
            limits=options.limits,
            hold=self._hold,
            encode=self._encode,
            deliver=deliver,
        )

    def start(self) -> None:
        """Begin to write; what was submitted before is written now."""
        self._workers.start()

    def submit(
        self,
        operation: Operation,
        on_written: OnWritten,
        *,
        sync: bool = True,
        finishing: bool = False,
    ) -> None:
        """Put an operation in line. Never blocks.

        `Backpressure` or `Stopped` if it is refused; then it never reaches the store. `finishing`
        is for what completes accepted work (a commit marker): the limits do not apply to it.
        """
        self._workers.submit((operation[0], operation, on_written, sync), finishing)

    def write(self, operation: Operation, *, sync: bool = True, finishing: bool = False) -> None:
        """Write an operation and wait until it is done; raises what `submit` or the store raise.

        The waiting thread does the work itself if nobody else has any, so that a lone writer pays
        for its write and its sync and for hardly anything else. Of several the first does, and the
        worker takes what the others bring meanwhile as one group.
        """
        group = self._workers.take_alone(operation[0], finishing)
        if group is not None:
            failed = self._write_alone(group, operation, sync)
        else:
            failed = self._wait(operation, sync, finishing)
        if failed is not None:
            raise failed

    def set_commit_window(self, window_ms: float) -> None:
        """How long a group may be held open under pressure; the governor's to set."""
        self._window_ms = window_ms

    def stop(self) -> None:
        """Refuse new operations, write all that were taken, end the threads."""
        self._workers.stop()

    def status(self) -> WorkersStatus:
        """A snapshot for people."""
        return self._workers.status()

    def depth_of(self, partition: int) -> int:
        """Operations of a partition in line or being written."""
        return self._workers.depth_of(partition)

    def _write_alone(self, group: Group[Any], operation: Operation, sync: bool) -> Exception | None:
        try:
            self._last_began_ns = self._clock.monotonic_ns()
            return self._call_store([operation[0]], [operation], sync=sync).get(operation[0])
        finally:
            self._workers.finish_alone(group)

    def _wait(self, operation: Operation, sync: bool, finishing: bool) -> Exception | None:
        outcome: list[Exception | None] = []
        done = Lock()
        done.acquire()

        def written(error: Exception | None) -> None:
            outcome.append(error)
            done.release()

        self.submit(operation, written, sync=sync, finishing=finishing)
        done.acquire()
        return outcome[0]

    def _hold(self, queued: int) -> Hold:
        if queued <= 1 or self._window_ms <= COMMIT_WINDOW_MS_MIN:
            return GO
        since_ms = (self._clock.monotonic_ns() - self._last_began_ns) / 1e6
        span_ms = hold_ms(self._window_ms, queued=queued, since_last_ms=since_ms)
        if not span_ms:
            return GO
        return Hold(span_ms / 1e3, _AS_MANY_AS_COME)

    def _encode(self, work: list[_Write]) -> _Encoded | None:
        """A group as the store will take it; None if it is for several calls."""
        partitions, operations, tell, syncs = zip(*work, strict=True)
        staged: Sequence[Operation] = operations
        try:
            sizes = [
                len(op[1][0][2]) if type(op) is Append and len(op[1]) == 1 else _size(op)
                for op in operations
            ]
            if sum(sizes) > self._group_bytes_max:
                return None
            staged = self._store.stage(operations)
        except Exception:
            _LOGGER.debug("a group cannot be staged: its write will say why", exc_info=True)
        return partitions, staged, tell, True in syncs

    def _write(self, work: list[_Write], encoded: _Encoded | None) -> Callable[[], None]:
        self._last_began_ns = self._clock.monotonic_ns()
        encoded = encoded or self._encode(work)
        if encoded is None:
            return partial(run_completions, self._write_parts(work))
        partitions, staged, tell, sync = encoded
        failed = self._call_store(partitions, staged, sync=sync)
        return partial(_answer, tell, partitions, failed)

    def _write_parts(self, work: list[_Write]) -> list[Completion]:
        """Write a group of very many bytes in several store calls."""
        outcomes: list[Completion] = []
        part: list[_Write] = []
        room = self._group_bytes_max
        for piece in [*work, None]:
            size = _size(piece[1]) if piece else 0
            if part and (piece is None or size > room):
                partitions, operations, _, syncs = zip(*part, strict=True)
                failed = self._call_store(partitions, operations, sync=True in syncs)
                outcomes += [(written[2], failed.get(written[0])) for written in part]
                part, room = [], self._group_bytes_max
            if piece is not None:
                part.append(piece)
                room -= size
        return outcomes

    def _call_store(
        self, partitions: Sequence[int], operations: Sequence[Operation], *, sync: bool
    ) -> Mapping[int, Exception]:
        try:
            return self._store.write(operations, sync=sync)
        except Exception as error:
            _LOGGER.warning("a group of %d operations failed: %s", len(partitions), error)
            return dict.fromkeys(partitions, error)


def run_completions(completions: Iterable[Completion]) -> None:
    """Give every answer, in order; one that raises is logged and harms no other."""
    for on_written, error in completions:
        try:
            on_written(error)
        except Exception:
            _LOGGER.exception("a completion callback raised")


def _answer(
    tell: Sequence[OnWritten], partitions: Sequence[int], failed: Mapping[int, Exception]
) -> None:
    errors = map(failed.get, partitions) if failed else repeat(None, len(tell))
    run_completions(zip(tell, errors, strict=True))


def _size(operation: Operation) -> int:
    if type(operation) is not Append:
        return 0
    entries = operation[1]
    return len(entries[0][2]) if len(entries) == 1 else sum([len(e[2]) for e in entries])
