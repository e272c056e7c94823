"""The segment store: one shared log for all partitions, one write and one sync per group."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.kernel.errors import PenstockError, Rejected, Unavailable, without_traceback
from penstock.kernel.units import MIB
from penstock.log.disk import Disk, DiskFile, take_lock
from penstock.log.store import (
    Bounds,
    Damaged,
    DiskFull,
    HardState,
    LogEntry,
    Operation,
    StoreClosed,
    StoreStatus,
)
from penstock.log.stores import rules
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.catalog import SegmentCatalog
from penstock.log.stores.segment.files import Segment, SegmentFiles, read_payloads
from penstock.log.stores.segment.recovery import Fold, RecoveryReport
from penstock.log.stores.segment.staging import GroupTooLarge, Staged, stage
from penstock.log.stores.segment.tail import BlockWrite, LogTail

_RECLAIM_BYTES: Final = MIB
_LOGGER: Final = logging.getLogger("penstock.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """The layout of a segment store. Tests replace `background` and `entropy`."""

    segment_bytes: int = 64 * MIB
    reclaim_below: float = 0.25
    isolate_damage: bool = False
    """Open a log that is damaged in the middle: only the partitions that may have lost entries are
    out of service (`SegmentStore.damaged`). Otherwise such a log does not open.
    """
    background: Executor | None = None
    entropy: Callable[[int], bytes] = os.urandom

    def __post_init__(self) -> None:
        if not 1024 <= self.segment_bytes <= 1 << 36:
            raise Rejected(f"segment_bytes must be from 1024 to 2**36, not {self.segment_bytes}")
        if not 0 <= self.reclaim_below < 1:
            raise Rejected(
                f"reclaim_below must be at least 0 and below 1, not {self.reclaim_below}"
            )


class SegmentStore:
    """Blocking storage of many partitions in one run of segment files.

    A group becomes one block, so it is durable as a whole or not at all. The index changes only
    after the block is written (and synced, if requested), so a read never sees data less durable
    than its class promises. After a sync error the store is read-only until it is reopened. On a
    full disk, groups are refused one by one until there is space.
    """

    def __init__(self, disk: Disk, options: SegmentOptions | None = None) -> None:
        self._options = options or SegmentOptions()
        self._disk = disk
        self._release = take_lock(disk.path, disk.lock)
        self._own_background = self._options.background is None
        self._background = self._options.background or ThreadPoolExecutor(
            1, thread_name_prefix="segment-files"
        )
        self._files = SegmentFiles(disk, self._background, self._options.segment_bytes)
        self._writing = threading.Lock()  # one writer, and reclaim
        self._catalog = SegmentCatalog()
        self._damaged: dict[int, Damaged] = {}
        self._tail = LogTail(disk, self._files, self._catalog)
        self._air = self._tail.air  # while there is a write in it, `_writing` is held
        self._waiting = 0  # threads that wait for `_writing`
        self._counting = threading.Lock()
        self._closed = False
        try:
            self.recovery = self._recover()
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise Unavailable(f"cannot open {disk.path}: {error}") from error
            raise

    # Writing

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Check a group and encode its block, except for the header; see `LogStore.stage`."""
        try:
            return stage(group, self._catalog, bytes_max)
        except GroupTooLarge:
            return None

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group as one block; see `LogStore.write`. An empty group with `sync` only syncs.

        Several threads may write at a time if no partition is in two of their groups: one checks
        and encodes its group while another waits for the disk.
        """
        staged = group if type(group) is Staged else stage(group, self._catalog)
        failed, tail = staged.failed, self._tail
        self._get_writing()
        try:
            self._check_open()
            try:
                self._check_writable()
                if staged.table:
                    tail.write(staged, sync=sync)
                elif sync and tail.unsynced:
                    tail.sync()
            except PenstockError as error:
                failed.update(rules.all_failed(staged.group, error))
                return failed
            if self._catalog.garbage and not tail.unsynced:
                self._collect()
            return failed
        finally:
            self._writing.release()

    def _get_writing(self) -> None:
        """Take `_writing`; `begin` starts nothing while a thread waits for it."""
        if self._writing.acquire(blocking=False):
            return
        with self._counting:
            self._waiting += 1
        self._writing.acquire()
        with self._counting:
            self._waiting -= 1

    def begin(self, group: Sequence[Operation], *, sync: bool) -> BlockWrite | None:
        """Start a `write` that completes asynchronously; see `LogStore.begin`.

        Returns None for groups that need a new segment, must sync earlier blocks too, or will be
        refused.
        """
        tail = self._tail
        if not sync or tail.unsynced or self._waiting:
            return None
        if not self._air and not self._writing.acquire(blocking=False):
            return None
        underway = None
        try:
            staged = group if type(group) is Staged else stage(group, self._catalog)
            if staged.table and not (self._closed or tail.read_only or tail.unsynced):
                underway = tail.begin(staged, self.finish)
        finally:
            if not self._air:
                self._writing.release()
        return underway

    def finish(self, underway: BlockWrite) -> Mapping[int, Exception]:
        """Complete a write; only for `BlockWrite`."""
        staged = underway.staged
        if not self._air or underway is not self._air[0]:
            raise Rejected("writes must be finished in the order they began")
        try:
            self._tail.finish(underway)
            if self._catalog.garbage:
                self._collect()
        except PenstockError as error:
            staged.failed.update(rules.all_failed(staged.group, error))
        finally:
            self._air.popleft()
            if not self._air:
                self._writing.release()
        return staged.failed

    # Freeing space

    def _collect(self) -> bool:
        """Remove the oldest segments without live entries. Returns False if that must wait.

        Called when all is synced: what made their entries dead, and the checkpoint that replaces
        their other records, are durable. The exception is a segment whose first block found no
        space.
        """
        if self._tail.is_at_start or self._damaged:
            return False  # the rest of a damaged partition must stay for a salvage
        self._files.remove(self._catalog.unwanted(self._tail.segment))
        return True

    def reclaim(self) -> int:
        """Copy the live rest of mostly dead oldest segments forward and remove them.

        Without this a partition that never compacts would keep every segment since its first entry.
        Returns the bytes freed. Writes may continue between copies of one MiB. Considers only
        segments that existed when it began, so it ends.
        """
        freed = 0
        if self._damaged:
            return freed
        newest = self._tail.segment.number
        while True:
            self._get_writing()
            try:
                self._check_open()
                self._check_writable()
                oldest = self._oldest()
                share = oldest.live_bytes / oldest.size
                if oldest.number >= newest or share >= self._options.reclaim_below:
                    return freed
                if oldest.live_entries:
                    self._copy_forward(oldest)
                if not oldest.live_entries:
                    if self._tail.unsynced:
                        self._tail.sync()
                    if not self._collect():
                        return freed
                    freed += oldest.size
            finally:
                self._writing.release()

    def _oldest(self) -> Segment:
        with self._catalog.lock:
            return self._catalog.segments[min(self._catalog.segments)]

    def _copy_forward(self, oldest: Segment) -> None:
        """Copy the next MiB of a segment's entries forward, and index the copies."""
        staged = Staged(())
        staged.mixed = True
        budget = _RECLAIM_BYTES
        for partition, index, term, position, meta in self._catalog.entries_in(oldest.number):
            if budget <= 0:
                break
            payload = read_payloads({oldest.number: oldest}, [position], [meta])[0]
            staged.rows.append(fmt.RECORD.pack(index, term, meta, partition, fmt.COPY))
            staged.payloads.append(payload)
            budget -= len(payload) + fmt.RECORD_BYTES
        staged.joined()
        self._tail.write(staged, sync=False)

    # Reading

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Entries from an index on; see `LogStore.read`. Every payload's checksum is verified."""
        if partition in self._damaged:
            raise self._damaged[partition]
        limits = max_entries, max_bytes
        positions, metas, terms, segments = self._catalog.places(partition, first_index, limits)
        payloads = read_payloads(segments, positions, metas)
        indexes = range(first_index, first_index + len(metas))
        return list(map(LogEntry, indexes, terms, payloads))

    def term_at(self, partition: int, index: int) -> int:
        """The term of an entry or of the boundary."""
        return self._catalog.term(partition, index)

    def bounds(self, partition: int) -> Bounds:
        """Boundary and last entry."""
        return self._catalog.state(partition)[0]

    def hard_state(self, partition: int) -> HardState:
        """Term and vote."""
        return self._catalog.state(partition)[1]

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        return sorted(number for number, _, _ in self._catalog.states())

    def damaged(self) -> Mapping[int, Exception]:
        """The partitions that may have lost entries; see `SegmentOptions.isolate_damage`."""
        return self._damaged

    def status(self) -> StoreStatus:
        """A snapshot for people."""
        refusal = self._tail.read_only or self._tail.full
        if type(refusal) is DiskFull and self._has_room():
            refusal = None  # clients may wait for this before they write again
        partitions, entries, bytes_on_disk = self._catalog.totals()
        return StoreStatus(
            kind="segment",
            path=self._disk.path,
            partitions=partitions,
            entries=entries,
            bytes_on_disk=bytes_on_disk,
            syncs=self._tail.syncs,
            read_only_reason=refusal.message if refusal else None,
            rotations=self._tail.rotations,
        )

    def _has_room(self) -> bool:
        """Whether there is room for another segment."""
        room_bytes = self._disk.room_bytes()
        return room_bytes is not None and room_bytes >= self._options.segment_bytes

    # Opening and closing

    def close(self) -> None:
        """Seal the log so that later damage to synced blocks is detected; release the lock.

        Writes in flight should have been finished by their owner; they complete here without an
        answer.
        """
        while self._air:
            self._air[0].finish()
        self._get_writing()
        try:
            if self._closed:
                return
            try:
                self._tail.close()
            finally:
                self._closed = True
                # Readers keep the files of their segments open; all other references are dropped
                # here.
                self._catalog.close(_closed(self._disk))
                self._let_go()
        finally:
            self._writing.release()

    def _let_go(self) -> None:
        self._files.settle()
        if self._own_background:
            self._background.shutdown()
        self._release()

    def _check_writable(self) -> None:
        if self._tail.read_only is not None:
            raise without_traceback(self._tail.read_only)

    def _check_open(self) -> None:
        if self._closed:
            raise _closed(self._disk)

    def _recover(self) -> RecoveryReport:
        fold = Fold(isolates=self._options.isolate_damage)
        for number, name, file, data in self._loaded():
            fold.segment(number, name, data)
            self._catalog.segments[number] = Segment(number, file)
        fold.finish()
        if fold.tail is None or fold.store_id is None:
            self._tail.start_empty(self._options.entropy(16))
            return fold.report
        self._tail.start_after(fold)
        self._damaged = fold.damaged
        self._catalog.restore(fold.partitions)
        self._collect()
        return fold.report

    def _loaded(self) -> Iterator[tuple[int, str, DiskFile, memoryview]]:
        """Every segment with its bytes, in one buffer as long as sizes agree.

        Reading ahead in a thread was slower: the fold and the reader wait for each other.
        """
        data = memoryview(b"")
        for number, name, file in self._files.found():
            if len(data) != file.size:
                # Not a bytearray: that would be zeroed first, a tenth of the time of opening.
                data = np.empty(file.size, np.uint8).data
            file.pread_into(data, 0)
            yield number, name, file, data


def _closed(disk: Disk) -> StoreClosed:
    return StoreClosed(f"the store in {disk.path} is closed")
