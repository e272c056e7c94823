"""The journal: how partitions append to the log of this machine, sync and read it.

`LocalJournal` knows nothing of other members. The server runs `raft.journal.ReplicatedJournal`,
which builds on it: each partition is a group, on a node alone a group of one. It runs on the event
loop's thread. Only the WAL (see `wal`) and the read scheduler (see `reads`) wait for the disk,
elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.kernel.clock import Clock
from penstock.kernel.errors import Rejected
from penstock.kernel.text import Seldom, and_others
from penstock.kernel.units import MIB
from penstock.log.executor import PartitionExecutor
from penstock.log.queues import QueueLimits, SchedulerStatus
from penstock.log.reads import ReadOptions, ReadRange, ReadScheduler
from penstock.log.store import Append, Bounds, LogEntry, LogStore, Operation, SetHardState, Sync
from penstock.log.wal import Wal, WalOptions

OnDurable = Callable[[Exception | None], None]

_FIRST_TERM: Final = 1
_LOGGER: Final = logging.getLogger("penstock.log")
_READ_ENTRIES: Final = 1_024
_READ_BYTES: Final = 4 * MIB
_RETRY_S: Final = 1.0
"""The delay before a failed timed sync is retried, even if nothing is written."""


@dataclass(slots=True)
class LogBacklog:
    """Bytes of all partitions that wait for the log, and bytes it has written."""

    waiting: int = 0
    finished: int = 0


class LocalJournal:
    """Appends payloads to the logs of many partitions of one store."""

    def __init__(
        self,
        store: LogStore,
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
        self._clock = clock
        self._failures_told = Seldom()
        self.backlog = LogBacklog()  # counted by the writers
        limits = QueueLimits(depth_max=1 << 20)
        options = WalOptions(group_bytes_max=16 * MIB, limits=limits)
        self.wal = Wal(store, options, loop=loop, clock=clock)
        self.counters = self.wal.counters
        # One more than usual: a backup occupies a thread for its whole duration.
        self.reads = ReadScheduler(store, ReadOptions(threads=3), loop=loop)
        self.executors = [
            PartitionExecutor(number, call_soon=loop.call_soon, now_ns=clock.monotonic_ns)
            for number in range(partitions)
        ]
        self._terms = [
            max(store.hard_state(number).term, _FIRST_TERM) for number in range(partitions)
        ]
        self._next_index = [store.bounds(number).last_index + 1 for number in range(partitions)]
        self._in_flight = 0
        self._disk_sync_s = disk_sync_ms / 1e3
        self._sync_timer: asyncio.TimerHandle | None = None
        self._unsynced: set[int] = set()  # partitions
        self.sync_round = 0  # increases when a sync begins and none is in flight
        self._syncing = False
        self._closing = False

    def start(self) -> None:
        """Start writing.

        A new log first gets the first term of each partition, which records their number. A term
        that is there is never overwritten: a node alone stays in it.
        """
        numbers = sorted(set(range(self.partitions)) - self.store.damaged().keys())
        marks = [
            SetHardState(number, _FIRST_TERM, 0)
            for number in numbers
            if not self.store.hard_state(number).term
        ]
        if marks:
            for error in self.store.write(marks, sync=True).values():
                raise error
        self.wal.start()
        self.reads.start()

    async def stop(self) -> None:
        """Write and answer everything that was accepted."""
        await self.wal.stop()
        await self.reads.stop()

    def stop_timed_syncs(self) -> None:
        """Stop timed syncs: the journal is about to stop."""
        self._closing = True
        if self._sync_timer is not None:
            self._sync_timer.cancel()

    def append(self, partition: int, payload: bytes, on_durable: OnDurable, *, sync: bool) -> int:
        """Append one entry and return its index.

        The callback runs once it is written, and synced if requested.
        """
        index = self._next_index[partition]
        operation = Append(partition, (LogEntry(index, self._terms[partition], payload),))
        synced = partition if sync else None
        began_ns = self._clock.monotonic_ns()
        self.wal.submit(operation, partial(self._appended, on_durable, synced, began_ns), sync=sync)
        self._next_index[partition] = index + 1
        self._in_flight += 1
        counters = self.counters
        counters.bytes_written += len(payload)
        if self._in_flight > counters.queue_depth_peak:
            counters.queue_depth_peak = self._in_flight
        if not sync:
            self._unsynced.add(partition)
            if self._sync_timer is None:
                self._sync_timer = self._loop.call_later(self._disk_sync_s, self._sync_by_time)
        return index

    def sync(self, on_durable: OnDurable) -> None:
        """Make everything appended so far durable.

        Each partition takes part: a store may keep them in several files. A partition whose part
        fails still has to be synced.
        """
        numbers = self._unsynced or {0}
        self._unsynced = set()
        if not self._syncing:
            self._syncing = True
            self.sync_round += 1
            on_durable = partial(self._synced, on_durable)
        left = len(numbers)
        failed: Exception | None = None

        def one_done(number: int, error: Exception | None) -> None:
            nonlocal left, failed
            left -= 1
            if error is not None:
                failed = failed or error
                self._unsynced.add(number)
            if not left:
                on_durable(failed)

        for number in numbers:
            self.submit(Sync(number), partial(one_done, number))

    def submit(self, operation: Operation, on_durable: OnDurable) -> None:
        """Apply another operation to a partition's log, durably."""
        self._in_flight += 1
        self.wal.submit(operation, partial(self._answer, on_durable, operation.partition))

    async def read(self, partition: int, wanted: ReadRange) -> list[LogEntry]:
        """Entries of a partition, from the read scheduler."""
        return await self.reads.read(partition, wanted)

    def entries(self, partition: int, first_index: int, last_index: int) -> Iterator[LogEntry]:
        """The entries of a partition in a range, read synchronously: for a restore."""
        while first_index <= last_index:
            found = self.store.read(
                partition, first_index, max_entries=_READ_ENTRIES, max_bytes=_READ_BYTES
            )
            if not found:
                return
            yield from found[: last_index + 1 - first_index]
            first_index = found[-1].index + 1

    def term(self, partition: int) -> int:
        """The term of the entries that are appended: that of the log, or the first one."""
        return self._terms[partition]

    def committed(self, partition: int) -> int:
        """The last index that is known to be committed: on a node alone, the end of the log."""
        return self.store.bounds(partition).last_index

    def last_index(self, partition: int) -> int:
        """The last index given to an entry, durable or not. Does not wait for the store."""
        return self._next_index[partition] - 1

    def bounds(self, partition: int) -> Bounds:
        """Where a partition's log begins and ends."""
        return self.store.bounds(partition)

    def failed(self, partition: int, error: Exception) -> None:
        """Note that the log refused an entry; logged at most once a second."""
        self.counters.failures += 1
        self.counters.last_failure = str(error)
        left_out = self._failures_told.take(self._clock.monotonic_ms())
        if left_out is not None:
            text = "partition %d: the log failed: %s%s"
            _LOGGER.error(text, partition, error, and_others(left_out))

    def resume(self, partition: int) -> None:
        """After a failure, with nothing of the partition in flight: continue at its log's end."""
        self._next_index[partition] = self.store.bounds(partition).last_index + 1

    @property
    def unsynced(self) -> bool:
        """Whether something written could still be lost by a power loss."""
        return bool(self._unsynced)

    @property
    def queue_depth(self) -> int:
        """Operations accepted and not yet answered."""
        return self._in_flight

    @property
    def written_by(self) -> str:
        """See `Wal.written_by`."""
        return self.wal.written_by()

    def status(self) -> SchedulerStatus:
        """A snapshot of the WAL for people."""
        return self.wal.status()

    def _synced(self, on_durable: OnDurable, error: Exception | None) -> None:
        self._syncing = False
        on_durable(error)

    def _sync_by_time(self) -> None:
        self._sync_timer = None
        if self._unsynced:
            self.sync(self._synced_by_time)

    def _synced_by_time(self, error: Exception | None) -> None:
        if error is None:
            return
        _LOGGER.error("the log could not be synced: %s", error)
        if self._sync_timer is None and not self._closing:
            self._sync_timer = self._loop.call_later(_RETRY_S, self._sync_by_time)

    def _appended(
        self, on_durable: OnDurable, synced: int | None, began_ns: int, error: Exception | None
    ) -> None:
        """Complete an append, and note how long it took."""
        self.counters.commit_ns.record(self._clock.monotonic_ns() - began_ns)
        self._answer(on_durable, synced, error)

    def _answer(self, on_durable: OnDurable, synced: int | None, error: Exception | None) -> None:
        """Complete a write; `synced` is its partition, if nothing of it remains to be synced."""
        self._in_flight -= 1
        if synced is not None and error is None and not self._in_flight:
            self._unsynced.discard(synced)
        on_durable(error)


def partitions_of(store: LogStore) -> int:
    """The number of partitions a log was created with; 0 for a new one."""
    known = store.partitions()
    return known[-1] + 1 if known else 0


def check_partitions(store: LogStore, partitions: int) -> None:
    """Refuse a number of partitions other than the one the log was created with.

    With another number, names would map to other partitions and their entries would seem lost.
    Every partition writes its term to the store before the first entry is accepted, which records
    the number; a log without entries may be from an interrupted first start, and may still grow.
    """
    made_with = partitions_of(store)
    used = any(store.bounds(partition).last_index for partition in range(made_with))
    if made_with > partitions or (used and made_with != partitions):
        raise Rejected(
            f"this log was made with {made_with} partitions and cannot be opened with {partitions}",
            expected=made_with,
            found=partitions,
        )
