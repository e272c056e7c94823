"""The segment store: one shared log for all partitions, one write and one sync a group."""

from __future__ import annotations

import errno
import os
import struct
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c

from penstock.kernel.errors import PenstockError, Rejected, Unavailable
from penstock.kernel.units import MIB
from penstock.log.disk import Disk, take_lock
from penstock.log.store import (
    Append,
    Bounds,
    Closed,
    Compact,
    Damaged,
    DiskFull,
    Entry,
    HardState,
    InstallBoundary,
    Operation,
    ReadOnly,
    SetHardState,
    StoreStatus,
    Truncate,
)
from penstock.log.stores import rules
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.files import Segment, SegmentFiles, write_all
from penstock.log.stores.segment.index import PartitionIndex
from penstock.log.stores.segment.recovery import Fold, Report

FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_PARTITION: Final = PartitionIndex()
_RECLAIM_BYTES: Final = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """How a segment store is laid out. `background` and `entropy` are for tests to own."""

    segment_bytes: int = 64 * MIB
    reclaim_below: float = 0.25
    background: Executor | None = None
    entropy: Callable[[int], bytes] = os.urandom

    def __post_init__(self) -> None:
        if not 1024 <= self.segment_bytes <= 1 << 36:
            raise Rejected(f"expected segment_bytes from 1024 to 2**36, found {self.segment_bytes}")
        if not 0 <= self.reclaim_below < 1:
            raise Rejected(f"expected reclaim_below from 0 to below 1, found {self.reclaim_below}")


class SegmentStore:
    """Blocking storage of many partitions in one run of segment files.

    A group becomes one block, so it is durable whole or not at all. The index changes only after
    the block is written (and synced, if asked), so a read never sees what a crash could take back
    from its durability class. A sync error ends all writing: the store is read-only until it is
    opened again. A full disk refuses groups one by one until there is space.
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
        self._indexing = threading.Lock()  # short: never held over IO
        self._segments: dict[int, Segment] = {}
        self._partitions: dict[int, PartitionIndex] = {}
        self._closed = False
        self._garbage = False
        self._unsynced = False
        self._read_only: ReadOnly | None = None
        self._full: DiskFull | None = None
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

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group as one block; see `Store.write`. An empty group with `sync` only syncs."""
        with self._writing:
            self._check_open()
            if self._read_only is not None:
                return rules.all_failed(group, self._read_only)
            failed: dict[int, Exception] = {}
            staged = self._stage_admitted(group, failed)
            try:
                if staged.table:
                    self._show(staged, *self._commit(staged, sync))
                elif sync and self._unsynced:
                    self._sync()
            except PenstockError as error:
                failed.update(rules.all_failed(staged.group, error))
                return failed
            if self._garbage and not self._unsynced:
                self._collect()
            return failed

    def _stage_admitted(self, group: Sequence[Operation], failed: dict[int, Exception]) -> _Staged:
        """Stage a group without the partitions that ask for what cannot be."""
        while True:
            try:
                return self._stage(group)
            except _Refused as refused:
                failed[refused.partition] = refused.error
                group = [op for op in group if op.partition not in failed]

    def _stage(self, group: Sequence[Operation]) -> _Staged:
        """Check and encode a group; changes nothing."""
        # The inner loop is written out rather than divided into functions: it is what a record
        # costs, and calls would double it.
        staged = _Staged(group)
        add_row, add_payload = staged.table.append, staged.payloads.append
        add_meta = staged.metas.append
        pack, entry, checksum = fmt.RECORD.pack, fmt.ENTRY, crc32c
        known, lasts = self._partitions.get, staged.lasts
        op: Operation | None = None
        try:
            for op in group:
                if type(op) is not Append:
                    self._stage_other(op, staged)
                    continue
                partition, entries = op
                last = lasts.get(partition)
                if last is None:
                    last = known(partition, _NO_PARTITION).last_index
                for index, term, payload in entries:
                    last += 1
                    if index != last:
                        raise _Refused(op, *self._stand(op.partition, staged))
                    meta = checksum(payload) << 32 | len(payload)
                    add_meta(meta)
                    add_row(pack(index, term, meta, partition, entry))
                    add_payload(payload)
                lasts[partition] = last
        except (struct.error, TypeError, OverflowError) as error:
            assert op is not None
            raise _Refused(op, *self._stand(op.partition, staged), cause=error) from error
        return staged

    def _stage_other(self, op: Operation, staged: _Staged) -> None:
        partition = op.partition
        boundary, last = self._stand(partition, staged)
        try:
            moved = rules.admit(op, boundary, last)
        except PenstockError as error:
            raise _Refused(op, boundary, last, cause=error) from error
        row: tuple[int, int, int] | None
        match op:
            case SetHardState(_, term, vote):
                row = (fmt.HARD_STATE, vote, term)
            case Truncate(_, from_index):
                row = (fmt.TRUNCATE, from_index, 0) if from_index <= last else None
            case Compact(_, upto_index):
                row = None
                if upto_index > boundary:
                    row = (fmt.COMPACT, upto_index, self._staged_term(op, staged))
            case InstallBoundary(_, index, term):
                row = (fmt.BOUNDARY, index, term)
            case _:
                raise Rejected(f"expected an operation, found {op!r}")
        staged.boundaries[partition], staged.lasts[partition] = moved
        staged.others.append(row)
        if row is not None:
            kind, index, term = row
            staged.table.append(fmt.RECORD.pack(index, term, 0, partition, kind))

    def _stand(self, partition: int, staged: _Staged) -> tuple[int, int]:
        """Boundary and last index of a partition at this point of the group."""
        state = self._partitions.get(partition, _NO_PARTITION)
        return (
            staged.boundaries.get(partition, state.boundary_index),
            staged.lasts.get(partition, state.last_index),
        )

    def _staged_term(self, compact: Compact, staged: _Staged) -> int:
        """The term of the entry a compaction ends at, which may be part of the same group."""
        wanted = compact.upto_index
        term = None
        for op in staged.group:
            if op is compact:
                break
            if type(op) is Append and op.partition == compact.partition:
                term = next((e[1] for e in op.entries if e[0] == wanted), term)
        return self._partitions[compact.partition].term_at(wanted) if term is None else term

    def _commit(self, staged: _Staged, sync: bool) -> tuple[Segment, int]:
        """Write and sync a block and say where its payloads start.

        Raises `DiskFull` or `ReadOnly`; then nothing has changed, and what was written in part
        is written over by the next block.
        """
        body = b"".join(staged.payloads + staged.table)
        if len(body) > fmt.BLOCK_BYTES_MAX:
            raise Rejected(
                f"expected a group of at most {fmt.BLOCK_BYTES_MAX} bytes, found {len(body)}"
            )
        chain = self._chain
        undo = chain.sequence, chain.crc
        try:
            prefix = self._make_room(len(body) + fmt.BLOCK_HEADER_BYTES)
            data = chain.block(fmt.DATA_BLOCK, len(staged.table), body)
            if prefix:
                data = prefix + data
            write_all(self._current.file, data, self._offset)
        except OSError as error:
            chain.sequence, chain.crc = undo
            raise self._refuse(error) from error
        self._unsynced = True
        if sync:
            self._sync()
        segment, start = self._current, self._offset + len(prefix) + fmt.BLOCK_HEADER_BYTES
        self._offset += len(data)
        self._sealed = False
        self._full = None
        if self._offset * 2 > segment.size:
            self._files.make_ahead(segment.number + 1, self._store_id)
        return segment, start

    def _make_room(self, block_bytes: int) -> bytes:
        """See that a block and a seal fit; returns the checkpoint that begins a new segment."""
        block_bytes += fmt.SEAL_BYTES
        at_start = self._offset == fmt.SEGMENT_HEADER_BYTES
        if not at_start and self._offset + block_bytes <= self._current.size:
            return b""
        checkpoint_bytes = fmt.BLOCK_HEADER_BYTES + fmt.checkpoint_bytes(len(self._partitions))
        needed = fmt.SEGMENT_HEADER_BYTES + checkpoint_bytes + block_bytes
        if not at_start or needed > self._current.size:
            self._rotate(needed, replace=at_start)
        return self._checkpoint()

    def _checkpoint(self) -> bytes:
        states = (
            (number, p.boundary_index, p.boundary_term, p.last_index, p.term, p.vote)
            for number, p in self._partitions.items()
        )
        return self._chain.block(fmt.CHECKPOINT_BLOCK, *fmt.checkpoint_body(states))

    def _rotate(self, bytes_min: int, *, replace: bool) -> None:
        """Go on in the next segment, or in a larger one in place of one that is still empty.

        The one before is synced first, so that whatever a later segment holds proves that all of
        an earlier one was durable.
        """
        if replace:
            segment = self._files.make(self._current.number, self._store_id, bytes_min)
        else:
            segment = self._files.next(self._current.number + 1, self._store_id, bytes_min)
        if self._unsynced:
            self._sync()
        with self._indexing:
            self._segments[segment.number] = segment
        self._current = segment
        self._offset = fmt.SEGMENT_HEADER_BYTES

    def _sync(self) -> None:
        try:
            self._current.file.fdatasync()
        except OSError as error:
            raise self._end_writing(f"sync of {self._current.name} failed: {error}") from error
        self._syncs += 1
        self._chain.synced_upto = self._chain.sequence
        self._unsynced = False

    def _refuse(self, error: OSError) -> ReadOnly:
        if error.errno not in FULL:
            return self._end_writing(f"write in {self._current.name} failed: {error}")
        self._full = DiskFull(f"no space left for {self._disk.path}: {error}")
        return self._full

    def _end_writing(self, reason: str) -> ReadOnly:
        self._read_only = ReadOnly(f"{self._disk.path} takes no more writes: {reason}")
        return self._read_only

    # What a written group means for the index

    def _show(self, staged: _Staged, segment: Segment, offset: int) -> None:
        """Let reads see a group whose payloads start at an offset of a segment."""
        position = start = segment.number << fmt.POSITION_SHIFT | offset
        metas, others = iter(staged.metas), iter(staged.others)
        partitions = self._partitions
        removed = []
        with self._indexing:
            for op in staged.group:
                state = partitions.get(op[0])
                if state is None:
                    state = partitions[op[0]] = PartitionIndex()
                if type(op) is not Append:
                    removed.append(_apply_row(state, next(others)))
                    continue
                for index, term, payload in op[1]:
                    state.positions.append(position)
                    state.metas.append(next(metas))
                    position += len(payload)
                    if term != state.tail_term:
                        state.start_run(index, term)
                    state.last_index = index
            segment.live_entries += len(staged.metas)
            segment.live_bytes += position - start + fmt.RECORD_BYTES * len(staged.metas)
            for gone in removed:
                self._discount(gone)

    def _discount(self, gone: tuple[array[int], array[int]] | None) -> None:
        """Entries are no longer wanted: their segments may become free."""
        if not gone or not gone[0]:
            return
        self._garbage = True
        for number, entries, byte_count in _by_segment(*gone):
            segment = self._segments[number]
            segment.live_entries -= entries
            segment.live_bytes -= byte_count

    def _collect(self) -> None:
        """Remove the oldest segments nobody wants.

        Called when all is synced: what made their entries dead, and the checkpoint that stands
        for their other records, are durable.
        """
        self._garbage = False
        names = []
        with self._indexing:
            for number in sorted(self._segments):
                segment = self._segments[number]
                if segment.live_entries or segment is self._current:
                    break
                names.append(segment.name)
                del self._segments[number]
        self._files.remove(names)

    def reclaim(self) -> int:
        """Copy what is left of mostly dead oldest segments forward and remove them.

        Without this a partition that never compacts would keep every segment since its first
        entry. Returns the bytes given back. Writes may go on between copies of one MiB. Looks
        only at segments that were there when it began, so it ends.
        """
        freed = 0
        newest = self._current.number
        while True:
            with self._writing:
                self._check_open()
                if self._read_only is not None:
                    raise self._read_only
                oldest = self._segments[min(self._segments)]
                share = oldest.live_bytes / oldest.size
                if oldest.number >= newest or share >= self._options.reclaim_below:
                    return freed
                if oldest.live_entries:
                    self._copy_forward(oldest)
                if not oldest.live_entries:
                    if self._unsynced:
                        self._sync()
                    self._collect()
                    freed += oldest.size

    def _copy_forward(self, oldest: Segment) -> None:
        """Write the next MiB of a segment's entries again, as copies, and point to those."""
        staged = _Staged(())
        moving: list[tuple[PartitionIndex, int]] = []
        budget = _RECLAIM_BYTES
        for partition, state in self._partitions.items():
            for slot in _slots_in(state, oldest.number):
                if budget <= 0:
                    break
                meta, index = state.metas[slot], state.base + slot
                payload = self._payload(oldest, state.positions[slot], meta)
                staged.table.append(
                    fmt.RECORD.pack(index, state.term_at(index), meta, partition, fmt.COPY)
                )
                staged.payloads.append(payload)
                staged.metas.append(meta)
                moving.append((state, slot))
                budget -= len(payload) + fmt.RECORD_BYTES
        segment, offset = self._commit(staged, sync=False)
        position = segment.number << fmt.POSITION_SHIFT | offset
        with self._indexing:
            for (state, slot), meta in zip(moving, staged.metas, strict=True):
                state.positions[slot] = position
                position += meta & fmt.LENGTH_MASK
                byte_count = (meta & fmt.LENGTH_MASK) + fmt.RECORD_BYTES
                oldest.live_entries -= 1
                oldest.live_bytes -= byte_count
                segment.live_entries += 1
                segment.live_bytes += byte_count

    # Reading

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        """Entries from an index on; see `Store.read`. Every payload's checksum is checked."""
        with self._indexing:
            self._check_open()
            state = self._partitions.get(partition, _NO_PARTITION)
            rules.check_read(partition, first_index, state.boundary_index)
            count = min(max(max_entries, 1), state.last_index - first_index + 1)
            if count <= 0:
                return []
            slot = first_index - state.base
            metas = _within(state.metas, slot, count, max_bytes)
            positions = state.positions[slot : slot + len(metas)].tolist()
            terms = state.terms(first_index, len(metas))
            segments = {
                number: self._segments[number]
                for number in {position >> fmt.POSITION_SHIFT for position in positions}
            }
        payloads = self._payloads(segments, positions, metas)
        indexes = range(first_index, first_index + len(metas))
        return list(map(Entry, indexes, terms, payloads))

    def _payloads(
        self, segments: Mapping[int, Segment], positions: list[int], metas: list[int]
    ) -> list[bytes]:
        """Read payloads, those that lie back to back with one call."""
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

    def _payload(self, segment: Segment, position: int, meta: int) -> bytes:
        return self._payloads({segment.number: segment}, [position], [meta])[0]

    def _pread(self, segment: Segment, position: int, count: int) -> bytes:
        try:
            return segment.file.pread(count, position & fmt.OFFSET_MASK)
        except OSError as error:
            raise Unavailable(f"cannot read {segment.name}: {error}", file=segment.name) from error

    def term_at(self, partition: int, index: int) -> int:
        """The term of an entry or of the boundary."""
        with self._indexing:
            self._check_open()
            state = self._partitions.get(partition, _NO_PARTITION)
            rules.check_term_at(partition, index, state.bounds)
            return state.term_at(index)

    def bounds(self, partition: int) -> Bounds:
        """Boundary and last entry."""
        with self._indexing:
            self._check_open()
            return self._partitions.get(partition, _NO_PARTITION).bounds

    def hard_state(self, partition: int) -> HardState:
        """Term and vote."""
        with self._indexing:
            self._check_open()
            state = self._partitions.get(partition, _NO_PARTITION)
            return HardState(state.term, state.vote)

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        with self._indexing:
            self._check_open()
            return sorted(self._partitions)

    def status(self) -> StoreStatus:
        """A snapshot for people."""
        refusal = self._read_only or self._full
        with self._indexing:
            return StoreStatus(
                kind="segment",
                path=self._disk.path,
                partitions=len(self._partitions),
                entries=sum(state.entries for state in self._partitions.values()),
                bytes_on_disk=sum(segment.size for segment in self._segments.values()),
                syncs=self._syncs,
                read_only_reason=refusal.message if refusal else None,
            )

    # Opening and closing

    def close(self) -> None:
        """Seal what was synced so that damage to any of it will be seen; release the lock."""
        with self._writing:
            if self._closed:
                return
            if self._read_only is None and not self._sealed:
                self._seal()
            with self._indexing:
                self._closed = True
            self._let_go()

    def _seal(self) -> None:
        """One more block that says: all before me was synced. There is always room for it."""
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
        self._segments = {}
        self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"expected {self._disk.path} to be open, found it closed")

    def _recover(self) -> Report:
        fold = Fold()
        buffer = bytearray()
        for number, name, file in self._files.found():
            if len(buffer) != file.size:
                buffer = bytearray(file.size)
            file.pread_into(memoryview(buffer), 0)
            fold.segment(number, name, buffer)
            self._segments[number] = Segment(number, file)
        fold.finish()
        if fold.tail is None or fold.store_id is None:
            self._start_empty()
            return fold.report
        self._store_id, self._chain = fold.store_id, fold.chain
        self._partitions = fold.partitions
        self._current = self._segments[fold.tail.number]
        self._offset = fold.tail.offset
        self._sealed = fold.sealed or not fold.report.blocks
        self._settle_end(fold)
        self._count_live()
        self._collect()
        return fold.report

    def _start_empty(self) -> None:
        self._store_id = self._options.entropy(16)
        self._chain = fmt.Chain(fmt.seed_of(self._store_id))
        self._current = self._segments[1] = self._files.make(1, self._store_id)

    def _settle_end(self, fold: Fold) -> None:
        """End the log durably where recovery ended it: what follows can never come back.

        Later segments go first, newest first; until the zeros are written the next open cuts
        again at the same place.
        """
        kept = fold.unused[:1] if fold.report.cut is None else []
        self._files.drop(name for _, name in reversed(fold.unused[len(kept) :]))
        for number, _ in fold.unused:
            segment = self._segments.pop(number)
            if (number, segment.name) in kept:
                self._files.adopt(segment)
        tail, file = fold.tail, self._current.file
        if tail is not None and tail.dirty:
            write_all(file, bytes(self._current.size - tail.offset), tail.offset)
        # The process before may have died before its sync, or after one that failed: the kernel
        # then shows bytes that it will never write. From here on what was found counts as
        # durable, so what no later block proves to be is written again.
        if tail is not None and tail.unproven < tail.offset:
            write_all(file, file.pread(tail.offset - tail.unproven, tail.unproven), tail.unproven)
        self._current.file.fdatasync()
        self._disk.fsync_dir()
        self._chain.synced_upto = self._chain.sequence

    def _count_live(self) -> None:
        for state in self._partitions.values():
            slot = state.boundary_index + 1 - state.base
            live = _by_segment(state.positions[slot:], state.metas[slot:])
            for number, entries, byte_count in live:
                self._segments[number].live_entries += entries
                self._segments[number].live_bytes += byte_count


class _Staged:
    """A group that was checked and encoded and has changed nothing yet."""

    __slots__ = ("boundaries", "group", "lasts", "metas", "others", "payloads", "table")

    def __init__(self, group: Sequence[Operation]) -> None:
        self.group = group
        self.table: list[bytes] = []
        self.payloads: list[bytes] = []
        self.metas: list[int] = []
        self.others: list[tuple[int, int, int] | None] = []
        self.lasts: dict[int, int] = {}
        self.boundaries: dict[int, int] = {}


class _Refused(Exception):
    """An operation cannot be; its partition's part of the group is left out."""

    def __init__(
        self, op: Operation, boundary: int, last: int, cause: Exception | None = None
    ) -> None:
        self.partition = op.partition
        self.error: Exception
        if isinstance(cause, PenstockError):
            self.error = cause
            return
        try:
            rules.admit(op, boundary, last)
            self.error = Rejected(f"expected an operation that can be written, found {cause}")
        except PenstockError as error:
            self.error = error


def _apply_row(
    state: PartitionIndex, row: tuple[int, int, int] | None
) -> tuple[array[int], array[int]] | None:
    if row is None:
        return None
    kind, index, term = row
    if kind == fmt.TRUNCATE:
        return state.truncate(index)
    if kind == fmt.COMPACT:
        return state.compact(index, term)
    if kind == fmt.BOUNDARY:
        return state.install(index, term)
    state.term, state.vote = term, index
    return None


def _by_segment(positions: array[int], metas: array[int]) -> list[tuple[int, int, int]]:
    """(segment, entries, bytes) of entries, in few steps however many they are."""
    if not positions:
        return []
    numbers = np.frombuffer(positions, np.uint64) >> np.uint64(fmt.POSITION_SHIFT)
    lengths = np.frombuffer(metas, np.uint64) & np.uint64(fmt.LENGTH_MASK)
    first = int(numbers.min())
    slots = (numbers - np.uint64(first)).astype(np.int64)
    entries = np.bincount(slots).tolist()
    payload = np.bincount(slots, lengths.astype(np.float64)).tolist()
    return [
        (first + i, count, int(payload[i]) + fmt.RECORD_BYTES * count)
        for i, count in enumerate(entries)
        if count
    ]


def _slots_in(state: PartitionIndex, number: int) -> list[int]:
    """The slots of a partition's entries that lie in a segment."""
    first = state.boundary_index + 1 - state.base
    live = np.frombuffer(state.positions, np.uint64)[first:]
    there = np.flatnonzero(live >> np.uint64(fmt.POSITION_SHIFT) == np.uint64(number))
    return [first + slot for slot in there.tolist()]


def _within(metas: array[int], slot: int, count: int, max_bytes: int) -> list[int]:
    """As many metas from a slot on as the limits allow, and at least one."""
    taken = metas[slot : slot + 1].tolist()
    total = taken[0] & fmt.LENGTH_MASK
    for meta in metas[slot + 1 : slot + count]:
        total += meta & fmt.LENGTH_MASK
        if total > max_bytes:
            break
        taken.append(meta)
    return taken


def _check_payload(segment: Segment, position: int, meta: int, payload: bytes) -> None:
    if len(payload) != meta & fmt.LENGTH_MASK or crc32c(payload) != meta >> 32:
        offset = position & fmt.OFFSET_MASK
        raise Damaged(
            f"{segment.name} at offset {offset}: expected {meta & fmt.LENGTH_MASK} bytes with "
            f"checksum {meta >> 32:#010x}, found {len(payload)} with {crc32c(payload):#010x}",
            file=segment.name,
            offset=offset,
        )
