"""The fair read scheduler: every blocking read, on the model of the WAL scheduler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from penstock.kernel.errors import Rejected
from penstock.log.queues import QueueLimits
from penstock.log.reads import ReadRange, coalesce, cut
from penstock.log.shell.workers import FairWorkers, WorkersStatus
from penstock.log.store import Entry, Store

OnRead = Callable[[list[Entry] | Exception], None]

_LOGGER: Final = logging.getLogger("penstock.log")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Sizes of the read scheduler."""

    workers: int = 2
    batch_max: int = 64
    limits: QueueLimits = field(default_factory=QueueLimits)

    def __post_init__(self) -> None:
        if min(self.workers, self.batch_max) < 1:
            raise Rejected(f"expected sizes of at least 1, found {self}")


class _Read(NamedTuple):
    partition: int
    wanted: ReadRange
    on_read: OnRead


class ReadScheduler:
    """Takes reads from any thread and answers each exactly once, in order within a partition.

    A read submitted when a write was answered sees that write.
    """

    def __init__(self, store: Store, options: ReadOptions | None = None) -> None:
        options = options or ReadOptions()
        self._store = store
        self._workers: FairWorkers[_Read] = FairWorkers(
            "read",
            self._read,
            workers=options.workers,
            group_partitions_max=1,
            batch_max=options.batch_max,
            limits=options.limits,
        )
        self.store_calls = 0

    def start(self) -> None:
        """Begin to read; what was submitted before is read now."""
        self._workers.start()

    def submit(self, partition: int, wanted: ReadRange, on_read: OnRead) -> None:
        """Put a read in line, or raise `Backpressure` or `Stopped`. Never blocks."""
        if wanted.max_entries < 1 or wanted.max_bytes < 0:
            raise Rejected(f"expected to read at least one entry, found {wanted}")
        self._workers.submit(_Read(partition, wanted, on_read))

    def stop(self) -> None:
        """Refuse new reads, answer all that were taken, end the threads."""
        self._workers.stop()

    def status(self) -> WorkersStatus:
        """A snapshot for people."""
        return self._workers.status()

    def _read(self, reads: list[_Read]) -> Callable[[], None]:
        """All reads of a group are of one partition."""
        partition = reads[0].partition
        answers: list[list[Entry] | Exception] = []
        for merged, positions in coalesce([read.wanted for read in reads]):
            found = self._call(partition, merged)
            answers += [self._share(partition, reads[n].wanted, found) for n in positions]
        return partial(_answer, reads, answers)

    def _share(
        self, partition: int, wanted: ReadRange, found: list[Entry] | Exception
    ) -> list[Entry] | Exception:
        """A request's own part of what a merged call found, or a call of its own."""
        taken = None if isinstance(found, Exception) else cut(found, wanted)
        return self._call(partition, wanted) if taken is None else taken

    def _call(self, partition: int, wanted: ReadRange) -> list[Entry] | Exception:
        self.store_calls += 1
        try:
            return self._store.read(
                partition,
                wanted.first_index,
                max_entries=wanted.max_entries,
                max_bytes=wanted.max_bytes,
            )
        except Exception as error:
            return error


def _answer(reads: list[_Read], answers: list[list[Entry] | Exception]) -> None:
    """Give every answer, in order; one that raises is logged and harms no other."""
    for read, answer in zip(reads, answers, strict=True):
        try:
            read.on_read(answer)
        except Exception:
            _LOGGER.exception("a read callback raised")
