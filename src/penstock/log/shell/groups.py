"""What both WAL schedulers do with a group: make it one store call, and answer all who wait."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple, Protocol

from penstock.flow.governor import COMMIT_WINDOW_MS_MIN, hold_ms
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.units import MIB
from penstock.log.queues import QueueLimits
from penstock.log.store import Operation, Underway
from penstock.log.stores.rules import payload_bytes

OnWritten = Callable[[Exception | None], None]
Completion = tuple[OnWritten, Exception | None]
Write = tuple[int, Operation, OnWritten, bool]  # partition, what, whom to tell, sync
Tell = Callable[[], None]

_LOGGER: Final = logging.getLogger("penstock.log")


@dataclass(frozen=True, slots=True)
class WalOptions:
    """Sizes of a WAL scheduler. One worker is best for a store with one shared log."""

    workers: int = 1
    group_partitions_max: int = 64
    batch_max: int = 256
    group_bytes_max: int = 8 * MIB
    limits: QueueLimits = field(default_factory=QueueLimits)

    def __post_init__(self) -> None:
        if min(self.workers, self.group_partitions_max, self.batch_max, self.group_bytes_max) < 1:
            raise Rejected(f"expected sizes of at least 1, found {self}")


class GroupStore(Protocol):
    """What is needed of a `Store` here."""

    def stage(self, group: Sequence[Operation], bytes_max: int, /) -> Sequence[Operation] | None:
        """See `Store.stage`."""
        ...

    def write(self, group: Sequence[Operation], /, *, sync: bool) -> Mapping[int, Exception]:
        """See `Store.write`."""
        ...

    def begin(self, group: Sequence[Operation], /, *, sync: bool) -> Underway | None:
        """See `Store.begin`."""
        ...


class Encoded(NamedTuple):
    """A group as the store takes it, column by column; `staged` is None if it is for many calls."""

    work: Sequence[Write]
    partitions: Sequence[int]
    staged: Sequence[Operation] | None
    tell: Sequence[OnWritten]
    sync: bool


def encode(work: Sequence[Write], store: GroupStore, group_bytes_max: int) -> Encoded:
    """A group as the store will take it."""
    partitions, operations, tell, syncs = zip(*work, strict=True)
    staged: Sequence[Operation] | None = operations
    try:
        staged = store.stage(operations, group_bytes_max)
    except Exception:
        _LOGGER.debug("a group cannot be staged: its write will say why", exc_info=True)
    return Encoded(work, partitions, staged, tell, True in syncs)


def write(group: Encoded, store: GroupStore, group_bytes_max: int) -> Tell:
    """Write a group and wait; returns the call that answers every piece of it."""
    _, partitions, staged, tell, sync = group
    if staged is None:
        return partial(run_completions, _write_parts(group.work, store, group_bytes_max))
    return partial(answer, tell, partitions, call_store(store, partitions, staged, sync=sync))


def _write_parts(
    work: Sequence[Write], store: GroupStore, group_bytes_max: int
) -> list[Completion]:
    """Write a group of very many bytes in several store calls."""
    outcomes: list[Completion] = []
    part: list[Write] = []
    room = group_bytes_max
    for piece in [*work, None]:
        size = payload_bytes([piece[1]]) if piece else 0
        if part and (piece is None or size > room):
            partitions, operations, _, syncs = zip(*part, strict=True)
            failed = call_store(store, partitions, operations, sync=True in syncs)
            outcomes += [(written[2], failed.get(written[0])) for written in part]
            part, room = [], group_bytes_max
        if piece is not None:
            part.append(piece)
            room -= size
    return outcomes


def call_store(
    store: GroupStore, partitions: Sequence[int], operations: Sequence[Operation], *, sync: bool
) -> Mapping[int, Exception]:
    """One call; what it raises is the answer of all of the group."""
    try:
        return store.write(operations, sync=sync)
    except Exception as error:
        return all_failed(partitions, error)


def all_failed(partitions: Sequence[int], error: Exception) -> Mapping[int, Exception]:
    """The answer of a group of which nothing was written."""
    # Its owners are told, and they tell: there may be many a second.
    _LOGGER.debug("a group of %d operations failed: %s", len(partitions), error)
    return dict.fromkeys(partitions, error)


def answer(
    tell: Sequence[OnWritten], partitions: Sequence[int], failed: Mapping[int, Exception]
) -> None:
    """Tell every submitter of a group what became of its operation."""
    errors = map(failed.get, partitions) if failed else repeat(None, len(tell))
    run_completions(zip(tell, errors, strict=True))


def run_completions(completions: Iterable[Completion]) -> None:
    """Give every answer, in order; one that raises is logged and harms no other."""
    for on_written, error in completions:
        try:
            on_written(error)
        except Exception:
            _LOGGER.exception("a completion callback raised")


class Window:
    """The commit window: how long a group is held open under pressure. A lone write never waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_began_ns = -(10**12)
        self.span_ms = COMMIT_WINDOW_MS_MIN

    def began(self) -> None:
        """A group is being written from now on."""
        self._last_began_ns = self._clock.monotonic_ns()

    def hold_s(self, queued: int) -> float:
        """How long the next group should stay open for more."""
        if queued <= 1 or self.span_ms <= COMMIT_WINDOW_MS_MIN:
            return 0.0
        since_ms = (self._clock.monotonic_ns() - self._last_began_ns) / 1e6
        return hold_ms(self.span_ms, queued=queued, since_last_ms=since_ms) / 1e3
