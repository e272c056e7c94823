"""The fair read scheduler: runs every blocking read, one partition at a time, on a few threads.

For cold records, backups and inspection, and for followers that lag. It is driven from the event
loop's thread, which also gets the answers; a read that is submitted after a write was answered sees
that write. Adjacent entries requested by several readers are read with one store call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from penstock.kernel.errors import Rejected
from penstock.log.queues import (
    Backpressure,
    Group,
    PartitionQueues,
    QueueLimits,
    SchedulerStatus,
    Stopped,
)
from penstock.log.store import LogEntry, LogStore

T = TypeVar("T")
OnRead = Callable[[Any], None]

_LOGGER: Final = logging.getLogger("penstock.log")


class ReadRange(NamedTuple):
    """Entries from `first_index` on, at least one if any exists, within both limits."""

    first_index: int
    max_entries: int
    max_bytes: int

    @property
    def end_index(self) -> int:
        """The index after the last requested one."""
        return self.first_index + self.max_entries


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Sizes of the read scheduler."""

    threads: int = 2
    batch_max: int = 64
    limits: QueueLimits = field(default_factory=QueueLimits)

    def __post_init__(self) -> None:
        if min(self.threads, self.batch_max) < 1:
            raise Rejected(f"sizes of a read scheduler must be at least 1: {self}")


class _Read(NamedTuple):
    partition: int
    wanted: ReadRange | Callable[[], Any]  # entries of the log, or any other blocking read
    on_read: OnRead


class ReadScheduler:
    """Accepts reads and answers each exactly once, in order within a partition.

    For the loop's thread only. A partition is read by one thread at a time, with up to `batch_max`
    reads per turn; then the next partition follows.
    """

    def __init__(
        self,
        store: LogStore,
        options: ReadOptions | None = None,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._store = store
        self._options = options or ReadOptions()
        self._loop = loop
        self._queues: PartitionQueues[_Read] = PartitionQueues()
        self._depths: Counter[int] = Counter()
        self._pool: ThreadPoolExecutor | None = None
        self._idle_threads = self._options.threads
        self._running = False
        self._stopping = False
        self._drained: asyncio.Future[None] | None = None
        self._groups = 0
        self._served = 0
        self._refusals = 0
        self.store_calls = 0

    def start(self) -> None:
        """Start reading, including reads submitted before."""
        self._running = True
        self._dispatch()

    def submit(
        self, partition: int, wanted: ReadRange | Callable[[], Any], on_read: OnRead
    ) -> None:
        """Queue a read; `on_read` gets the result or the error.

        Raises `Backpressure` or `Stopped` if it is refused. `wanted` is a range of the partition's
        log, or a function that reads anything else of the partition and may wait for the disk.
        """
        if isinstance(wanted, ReadRange) and (wanted.max_entries < 1 or wanted.max_bytes < 0):
            raise Rejected(f"a read must ask for at least one entry: {wanted}")
        if self._stopping:
            raise Stopped("the read scheduler is stopping and takes no new work")
        self._check_depth(partition)
        self._depths[partition] += 1
        self._queues.put(_Read(partition, wanted, on_read))
        self._dispatch()

    async def read(self, partition: int, wanted: ReadRange) -> list[LogEntry]:
        """Wait for a range of a partition's log."""
        found: list[LogEntry] = await self.run(partition, wanted)
        return found

    async def run(self, partition: int, wanted: ReadRange | Callable[[], T]) -> Any:
        """Wait for a read of any kind."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.submit(partition, wanted, partial(resolve, future))
        return await future

    async def stop(self) -> None:
        """Refuse new reads, answer all accepted ones, end the threads."""
        self._stopping = True
        self.start()
        if self._queues.queued or not self._queues.idle:
            self._drained = self._drained or self._loop.create_future()
            await asyncio.shield(self._drained)
        if self._pool is not None:
            self._pool.shutdown()

    def status(self) -> SchedulerStatus:
        """A snapshot for people."""
        return SchedulerStatus(
            running=self._running and not self._stopping,
            queued=self._queues.queued,
            ready=self._queues.ready,
            depth=sum(self._depths.values()),
            groups=self._groups,
            served=self._served,
            refusals=self._refusals,
        )

    def _check_depth(self, partition: int) -> None:
        limits, depth = self._options.limits, self._depths[partition]
        if depth >= limits.depth_max:
            self._refusals += 1
            raise Backpressure(partition, depth, limits.depth_max)
        if limits.total_max is not None:
            depth = sum(self._depths.values())
            if depth >= limits.total_max:
                self._refusals += 1
                raise Backpressure(partition, depth, limits.total_max, overall=True)

    def _dispatch(self) -> None:
        """Give every idle thread the reads of the next partition."""
        while self._running and self._idle_threads:
            group = self._queues.take(1, self._options.batch_max)
            if not group.work:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._options.threads, thread_name_prefix="read")
            self._idle_threads -= 1
            self._pool.submit(self._serve, group)

    def _serve(self, group: Group[_Read]) -> None:
        """Runs on a thread."""
        answers = self._answers(group.work)
        self._loop.call_soon_threadsafe(self._finish, group, answers)

    def _finish(self, group: Group[_Read], answers: Sequence[Any]) -> None:
        self._idle_threads += 1
        self._groups += 1
        self._served += len(group.work)
        self._depths[group.work[0].partition] -= len(group.work)
        self._queues.finish(group)
        self._dispatch()
        for read, answer in zip(group.work, answers, strict=True):
            try:
                read.on_read(answer)
            except Exception:
                _LOGGER.exception("a read callback raised")
        if self._drained is not None and self._queues.idle and not self._drained.done():
            self._drained.set_result(None)

    def _answers(self, reads: Sequence[_Read]) -> list[Any]:
        """Read the requests, adjacent ranges with one call; runs on a thread."""
        answers: list[Any] = []
        partition = reads[0].partition
        ranges: list[ReadRange] = []
        for read in [*reads, None]:
            if read is not None and isinstance(read.wanted, ReadRange):
                ranges.append(read.wanted)
                continue
            for merged, positions in coalesce(ranges):
                found = self._call(partition, merged)
                answers += [self._share(partition, ranges[n], found) for n in positions]
            ranges = []
            if read is not None and not isinstance(read.wanted, ReadRange):
                answers.append(_guarded(read.wanted))
        return answers

    def _share(
        self, partition: int, wanted: ReadRange, found: list[LogEntry] | Exception
    ) -> list[LogEntry] | Exception:
        """A request's part of a merged result, or a separate call."""
        taken = None if isinstance(found, Exception) else cut(found, wanted)
        return self._call(partition, wanted) if taken is None else taken

    def _call(self, partition: int, wanted: ReadRange) -> list[LogEntry] | Exception:
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


def coalesce(ranges: Sequence[ReadRange]) -> list[tuple[ReadRange, list[int]]]:
    """Merge ranges; each result has the positions of the requests it serves, in order.

    Requests that start where the previous one ends, or at the same entry, become one range; each
    still gets exactly what its own limits allow (see `cut`).

    >>> shared = coalesce([ReadRange(1, 10, 99), ReadRange(11, 5, 99), ReadRange(40, 1, 99)])
    >>> [(merged.first_index, merged.max_entries, len(asked)) for merged, asked in shared]
    [(1, 15, 2), (40, 1, 1)]
    """
    merged: list[tuple[ReadRange, list[int]]] = []
    for position, wanted in enumerate(ranges):
        if merged:
            last, served = merged[-1]
            same = wanted.first_index == last.first_index
            if same or wanted.first_index == last.end_index:
                entries = max(last.end_index, wanted.end_index) - last.first_index
                size = (
                    max(last.max_bytes, wanted.max_bytes)
                    if same
                    else (last.max_bytes + wanted.max_bytes)
                )
                served.append(position)
                merged[-1] = (ReadRange(last.first_index, entries, size), served)
                continue
        merged.append((wanted, [position]))
    return merged


def cut(entries: Sequence[LogEntry], wanted: ReadRange) -> list[LogEntry] | None:
    """The part of a merged range for a request; None if the range ended too early to tell."""
    if not entries:
        return []
    skip = wanted.first_index - entries[0].index
    if skip >= len(entries):
        return None
    taken: list[LogEntry] = []
    room = wanted.max_bytes
    for entry in entries[skip : skip + wanted.max_entries]:
        room -= len(entry.payload)
        if room < 0 and taken:
            return taken
        taken.append(entry)
    ended_early = len(taken) < wanted.max_entries and room > 0
    return None if ended_early and skip else taken


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def resolve(future: asyncio.Future[T], answer: T | Exception) -> None:
    """Complete a future with a result or an error, unless its waiter has left."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
