"""The readers' view: the index of every partition and the live part of each segment.

Blocks of appends are only queued when they are written; their records are indexed on the next
lookup, or in bulk. This frees the writer's thread sooner (indexing was a third of a write), and a
reader does this work while the writer waits for the disk.
"""

from __future__ import annotations

import threading
from array import array
from typing import Final

import numpy as np

from penstock.log.store import Bounds, HardState, StoreClosed
from penstock.log.stores import rules
from penstock.log.stores.segment import format as fmt
from penstock.log.stores.segment.files import Segment
from penstock.log.stores.segment.index import PartitionIndex, positions_of, rows_of, runs

NO_PARTITION: Final = PartitionIndex()
_NOTED_MAX: Final = 16_384
_BULK_MIN: Final = 2_048
_NOTED_GROUPS_MAX: Final = 4_096


class SegmentCatalog:
    """`lock` is held briefly and never over IO. Only the writer uses `lasts`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.segments: dict[int, Segment] = {}
        self.lasts: dict[int, int] = {}
        self.garbage = False
        self._closed: StoreClosed | None = None
        self._partitions: dict[int, PartitionIndex] = {}
        self._noted: list[tuple[int, bytes]] = []
        self._noted_records = 0

    # For the writer

    def restore(self, partitions: dict[int, PartitionIndex]) -> None:
        """Adopt the result of recovery."""
        self._partitions = partitions
        for number, state in partitions.items():
            self.lasts[number] = state.last_index
            slot = state.boundary_index + 1 - state.base
            for segment, entries, byte_count in _by_segment(
                state.positions[slot:], state.metas[slot:]
            ):
                self.segments[segment].live_entries += entries
                self.segments[segment].live_bytes += byte_count

    def boundary(self, partition: int) -> int:
        """Where a partition's log begins; moved only by groups that have more than appends."""
        return self._partitions.get(partition, NO_PARTITION).boundary_index

    def term_at(self, partition: int, index: int) -> int:
        """The term of an existing entry."""
        with self.lock:
            return self._look(partition).term_at(index)

    def show(self, table: bytes, lasts: dict[int, int], at: tuple[Segment, int, int]) -> None:
        """Make a block of appends visible: its records and (segment, offset, payload bytes)."""
        segment, offset, payload_bytes = at
        records = len(table) // fmt.RECORD_BYTES
        with self.lock:
            self.lasts.update(lasts)
            segment.live_entries += records
            segment.live_bytes += payload_bytes + len(table)
            self._noted.append((segment.number << fmt.POSITION_SHIFT | offset, table))
            self._noted_records += records
            if self._noted_records >= _NOTED_MAX or len(self._noted) >= _NOTED_GROUPS_MAX:
                self._settle()

    def show_mixed(self, table: bytes, lasts: dict[int, int], at: tuple[Segment, int, int]) -> None:
        """As `show`, for a block with any kind of record."""
        segment, offset, _ = at
        with self.lock:
            self._settle()
            self.lasts.update(lasts)
            self._take(segment.number << fmt.POSITION_SHIFT | offset, table, segment)

    def unwanted(self, current: Segment) -> list[str]:
        """Forget the oldest segments without live entries, and return their names."""
        self.garbage = False
        names = []
        with self.lock:
            for number in sorted(self.segments):
                segment = self.segments[number]
                if segment.live_entries or segment is current:
                    break
                names.append(segment.name)
                del self.segments[number]
        return names

    def entries_in(self, segment: int) -> list[tuple[int, int, int, int, int]]:
        """(partition, index, term, position, meta) of every entry in a segment."""
        found = []
        with self.lock:
            self._settle()
            for number, state in self._partitions.items():
                slot = state.boundary_index + 1 - state.base
                live = np.frombuffer(state.positions, np.uint64)[slot:]
                there = np.flatnonzero(live >> np.uint64(fmt.POSITION_SHIFT) == np.uint64(segment))
                del live
                for at in (there + slot).tolist():
                    index = state.base + at
                    place = state.positions[at], state.metas[at]
                    found.append((number, index, state.term_at(index), *place))
        return found

    def close(self, reason: StoreClosed) -> None:
        """Refuse every lookup from now on, and release the files."""
        with self.lock:
            self._settle()
            self._closed = reason
            self.segments = {}

    # For any thread

    def totals(self) -> tuple[int, int, int]:
        """Partitions, entries, and bytes of segments."""
        with self.lock:
            self._settle()
            entries = sum(state.entries for state in self._partitions.values())
            size = sum(segment.size for segment in self.segments.values())
            return len(self._partitions), entries, size

    def states(self) -> list[tuple[int, Bounds, HardState]]:
        """Every partition with its bounds and hard state."""
        with self.lock:
            self._settle()
            if self._closed is not None:
                raise self._closed
            return [(n, p.bounds, HardState(p.term, p.vote)) for n, p in self._partitions.items()]

    def state(self, partition: int) -> tuple[Bounds, HardState]:
        """One partition's bounds and hard state."""
        with self.lock:
            state = self._look(partition)
            return state.bounds, HardState(state.term, state.vote)

    def term(self, partition: int, index: int) -> int:
        """The term of an index, which may not exist."""
        with self.lock:
            state = self._look(partition)
            rules.check_term_at(partition, index, state.bounds)
            return state.term_at(index)

    def places(
        self, partition: int, first_index: int, limits: tuple[int, int]
    ) -> tuple[list[int], list[int], list[int], dict[int, Segment]]:
        """Positions, metas and terms of entries within (entries, bytes), and their segments."""
        with self.lock:
            state = self._look(partition)
            rules.check_read(partition, first_index, state.boundary_index)
            count = min(max(limits[0], 1), state.last_index - first_index + 1)
            if count <= 0:
                return [], [], [], {}
            slot = first_index - state.base
            metas = _within(state.metas, slot, count, limits[1])
            positions = state.positions[slot : slot + len(metas)].tolist()
            terms = state.terms(first_index, len(metas))
            numbers = {position >> fmt.POSITION_SHIFT for position in positions}
            return positions, metas, terms, {n: self.segments[n] for n in numbers}

    # With the lock held

    def _look(self, partition: int) -> PartitionIndex:
        if self._closed is not None:
            raise self._closed
        if self._noted:
            self._settle()
        return self._partitions.get(partition, NO_PARTITION)

    def _settle(self) -> None:
        """Index the queued blocks."""
        noted, self._noted = self._noted, []
        records, self._noted_records = self._noted_records, 0
        # Below this, the fixed cost of arrays per partition dominates.
        if records >= max(_BULK_MIN, 16 * len(self.lasts)):
            self._settle_bulk(noted)
        else:
            for position, table in noted:
                self._take_entries(position, table)

    def _settle_bulk(self, noted: list[tuple[int, bytes]]) -> None:
        tables = [table for _, table in noted]
        rows = rows_of(tables)
        starts = np.array([position for position, _ in noted], np.uint64)
        counts = np.array([len(table) // fmt.RECORD_BYTES for table in tables], np.int64)
        for run in runs(rows, positions_of(rows, starts, counts)):
            self._own(run.partition).extend(run.positions, run.metas, run.terms)

    def _take_entries(self, position: int, table: bytes) -> None:
        partitions = self._partitions
        for index, term, meta, partition, _ in fmt.RECORD.iter_unpack(table):
            state = partitions.get(partition)
            if state is None:
                state = partitions[partition] = PartitionIndex()
            state.positions.append(position)
            state.metas.append(meta)
            position += meta & fmt.LENGTH_MASK
            if term != state.tail_term:
                state.start_run(index, term)
            state.last_index = index

    def _take(self, position: int, table: bytes, segment: Segment) -> None:
        for index, term, meta, partition, kind in fmt.RECORD.iter_unpack(table):
            state = self._own(partition)
            if kind <= fmt.COPY:
                if kind == fmt.COPY:
                    slot = index - state.base
                    self._discount(state.positions[slot : slot + 1], state.metas[slot : slot + 1])
                    state.positions[slot] = position
                else:
                    row = fmt.RECORD.pack(index, term, meta, partition, kind)
                    self._take_entries(position, row)
                position += meta & fmt.LENGTH_MASK
                segment.live_entries += 1
                segment.live_bytes += (meta & fmt.LENGTH_MASK) + fmt.RECORD_BYTES
            elif kind == fmt.TRUNCATE:
                self._discount(*state.truncate(index))
            elif kind == fmt.COMPACT:
                self._discount(*state.compact(index, term))
            elif kind == fmt.BOUNDARY:
                self._discount(*state.install(index, term))
            elif kind == fmt.HARD_STATE:
                state.term, state.vote = term, index

    def _own(self, partition: int) -> PartitionIndex:
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = PartitionIndex()
        return state

    def _discount(self, positions: array[int], metas: array[int]) -> None:
        """Count entries as dead: their segments may become free."""
        for number, entries, byte_count in _by_segment(positions, metas):
            self.garbage = True
            segment = self.segments[number]
            segment.live_entries -= entries
            segment.live_bytes -= byte_count


def _by_segment(positions: array[int], metas: array[int]) -> list[tuple[int, int, int]]:
    """(segment, entries, bytes) of entries, in few steps regardless of their number."""
    if len(positions) <= 1:
        return [
            (position >> fmt.POSITION_SHIFT, 1, (meta & fmt.LENGTH_MASK) + fmt.RECORD_BYTES)
            for position, meta in zip(positions, metas, strict=True)
        ]
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
