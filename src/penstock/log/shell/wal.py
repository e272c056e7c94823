"""The fair WAL scheduler: every blocking write, many partitions in one store call and one sync."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.flow.governor import COMMIT_WINDOW_MS_MIN, hold_ms
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.shell import SystemClock
from penstock.kernel.units import MIB
from penstock.log.queues import Batch, QueueLimits
from penstock.log.shell.workers import GO, FairWorkers, Hold, WorkersStatus
from penstock.log.store import Append, Operation, Store

OnWritten = Callable[[Exception | None], None]
Completion = tuple[OnWritten, Exception | None]
Deliver = Callable[[list[Completion]], None]

_LOGGER: Final = logging.getLogger("penstock.log")


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


class _Write(NamedTuple):
    operation: Operation
    on_written: OnWritten
    sync: bool


class WalScheduler:
    """Takes operations from any thread and answers each exactly once when it is durable or failed.

    Operations of one partition are written, and answered, in the order they were submitted. The
    commit window, set by the governor, only collects what is queued: a lone write never waits.
    `deliver` gets the answers of a group and must run them in order; without it they run on the
    worker's thread. An answer that raises harms no other.
    """

    def __init__(
        self,
        store: Store,
        options: WalOptions | None = None,
        *,
        deliver: Deliver | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options or WalOptions()
        self._store = store
        self._deliver = deliver or run_completions
        self._clock = clock or SystemClock()
        self._group_bytes_max = options.group_bytes_max
        self._window_ms = COMMIT_WINDOW_MS_MIN
        self._last_began_ns = -(10**12)
        self._last_size = 1
        self._workers: FairWorkers[_Write] = FairWorkers(
            "wal",
            self._write,
            workers=options.workers,
            group_partitions_max=options.group_partitions_max,
            batch_max=options.batch_max,
            limits=options.limits,
            hold=self._hold,
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
        work = _Write(operation, on_written, sync)
        self._workers.submit(operation.partition, work, finishing=finishing)

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

    def _hold(self, queued: int) -> Hold:
        if queued <= 1:
            return GO
        since_ms = (self._clock.monotonic_ns() - self._last_began_ns) / 1e6
        span_ms = hold_ms(
            self._window_ms, queued=queued, expected=self._last_size, since_last_ms=since_ms
        )
        if not span_ms:
            return GO
        small = self._window_ms <= COMMIT_WINDOW_MS_MIN
        return Hold(span_ms / 1e3, self._last_size - queued if small else 1 << 30)

    def _write(self, group: list[Batch[_Write]]) -> None:
        self._last_began_ns = self._clock.monotonic_ns()
        self._last_size = sum(len(work) for _, work in group)
        outcomes = [self._write_part(part) for part in self._parts(group)]
        self._workers.finished(group)
        for part, failed in outcomes:
            self._deliver(
                [
                    (write.on_written, failed.get(partition) if failed else None)
                    for partition, work in part
                    for write in work
                ]
            )

    def _write_part(
        self, part: list[Batch[_Write]]
    ) -> tuple[list[Batch[_Write]], Mapping[int, Exception]]:
        operations = [write.operation for _, work in part for write in work]
        sync = any(write.sync for _, work in part for write in work)
        try:
            return part, self._store.write(operations, sync=sync)
        except Exception as error:
            _LOGGER.warning("a group of %d operations failed: %s", len(operations), error)
            return part, dict.fromkeys((partition for partition, _ in part), error)

    def _parts(self, group: list[Batch[_Write]]) -> list[list[Batch[_Write]]]:
        """The group itself, or pieces of it that each keep within the bytes of one store call."""
        sizes = [[_size(write.operation) for write in work] for _, work in group]
        if sum(map(sum, sizes)) <= self._group_bytes_max:
            return [group]
        parts: list[list[Batch[_Write]]] = [[]]
        room = self._group_bytes_max
        for (partition, work), work_sizes in zip(group, sizes, strict=True):
            for write, size in zip(work, work_sizes, strict=True):
                if size > room and parts[-1]:
                    parts.append([])
                    room = self._group_bytes_max
                room -= size
                if parts[-1] and parts[-1][-1].partition == partition:
                    parts[-1][-1].work.append(write)
                else:
                    parts[-1].append(Batch(partition, [write]))
        return parts


def run_completions(completions: Sequence[Completion]) -> None:
    """Give every answer, in order; one that raises is logged and harms no other."""
    for on_written, error in completions:
        try:
            on_written(error)
        except Exception:
            _LOGGER.exception("a completion callback raised")


def _size(operation: Operation) -> int:
    if type(operation) is not Append:
        return 0
    entries = operation.entries
    return len(entries[0].payload) if len(entries) == 1 else sum(len(e.payload) for e in entries)
