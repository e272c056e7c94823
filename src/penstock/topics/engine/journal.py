"""The log under the topics: one payload for each commit of a partition, and the same after a crash.

The disk, or the write-ahead log's thread, does the waiting; all else is done on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from penstock.kernel.clock import Clock
from penstock.kernel.seldom import Seldom, and_others
from penstock.kernel.units import MIB
from penstock.log.queues import QueueLimits
from penstock.log.shell.groups import WalOptions
from penstock.log.shell.local import check_partitions
from penstock.log.shell.loopwal import LoopWal
from penstock.log.shell.workers import WorkersStatus
from penstock.log.store import Append, Bounds, Entry, Operation, SetHardState, Store, Underway
from penstock.topics.engine.gather import Gather

FSYNC_BUCKETS_US: Final = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)
_TERM: Final = 1
_LOGGER: Final = logging.getLogger("penstock.topics")
_READ_ENTRIES: Final = 1_024
_AGAIN_S: Final = 1.0
"""How long after a sync by time that failed the next one begins, though nothing is written."""


@dataclass(slots=True)
class WalCounters:
    """What the log has done since it was opened."""

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    fsync_us_total: int = 0
    last_fsync_us: int = 0
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * (len(FSYNC_BUCKETS_US) + 1))
    submit_full: int = 0
    queue_depth_peak: int = 0
    failures: int = 0
    last_failure: str | None = None


@dataclass(slots=True)
class Backlog:
    """Bytes of all partitions that were taken and wait for the log, and what it has written."""

    waiting: int = 0
    finished: int = 0


class _Measured:
    """A store whose writes are counted and timed.

    What the disk does by itself takes until the loop has time to look: that is what a writer feels.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.counters = WalCounters()
        self.stage = store.stage

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        began_ns = self._clock.monotonic_ns()
        failed = self._store.write(group, sync=sync)
        self._count(len(group), began_ns if sync else None)
        return failed

    def begin(self, group: Sequence[Operation], *, sync: bool) -> _MeasuredUnderway | None:
        began_ns = self._clock.monotonic_ns()
        underway = self._store.begin(group, sync=sync)
        if underway is None:
            return None
        return _MeasuredUnderway(underway, partial(self._count, len(group), began_ns))

    def _count(self, operations: int, sync_began_ns: int | None) -> None:
        counters = self.counters
        counters.batches += 1
        counters.frames += operations
        if sync_began_ns is not None:
            took_us = (self._clock.monotonic_ns() - sync_began_ns) // 1_000
            counters.fsyncs += 1
            counters.fsync_us_total += took_us
            counters.last_fsync_us = took_us
            counters.fsync_buckets[bisect_left(FSYNC_BUCKETS_US, took_us)] += 1


class _MeasuredUnderway:
    """A write that is counted when it is done."""

    __slots__ = ("_count", "_underway", "done_fd", "is_done")

    def __init__(self, underway: Underway, count: Callable[[], None]) -> None:
        self._underway = underway
        self._count = count
        self.done_fd = underway.done_fd
        self.is_done = underway.is_done

    def finish(self) -> Mapping[int, Exception]:
        failed = self._underway.finish()
        self._count()
        return failed


class Journal:
    """Appends payloads to the logs of many partitions. Used on the loop's thread only."""

    def __init__(
        self,
        store: Store,
        *,
        partitions: int,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        disk_sync_ms: int = 100,
    ) -> None:
        check_partitions(store, partitions)
        self.store = store
        self.partitions = partitions
        self._loop = loop
        self.gather = Gather(loop, clock)
        self._measured = _Measured(store, clock)
        self.counters = self._measured.counters
        self._clock = clock
        self._refusals = Seldom()
        self.backlog = Backlog()  # counted by those who write
        limits = QueueLimits(depth_max=1 << 20)
        options = WalOptions(group_bytes_max=16 * MIB, limits=limits)
        self._wal = LoopWal(self._measured, options, loop=loop, clock=clock)
        self._next_index = [store.bounds(number).last_index + 1 for number in range(partitions)]
        self._on_its_way = 0
        self._disk_sync_s = disk_sync_ms / 1e3
        self._sync_timer: asyncio.TimerHandle | None = None
        self._unsynced: set[int] = set()  # partitions
        self.sync_round = 0  # grows when a sync begins and none is under way
        self._syncing = False
        self._ends = False

    def tell_failure(self, partition: int, error: Exception) -> None:
        """Say that the log did not take an entry; once a second, as it may refuse thousands."""
        left_out = self._refusals.take(self._clock.monotonic_ms())
        if left_out is not None:
            text = "partition %d: the log failed: %s%s"
            _LOGGER.error(text, partition, error, and_others(left_out))

    def start(self) -> None:
        """Begin to write. A new log first gets a mark of each partition, which tells how many."""
        numbers = range(self.partitions)
        marks = [
            SetHardState(number, _TERM, 0)
            for number in numbers
            if not self.store.hard_state(number).term
        ]
        if marks:
            for error in self.store.write(marks, sync=True).values():
                raise error
        self._wal.start()

    async def stop(self) -> None:
        """Write and answer all that was taken."""
        await self._wal.stop()

    def stop_syncing(self) -> None:
        """Sync no more by time: the end is near."""
        self._ends = True
        if self._sync_timer is not None:
            self._sync_timer.cancel()

    def append(
        self, number: int, payload: bytes, done: Callable[[Exception | None], None], *, sync: bool
    ) -> None:
        """Append a payload to a partition; the answer comes once it is written, and synced."""
        index = self._next_index[number]
        operation = Append(number, (Entry(index, _TERM, payload),))
        synced = number if sync else None
        self._wal.submit(operation, partial(self._answered, done, synced), sync=sync)
        self._next_index[number] = index + 1
        self._on_its_way += 1
        counters = self.counters
        counters.bytes_written += len(payload)
        if self._on_its_way > counters.queue_depth_peak:
            counters.queue_depth_peak = self._on_its_way
        if not sync:
            self._unsynced.add(number)
            if self._sync_timer is None:
                self._sync_timer = self._loop.call_later(self._disk_sync_s, self._sync_by_time)

    def sync(self, done: Callable[[Exception | None], None]) -> None:
        """Make everything durable that was written before.

        Each partition has a part in it: a store may keep them in several files. One whose part
        fails is still to be synced.
        """
        numbers = self._unsynced or {0}
        self._unsynced = set()
        if not self._syncing:
            self._syncing = True
            self.sync_round += 1
            done = partial(self._synced, done)
        left = len(numbers)
        failed: Exception | None = None

        def one_done(number: int, error: Exception | None) -> None:
            nonlocal left, failed
            left -= 1
            if error is not None:
                failed = failed or error
                self._unsynced.add(number)
            if not left:
                done(failed)

        for number in numbers:
            self.submit(SetHardState(number, _TERM, 0), partial(one_done, number))

    def _synced(self, done: Callable[[Exception | None], None], error: Exception | None) -> None:
        self._syncing = False
        done(error)

    def submit(self, operation: Operation, done: Callable[[Exception | None], None]) -> None:
        """Do something else to a partition's log, durably."""
        self._on_its_way += 1
        self._wal.submit(operation, partial(self._answered, done, operation.partition))

    def resume(self, number: int) -> None:
        """After a failure, with nothing of the partition on its way: go on where its log ends."""
        self._next_index[number] = self.store.bounds(number).last_index + 1

    def set_commit_window(self, window_ms: float) -> None:
        """How long a group may be held open under pressure."""
        self._wal.set_commit_window(window_ms)

    def bounds(self, number: int) -> Bounds:
        """Where a partition's log begins and ends."""
        return self.store.bounds(number)

    def read(self, number: int, first_index: int) -> Iterator[Entry]:
        """Every entry of a partition from an index on."""
        while True:
            entries = self.store.read(
                number, first_index, max_entries=_READ_ENTRIES, max_bytes=4 * MIB
            )
            if not entries:
                return
            yield from entries
            first_index = entries[-1].index + 1

    @property
    def unsynced(self) -> bool:
        """Whether something was written that a loss of power could take."""
        return bool(self._unsynced)

    @property
    def queue_depth(self) -> int:
        """Appends that were taken and not answered."""
        return self._on_its_way

    @property
    def written_by(self) -> str:
        """Who writes at present, for people: see `LoopWal.written_by`."""
        return self._wal.written_by()

    def status(self) -> WorkersStatus:
        """A snapshot of the scheduler for people."""
        return self._wal.status()

    def _sync_by_time(self) -> None:
        self._sync_timer = None
        if self._unsynced:
            self.sync(self._synced_by_time)

    def _synced_by_time(self, error: Exception | None) -> None:
        if error is None:
            return
        _LOGGER.error("the log could not be synced: %s", error)
        if self._sync_timer is None and not self._ends:
            self._sync_timer = self._loop.call_later(_AGAIN_S, self._sync_by_time)

    def _answered(
        self,
        done: Callable[[Exception | None], None],
        synced: int | None,
        error: Exception | None,
    ) -> None:
        """A write is over; `synced` is its partition, if nothing of it is left to sync."""
        self._on_its_way -= 1
        if synced is not None and error is None and not self._on_its_way:
            self._unsynced.discard(synced)
        done(error)
