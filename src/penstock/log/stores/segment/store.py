"""The segment store: one shared log for all partitions, one write and one sync per group."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from penstock.kernel.errors import PenstockError, Rejected, Unavailable
from penstock.kernel.units import MIB
from penstock.log.disk import Disk, DiskFile, Flight, take_lock
from penstock.log.store import (
    Bounds,
    Closed,
    Damaged,
    DiskFull,
    Entry,
    HardState,
    Operation,
    ReadOnly,
    Starved,
    StoreStatus,
    SyncFailed,
)
from penstock.log.stores import rules
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.catalog import Catalog
from penstock.log.stores.segment.files import Segment, SegmentFiles, write_all
from penstock.log.stores.segment.recovery import Fold, Report
from penstock.log.stores.segment.staging import Staged, TooLarge, stage

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STARVED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS)
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
            raise Rejected(f"expected segment_bytes from 1024 to 2**36, found {self.segment_bytes}")
        if not 0 <= self.reclaim_below < 1:
            raise Rejected(f"expected reclaim_below from 0 to below 1, found {self.reclaim_below}")


class _Placed(NamedTuple):
    """Bytes with their location, the last block in them, and how to undo them."""

    data: bytes
    offset: int
    sequence: int
    undo: tuple[int, int, int]


class Underway:
    """A block being written asynchronously; to be finished in the order they began."""

    __slots__ = ("_store", "flight", "placed", "staged")

    def __init__(
        self, store: SegmentStore, staged: Staged, placed: _Placed, flight: Flight
    ) -> None:
        self._store = store
        self.staged = staged
        self.placed = placed
        self.flight = flight

    @property
    def done_fd(self) -> int:
        """See `Flight`."""
        return self.flight.done_fd

    def is_done(self) -> bool:
        """Whether `finish` would return without waiting."""
        return self.flight.is_done()

    def finish(self) -> Mapping[int, Exception]:
        """What `write` would return."""
        return self._store.finish(self)


class SegmentStore:
    """Blocking storage of many partitions in one run of segment files.

    A group becomes one block, so it is durable as a whole or not at all. The index changes only
    after the block is written (and synced, if requested), so a read never sees data less durable
    than its class promises. After a sync error the store is read-only until it is reopened. On a
    full disk, groups are refused one by one until there is space.
    """

    __deletable__ = ("_current",)  # by `close`; mypyc requires it

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
        self._catalog = Catalog()
        self._damaged: dict[int, Damaged] = {}
        self._air: deque[Underway] = deque()  # while there is one, `_writing` is held
        self._waiting = 0  # threads that wait for `_writing`
        self._counting = threading.Lock()
        self._closed = False
        self._unsynced = False
        self._read_only: ReadOnly | None = None
        self._rotations = 0
        self._full: DiskFull | Starved | None = None
        self._syncs = 0
        self._store_id = b""
        self._chain = fmt.Chain(0)
        self._current: Segment
        self._offset = fmt.SEGMENT_HEADER_BYTES
        self._sealed = True
        try:
            self.recovery = self._recover()
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise Unavailable(f"cannot open {disk.path}: {error}") from error
            raise

    # Writing

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Check a group and encode its block, except for the header; see `Store.stage`."""
        try:
            return stage(group, self._catalog, bytes_max)
        except TooLarge:
            return None

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group as one block; see `Store.write`. An empty group with `sync` only syncs.

        Several threads may write at a time if no partition is in two of their groups: one checks
        and encodes its group while another waits for the disk.
        """
        staged = group if type(group) is Staged else stage(group, self._catalog)
        failed = staged.failed
        self._get_writing()
        try:
            self._check_open()
            try:
                self._check_writable()
                if staged.table:
                    self._commit(staged, sync)
                elif sync and self._unsynced:
                    self._sync()
            except PenstockError as error:
                failed.update(rules.all_failed(staged.group, error))
                return failed
            if self._catalog.garbage and not self._unsynced:
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

    def begin(self, group: Sequence[Operation], *, sync: bool) -> Underway | None:
        """Start a `write` that completes asynchronously; see `Store.begin`.

        Returns None for groups that need a new segment, must sync earlier blocks too, or will be
        refused.
        """
        if not sync or self._unsynced or self._waiting:
            return None
        if not self._air and not self._writing.acquire(blocking=False):
            return None
        underway = None
        try:
            staged = group if type(group) is Staged else stage(group, self._catalog)
            if staged.table and not (self._closed or self._read_only or self._unsynced):
                underway = self._launch(staged)
        finally:
            if not self._air:
                self._writing.release()
        return underway

    def _launch(self, staged: Staged) -> Underway | None:
        """Start writing a block, if it fits into the segment and the disk accepts it."""
        chain, offset = self._chain, self._offset
        if self._air:  # concurrent writes must not share a page
            offset = -(-offset // fmt.PAGE_BYTES) * fmt.PAGE_BYTES
        end = offset + fmt.BLOCK_HEADER_BYTES + len(staged.body)
        if self._offset == fmt.SEGMENT_HEADER_BYTES or end + fmt.SEAL_BYTES > self._current.size:
            return None
        undo = chain.sequence, chain.crc, self._offset
        block = chain.block(fmt.DATA_BLOCK, len(staged.table) // fmt.RECORD_BYTES, staged.body)
        flight = None
        try:
            flight = self._current.file.begin_synced(block, offset)
        except OSError as error:
            _LOGGER.debug("a write cannot begin: its call will say why: %s", error)
        if flight is None:
            chain.sequence, chain.crc, _ = undo
            return None
        self._offset = end
        underway = Underway(self, staged, _Placed(block, offset, chain.sequence, undo), flight)
        self._air.append(underway)
        return underway

    def finish(self, underway: Underway) -> Mapping[int, Exception]:
        """Complete a write; only for `Underway`."""
        staged, placed = underway.staged, underway.placed
        if not self._air or underway is not self._air[0]:
            raise Rejected("expected writes to be finished in the order they began")
        try:
            self._settle(placed, underway.flight.result)
            self._show(staged, placed)
            if self._catalog.garbage:
                self._collect()
        except PenstockError as error:
            staged.failed.update(rules.all_failed(staged.group, error))
        finally:
            self._air.popleft()
            if not self._air:
                self._writing.release()
        return staged.failed

    def _commit(self, staged: Staged, sync: bool) -> None:
        """Write and sync a block, then show it.

        Raises `DiskFull` or `ReadOnly`; then nothing has changed, and the next block overwrites
        what was partially written.
        """
        table, body, chain = staged.table, staged.body, self._chain
        undo = chain.sequence, chain.crc, self._offset
        try:
            prefix = self._make_room(len(body) + fmt.BLOCK_HEADER_BYTES)
        except OSError as error:
            chain.sequence, chain.crc, _ = undo
            raise self._refuse(error) from error
        offset = self._offset
        undo = (*undo[:2], offset)
        block = chain.block(fmt.DATA_BLOCK, len(table) // fmt.RECORD_BYTES, body)
        data = prefix + block if prefix else block
        placed = _Placed(data, offset, chain.sequence, undo)
        # One call for both, unless earlier blocks are still to be synced: it syncs only its own
        # bytes.
        through = None
        if sync and not self._unsynced:
            through = partial(self._current.file.pwrite_synced, data, offset)
        self._settle(placed, through, sync=sync)
        self._offset += len(data)
        self._show(staged, placed)

    def _settle(
        self, placed: _Placed, through: Callable[[], int] | None, *, sync: bool = True
    ) -> None:
        """Ensure that a block is written and synced; `through` does both at once.

        If that was partial, found no space or is not supported by the file system, a plain write
        repeats all of it.
        """
        if through is not None and self._is_through(through, placed):
            return
        try:
            write_all(self._current.file, placed.data, placed.offset)
        except OSError as error:
            if len(self._air) > 1:  # later blocks continue from this one
                raise self._sync_failed(error) from error
            self._chain.sequence, self._chain.crc, self._offset = placed.undo
            raise self._refuse(error) from error
        self._unsynced = True
        if sync:
            self._sync(placed.sequence)

    def _is_through(self, through: Callable[[], int], placed: _Placed) -> bool:
        try:
            done = through()
        except OSError as error:
            if error.errno in FULL + UNSUPPORTED and self._read_only is None:
                return False
            raise self._sync_failed(error) from error
        if self._read_only is not None:  # an earlier one failed before this one
            raise SyncFailed(f"{self._read_only}; what this group wrote may be there or not")
        if done < len(placed.data):
            return False
        self._syncs += 1
        self._chain.synced_upto = placed.sequence
        return True

    def _show(self, staged: Staged, placed: _Placed) -> None:
        """Make a block visible to reads; it is the last part of what was written."""
        table, segment = staged.table, self._current
        start = placed.offset + len(placed.data) - len(staged.body)
        self._sealed = False
        self._full = None
        show = self._catalog.show_mixed if staged.mixed else self._catalog.show
        show(table, staged.lasts, (segment, start, len(staged.body) - len(table)))
        if self._offset * 2 > segment.size:
            self._files.make_ahead(segment.number + 1, self._store_id)

    def _make_room(self, block_bytes: int) -> bytes:
        """Ensure that a block and a seal fit; return the checkpoint that begins a new segment."""
        block_bytes += fmt.SEAL_BYTES
        at_start = self._offset == fmt.SEGMENT_HEADER_BYTES
        if not at_start and self._offset + block_bytes <= self._current.size:
            return b""
        checkpoint_bytes = fmt.BLOCK_HEADER_BYTES + fmt.checkpoint_bytes(len(self._catalog.lasts))
        needed = fmt.SEGMENT_HEADER_BYTES + checkpoint_bytes + block_bytes
        if not at_start or needed > self._current.size:
            self._rotate(needed, replace=at_start)
        return self._checkpoint()

    def _checkpoint(self) -> bytes:
        states = [
            (number, bounds.boundary_index, bounds.boundary_term, bounds.last_index, *hard)
            for number, bounds, hard in self._catalog.states()
            # A checkpoint would declare a damaged partition whole, so it is left out.
            if number not in self._damaged
        ]
        return self._chain.block(fmt.CHECKPOINT_BLOCK, *fmt.checkpoint_body(states))

    def _rotate(self, bytes_min: int, *, replace: bool) -> None:
        """Continue in the next segment, or replace an empty one by a larger one.

        The previous one is synced first, so that any content of a later segment proves that all of
        the earlier ones were durable.
        """
        if replace:
            segment = self._files.make(self._current.number, self._store_id, bytes_min)
        else:
            segment = self._files.next(self._current.number + 1, self._store_id, bytes_min)
        if self._unsynced:
            try:
                self._sync()
            except SyncFailed as error:  # of earlier groups; this one is not written yet
                raise self._read_only or error from error
        with self._catalog.lock:
            self._catalog.segments[segment.number] = segment
        self._current = segment
        self._offset = fmt.SEGMENT_HEADER_BYTES
        self._rotations += 1

    def _sync(self, upto: int | None = None) -> None:
        """Make every written block durable, up to a number or all."""
        try:
            self._current.file.fdatasync()
        except OSError as error:
            raise self._sync_failed(error) from error
        self._syncs += 1
        self._chain.synced_upto = self._chain.sequence if upto is None else upto
        self._unsynced = False

    def _sync_failed(self, error: OSError) -> SyncFailed:
        ended = self._end_writing(f"sync of {self._current.name} failed: {error}")
        return SyncFailed(f"{ended}; what this group wrote may be there or not")

    def _refuse(self, error: OSError) -> ReadOnly:
        if error.errno in FULL:
            self._full = DiskFull(f"no space left for {self._disk.path}: {error}")
        elif error.errno in STARVED:
            self._full = Starved(f"no means left to write in {self._disk.path}: {error}")
        else:
            return self._end_writing(f"write in {self._current.name} failed: {error}")
        return self._full

    def _end_writing(self, reason: str) -> ReadOnly:
        self._read_only = ReadOnly(f"{self._disk.path} takes no more writes: {reason}")
        return self._read_only

    # Freeing space

    def _collect(self) -> bool:
        """Remove the oldest segments without live entries. Returns False if that must wait.

        Called when all is synced: what made their entries dead, and the checkpoint that replaces
        their other records, are durable. The exception is a segment whose first block found no
        space.
        """
        if self._offset == fmt.SEGMENT_HEADER_BYTES or self._damaged:
            return False  # the rest of a damaged partition must stay for a salvage
        self._files.remove(self._catalog.unwanted(self._current))
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
        newest = self._current.number
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
                    if self._unsynced:
                        self._sync()
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
            payload = self._payloads({oldest.number: oldest}, [position], [meta])[0]
            staged.rows.append(fmt.RECORD.pack(index, term, meta, partition, fmt.COPY))
            staged.payloads.append(payload)
            budget -= len(payload) + fmt.RECORD_BYTES
        staged.joined()
        self._commit(staged, sync=False)

    # Reading

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        """Entries from an index on; see `Store.read`. Every payload's checksum is verified."""
        if partition in self._damaged:
            raise self._damaged[partition]
        limits = max_entries, max_bytes
        positions, metas, terms, segments = self._catalog.places(partition, first_index, limits)
        payloads = self._payloads(segments, positions, metas)
        indexes = range(first_index, first_index + len(metas))
        return list(map(Entry, indexes, terms, payloads))

    def _payloads(
        self, segments: Mapping[int, Segment], positions: list[int], metas: list[int]
    ) -> list[bytes]:
        """Read payloads, adjacent ones with one call."""
        payloads: list[bytes] = []
        at = 0
        while at < len(positions):
            end, stop = positions[at], at
            while stop < len(positions) and positions[stop] == end:
                end += metas[stop] & fmt.LENGTH_MASK
                stop += 1
            segment = segments[positions[at] >> fmt.POSITION_SHIFT]
            data = self._pread(segment, positions[at], end - positions[at])
            for position, meta in zip(positions[at:stop], metas[at:stop], strict=True):
                start = position - positions[at]
                payload = data[start : start + (meta & fmt.LENGTH_MASK)]
                _check_payload(segment, position, meta, payload)
                payloads.append(payload)
            at = stop
        return payloads

    def _pread(self, segment: Segment, position: int, count: int) -> bytes:
        try:
            return segment.file.pread(count, position & fmt.OFFSET_MASK)
        except OSError as error:
            raise Unavailable(f"cannot read {segment.name}: {error}", file=segment.name) from error

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
        refusal = self._read_only or self._full
        if type(refusal) is DiskFull and self._has_room():
            refusal = None  # clients may wait for this before they write again
        partitions, entries, bytes_on_disk = self._catalog.totals()
        return StoreStatus(
            kind="segment",
            path=self._disk.path,
            partitions=partitions,
            entries=entries,
            bytes_on_disk=bytes_on_disk,
            syncs=self._syncs,
            read_only_reason=refusal.message if refusal else None,
            rotations=self._rotations,
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
                if self._read_only is None and not self._sealed:
                    self._seal()
            finally:
                self._closed = True
                # Readers keep the files of their segments open; all other references are dropped
                # here.
                self._catalog.close(_closed(self._disk))
                self._let_go()
                del self._current
        finally:
            self._writing.release()

    def _seal(self) -> None:
        """Write a block that records that all before it was synced. There is always room for it."""
        try:
            if self._unsynced:
                self._sync()
            if self._offset == fmt.SEGMENT_HEADER_BYTES:
                seal = self._checkpoint()
            else:
                seal = self._chain.block(fmt.SEAL_BLOCK, 1, fmt.SEAL_RECORD)
            if self._offset + len(seal) <= self._current.size:
                write_all(self._current.file, seal, self._offset)
                self._current.file.fdatasync()
        except (OSError, ReadOnly):
            return  # nothing acknowledged depends on the seal

    def _let_go(self) -> None:
        self._files.settle()
        if self._own_background:
            self._background.shutdown()
        self._release()

    def _check_writable(self) -> None:
        if self._read_only is not None:
            raise self._read_only

    def _check_open(self) -> None:
        if self._closed:
            raise _closed(self._disk)

    def _recover(self) -> Report:
        fold = Fold(isolates=self._options.isolate_damage)
        for number, name, file, data in self._loaded():
            fold.segment(number, name, data)
            self._catalog.segments[number] = Segment(number, file)
        fold.finish()
        if fold.tail is None or fold.store_id is None:
            self._start_empty()
            return fold.report
        self._store_id, self._chain = fold.store_id, fold.chain
        self._current = self._catalog.segments[fold.tail.number]
        self._offset = fold.tail.offset
        self._sealed = fold.sealed or not fold.report.blocks
        self._settle_end(fold)
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

    def _start_empty(self) -> None:
        self._store_id = self._options.entropy(16)
        self._chain = fmt.Chain(fmt.seed_of(self._store_id))
        self._current = self._catalog.segments[1] = self._files.make(1, self._store_id)

    def _settle_end(self, fold: Fold) -> None:
        """End the log durably where recovery ended it: the rest can never come back.

        Later segments are removed first, newest first; until the zeros are written the next open
        cuts at the same place again.
        """
        kept = fold.unused[:1] if fold.report.cut is None else []
        self._files.drop(name for _, name in reversed(fold.unused[len(kept) :]))
        for number, _ in fold.unused:
            segment = self._catalog.segments.pop(number)
            if (number, segment.name) in kept:
                self._files.adopt(segment)
        tail, file = fold.tail, self._current.file
        if tail is not None and tail.dirty:
            write_all(file, bytes(self._current.size - tail.offset), tail.offset)
        # The previous process may have died before its sync, or after a failed one: the kernel then
        # shows bytes that it will never write. From here on everything found counts as durable, so
        # blocks that no later block proves synced are written again.
        if tail is not None and tail.unproven < tail.offset:
            write_all(file, file.pread(tail.offset - tail.unproven, tail.unproven), tail.unproven)
        self._current.file.fdatasync()
        self._disk.fsync_dir()
        self._chain.synced_upto = self._chain.sequence


def _closed(disk: Disk) -> Closed:
    return Closed(f"expected {disk.path} to be open, found it closed")


def _check_payload(segment: Segment, position: int, meta: int, payload: bytes) -> None:
    if len(payload) != meta & fmt.LENGTH_MASK or crc32c(payload) != meta >> 32:
        offset = position & fmt.OFFSET_MASK
        raise Damaged(
            f"{segment.name} at offset {offset}: expected {meta & fmt.LENGTH_MASK} bytes with "
            f"checksum {meta >> 32:#010x}, found {len(payload)} with {crc32c(payload):#010x}",
            file=segment.name,
            offset=offset,
        )
