"""Records by seq: a contiguous row of slots, some of them empty.

Seqs are contiguous, so a record's position is arithmetic. Times and sizes are in parallel arrays,
so that runs of evicted records are counted without touching each record. Slots at the front are
freed in runs too, at constant cost per record. Records are kept as the original requests
(`packed.py`) and decoded on read. Requests with many records get their slots in bulk, or when any
slot is accessed: growing arrays a little at a time would copy them again and again.

The oldest records may be cold: they are in a file, and only their times, sizes and tags are in
memory, packed (`cold_row.py`). Reading a cold record whose block is not loaded raises
`NotLoaded`; otherwise cold and hot records behave alike. When memory is short, records become cold
before they are in a permanent file: until then their blocks are in a spill file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.topics.core.batch import Batch, Item, PackedRecords, unpack, unpacked
from penstock.topics.core.cold_row import (
    BLOCK_BYTES_MAX,
    BLOCK_RECORDS_MAX,
    ColdBlock,
    ColdRow,
    PackedRun,
    SlotRun,
)
from penstock.topics.core.record import Found, RawRecord

_RUN: Final = 256
"""How many slots a read takes at a time: enough to be fast, few enough to stop early."""
HOT_SLOT_BYTES: Final = 64
"""The approximate overhead of a record in memory."""
_FRESH_MIN: Final = 256
_FRESH_MAX: Final = 8_192
"""How many records may wait for slots: a quarter of those that have one, within these bounds."""


class Slot(NamedTuple):
    """A record with its seq and time."""

    seq: int
    ts_ms: int
    record: RawRecord


class RecordRow:
    """The records of one topic from its first live one to its head; times never decrease.

    A size of 0 marks an empty slot: JSON has at least one byte.
    """

    __slots__ = (
        "_base_seq", "_first", "_fresh", "_fresh_count", "_hot_seq", "_items", "_sizes", "_times",
        "cold", "count", "head_seq", "size_bytes",
    )  # fmt: skip

    def __init__(self, head_seq: int = 0) -> None:
        self.head_seq = head_seq  # the last seq assigned
        self._base_seq = head_seq + 1  # the seq of the first slot
        self._hot_seq = head_seq + 1  # the seq of the first slot that is not cold
        self._first = 0  # the first non-empty hot slot, or the end; 0 while cold records live
        self.cold = ColdRow(head_seq + 1)  # the slots before the hot ones
        self._items: list[Item] = []  # of the hot slots
        self._times = array("q")
        self._sizes = array("Q")
        self._fresh: list[tuple[Batch, int]] = []  # batches without slots yet, with their times
        self._fresh_count = 0
        self.count = 0
        self.size_bytes = 0

    @classmethod
    def restored(cls, head_seq: int, live: Sequence[Slot]) -> RecordRow:
        """Slots with these records; all others are empty."""
        slots = cls(live[0].seq - 1 if live else head_seq)
        for seq, ts_ms, record in live:
            slots.skip_to(seq - 1, ts_ms)
            slots.extend(Batch.of([record]), ts_ms)
        if live:
            slots.skip_to(head_seq, live[-1].ts_ms)
        return slots

    @property
    def earliest_seq(self) -> int:
        """The first live seq; head + 1 when there is none."""
        cold = self.cold
        return cold.earliest_seq if cold.count else self._hot_seq + self._first

    @property
    def hot_bytes(self) -> int:
        """The bytes of live records in memory, including overhead."""
        hot = len(self._sizes) + self._fresh_count
        return self.size_bytes - self.cold.size_bytes + HOT_SLOT_BYTES * hot

    def extend(self, batch: Batch, ts_ms: int) -> None:
        """Append records."""
        count = batch.count
        if not count:
            return  # a router has skipped everything it scanned
        if count == 1 and not self._fresh:
            self._items.append(batch.body)
            self._sizes.append(batch.size_bytes)
            self._times.append(ts_ms)
        else:
            self._fresh.append((batch, ts_ms))
            self._fresh_count += count
            if self._fresh_count > max(_FRESH_MIN, min(_FRESH_MAX, len(self._sizes) // 4)):
                self._place()
        self.head_seq += count
        self.count += count
        self.size_bytes += batch.size_bytes

    def _place(self) -> None:
        """Give slots to all pending batches. Every access to slots calls this first."""
        fresh, self._fresh = self._fresh, []
        self._fresh_count = 0
        seq = self._hot_seq + len(self._sizes)
        items: list[Item] = []
        sizes, times = array("Q"), array("q")
        for batch, ts_ms in fresh:
            count = batch.count
            items += [batch.body if count == 1 else PackedRecords(seq, batch.body)] * count
            sizes += batch.sizes
            times += array("q", (ts_ms,)) * count
            seq += count
        self._items += items
        self._sizes += sizes
        self._times += times

    def get(self, seq: int) -> RawRecord | None:
        """The live record of a seq."""
        if self._fresh:
            self._place()
        place = seq - self._hot_seq
        if 0 <= place < len(self._items):
            return unpack(self._items[place], seq)
        return self.cold.record(seq) if place < 0 and self.cold.has(seq) else None

    def has(self, seq: int) -> bool:
        """Whether a seq has a live record, hot or cold."""
        return self.bytes_of(seq) > 0

    def bytes_of(self, seq: int) -> int:
        """The size of a seq's live record; 0 if there is none."""
        if self._fresh:
            self._place()
        place = seq - self._hot_seq
        if place < 0:
            return self.cold.size_of(seq)
        return self._sizes[place] if place < len(self._sizes) else 0

    def count_between(self, first_seq: int, last_seq: int) -> int:
        """How many live records are in a range of seqs."""
        if self._fresh:
            self._place()
        start = max(first_seq - self._hot_seq, self._first)
        sizes = self._sizes[start : max(last_seq + 1 - self._hot_seq, start)]
        found = len(sizes) - sizes.count(0)
        if first_seq < self._hot_seq and self.cold.count:
            found += self.cold.count_between(first_seq, last_seq)
        return found

    def bytes_through(self, last_seq: int) -> int:
        """The size of the live records up to a seq."""
        if self._fresh:
            self._place()
        found = sum(self._sizes[self._first : max(last_seq + 1 - self._hot_seq, self._first)])
        return found + (self.cold.bytes_through(last_seq) if self.cold.count else 0)

    def live_after(self, seq: int) -> int:
        """The first live seq after a seq; head + 1 when there is none."""
        return next(self.live_seqs(seq, self.head_seq), self.head_seq + 1)

    @property
    def oldest_ms(self) -> int | None:
        """The time of the oldest live record, or None."""
        if not self.count:
            return None
        if self.cold.count:
            return self.cold.time_of(self.cold.earliest_seq)
        if self._fresh:
            self._place()
        return self._times[self._first]

    def has_between(self, first_seq: int, last_seq: int) -> bool:
        """Whether a range of seqs has a live record; stops at the first."""
        if self._fresh:
            self._place()
        if first_seq < self._hot_seq and self.cold.count:
            for _ in self.cold.live_seqs(first_seq, last_seq):
                return True
        start = max(first_seq - self._hot_seq, self._first)
        stop = min(last_seq + 1 - self._hot_seq, len(self._sizes))
        if start >= stop:
            return False
        with memoryview(self._sizes) as sizes:
            return any(sizes[start:stop])

    def slot(self, seq: int) -> Slot | None:
        """The live record of a seq, with its time."""
        record = self.get(seq)
        if record is None:
            return None
        place = seq - self._hot_seq
        return Slot(seq, self._times[place] if place >= 0 else self.cold.time_of(seq), record)

    def live(self, from_seq: int, upto_seq: int) -> Iterator[Slot]:
        """The live records after `from_seq` and up to `upto_seq`, in order."""
        if self._fresh:
            self._place()
        start = max(from_seq + 1, self.earliest_seq)
        stop = min(upto_seq + 1, self._hot_seq + len(self._times))
        while start < stop:
            times, sizes = self._run(start, min(start + _RUN, stop))
            found = self._found(start, sizes)
            seqs = range(start, start + len(sizes))
            for slot in zip(seqs, times, found, strict=True):
                if slot[2] is not None:
                    yield Slot._make(slot)
            start += len(sizes)

    def live_seqs(self, from_seq: int, upto_seq: int) -> Iterator[int]:
        """The seqs of the live records after `from_seq` and up to `upto_seq`, in order."""
        if self._fresh:
            self._place()
        if from_seq + 1 < self._hot_seq and self.cold.count:
            yield from self.cold.live_seqs(from_seq + 1, upto_seq)
        start = max(from_seq + 1 - self._hot_seq, self._first)
        stop = min(upto_seq + 1 - self._hot_seq, len(self._sizes))
        for here in range(start, stop, _RUN):
            sizes = self._sizes[here : min(here + _RUN, stop)]
            for seq, size_bytes in enumerate(sizes, self._hot_seq + here):
                if size_bytes:
                    yield seq

    def page(self, from_seq: int, upto_seq: int, limit: int, bytes_max: int) -> tuple[Found, int]:
        """The records after `from_seq`, and the last seq that was scanned.

        Returns at least one record, even if it exceeds `bytes_max`; a record left out for its size
        is not skipped. Reads the slots in runs, without work per slot where possible.
        """
        if self._fresh:
            self._place()
        seqs: list[int] = []
        times = array("q")
        records: list[RawRecord] = []
        start = max(from_seq + 1, self.earliest_seq)
        stop = min(upto_seq + 1, self._hot_seq + len(self._times))
        room = bytes_max
        while start < stop and limit:
            run_times, sizes = self._run(start, min(start + max(limit, _RUN), stop))
            if len(sizes) - sizes.count(0) >= limit:
                sizes = sizes[: _first_live(sizes, limit)]
            if sum(sizes) > room:
                sizes = sizes[: _fitting(sizes, room, first=not records)]
                if not sizes:
                    return Found(seqs, times, records), max(from_seq, start - 1)
            room -= sum(sizes)
            found = self._found(start, sizes)
            end = start + len(sizes)
            if sizes.count(0):
                for seq, ts_ms, record in zip(range(start, end), run_times, found, strict=False):
                    if record is not None:
                        seqs.append(seq)
                        times.append(ts_ms)
                        records.append(record)
            else:
                seqs.extend(range(start, end))
                times.extend(run_times[: len(sizes)])
                records.extend(found)  # type: ignore[arg-type]
            limit -= len(found) - sizes.count(0)
            start = end
        passed = upto_seq if start >= stop and limit else start - 1
        return Found(seqs, times, records), max(from_seq, passed)

    def remove(self, seq: int) -> bool:
        """Empty one slot. Returns False if it was empty."""
        if not self.has(seq):
            return False
        self._empty(seq)
        self._skip_empty()
        return True

    def remove_matching(self, matches: Callable[[str | None], bool], before_seq: int) -> None:
        """Empty every slot before a seq whose record's tag matches."""
        if self._fresh:
            self._place()
        if self.cold.count:
            for seq in self.cold.matching(matches, before_seq):
                self._empty(seq)
        start, stop = self._hot_seq + self._first, min(before_seq, self.head_seq + 1)
        for here in range(start, stop, _RUN):
            _, sizes = self._run(here, min(here + _RUN, stop))
            for seq, record in enumerate(self._found(here, sizes), here):
                if record is not None and matches(record.tag):
                    self._empty(seq)
        self._skip_empty()

    def drop_through(self, seq: int) -> None:
        """Empty every slot up to a seq."""
        if self._fresh:
            self._place()
        if seq < self.earliest_seq:
            return
        cold = self.cold
        if cold.count:
            count, size_bytes = cold.count, cold.size_bytes
            cold.drop_through(seq)
            self.count -= count - cold.count
            self.size_bytes -= size_bytes - cold.size_bytes
        first, stop = self._first, min(seq + 1 - self._hot_seq, len(self._times))
        if stop > first:
            sizes = self._sizes[first:stop]
            self.count -= len(sizes) - sizes.count(0)
            self.size_bytes -= sum(sizes)
            self._items[first:stop] = [None] * (stop - first)
            self._sizes[first:stop] = array("Q", bytes(8 * len(sizes)))
            self._first = stop
        self._skip_empty()

    def last_before(self, ts_ms: int) -> int | None:
        """The last live seq in the leading run that is older than a time, or None."""
        if self._fresh:
            self._place()
        place = bisect_left(self._times, ts_ms, self._first) - 1
        while place >= self._first:
            if self._sizes[place]:
                return self._hot_seq + place
            place -= 1
        return self.cold.last_before(ts_ms) if self.cold.count else None

    def seq_before(self, ts_ms: int) -> int:
        """The last seq, live or not, that is older than a time; 0 if no live one is.

        In that case evicted records may have been of that time or later: a cursor of 0 reports
        them.
        """
        if self._fresh:
            self._place()
        place = bisect_left(self._times, ts_ms, self._first)
        if place > self._first:
            return self._hot_seq + place - 1
        return self.cold.seq_before(ts_ms)

    def seq_to_shed(self, bytes_max: int) -> int | None:
        """The last seq to evict, oldest first, so that at most `bytes_max` remain."""
        if self._fresh:
            self._place()
        over = self.size_bytes - bytes_max
        seq = None
        if self.cold.count and over > 0:
            seq, over = self.cold.seq_to_shed(over)
        for place in range(self._first, len(self._sizes)):
            if over <= 0:
                break
            size_bytes = self._sizes[place]
            if size_bytes:
                over -= size_bytes
                seq = self._hot_seq + place
        return seq

    def skip_to(self, seq: int, ts_ms: int) -> None:
        """Append empty slots up to a seq."""
        if self._fresh:
            self._place()
        missing = seq - self.head_seq
        if missing > 0:
            self.head_seq = seq
            self._items.extend([None] * missing)
            self._times.extend(array("q", (ts_ms,)) * missing)
            self._sizes.extend(array("Q", bytes(8 * missing)))
            self._skip_empty()

    def _empty(self, seq: int) -> None:
        place = seq - self._hot_seq
        if place < 0:
            size_bytes = self.cold.remove(seq)
        else:
            size_bytes = self._sizes[place]
            self._items[place] = None
            self._sizes[place] = 0
        if size_bytes:
            self.count -= 1
            self.size_bytes -= size_bytes

    def _skip_empty(self) -> None:
        """Free the empty slots at the front when they are as many as those left."""
        if not self.cold.count:
            sizes, first, end = self._sizes, self._first, len(self._sizes)
            while first < end and not sizes[first]:
                first += 1
            self._first = first
        earliest_seq = self.earliest_seq
        end_seq = self._hot_seq + len(self._sizes)
        if (earliest_seq - self._base_seq) * 2 <= end_seq - self._base_seq:
            return  # amortised: at least as many slots were emptied as are moved now
        self._base_seq = earliest_seq
        place = earliest_seq - self._hot_seq
        if place >= 0:
            del self._items[:place]
            del self._times[:place]
            del self._sizes[:place]
            self._hot_seq = earliest_seq
            self._first = 0
            self.cold.clear(earliest_seq)
        else:
            self.cold.trim(earliest_seq)

    # Cold records

    @property
    def cold_count(self) -> int:
        """How many slots at the front have their records in files."""
        return self._hot_seq - self._base_seq

    @property
    def base_seq(self) -> int:
        """The seq of the first slot, which may be empty."""
        return self._base_seq

    def seal(self, blocks: Sequence[ColdBlock]) -> int:
        """Drop the oldest hot records from memory: files hold them now.

        Blocks of spilled slots replace their spill blocks; other blocks before the hot slots are
        skipped, since their records are gone. Returns how many slots became cold.
        """
        if self._fresh:
            self._place()
        taken = 0
        settled: list[ColdBlock] = []
        for block in blocks:
            stop = block.last_seq + 1 - self._hot_seq
            if stop <= taken:
                if block.spill is None:
                    settled.append(block)
                continue
            if block.first_seq > self._hot_seq + taken or block.last_seq > self.head_seq:
                break
            self.cold.append(self._times[taken:stop], self._sizes[taken:stop])
            self.cold.blocks.append(block)
            taken = stop
        if taken:  # once for all, since the rest is moved
            del self._items[:taken]
            del self._times[:taken]
            del self._sizes[:taken]
            self._hot_seq += taken
            self._first = max(self._first - taken, 0) if not self.cold.count else 0
        if settled and any(block.spill is not None for block in self.cold.blocks):
            self.cold.replace_spilled(settled)
        if not self.cold.count:
            self._skip_empty()
        return taken

    def oldest_hot(
        self, slots_max: int, bytes_max: int, start: int = 0
    ) -> tuple[int, array[int], list[Item]]:
        """The oldest hot slots from a position on: first seq, sizes and contents.

        A request is not split: its bytes would be kept, and written, once per part.
        """
        if self._fresh:
            self._place()
        sizes = self._sizes[start : start + slots_max]
        stop = start + (max(1, _fitting(sizes, bytes_max, first=True)) if sizes else 0)
        items = self._items
        if stop > start and type(items[stop - 1]) is PackedRecords:
            while stop < len(items) and items[stop] is items[stop - 1]:
                stop += 1
        return self._hot_seq + start, self._sizes[start:stop], items[start:stop]

    def hot(self) -> tuple[int, array[int], list[Item]]:
        """All slots in memory: first seq, times and contents."""
        if self._fresh:
            self._place()
        return self._hot_seq, self._times[:], self._items[:]

    def hot_from(self, slots_max: int, bytes_max: int) -> int:
        """The hot position with at most this many slots after it, and bytes if not 0."""
        if self._fresh:
            self._place()
        place = max(len(self._times) - slots_max, 0)
        if bytes_max:
            room = bytes_max - sum(self._sizes[place:])
            while room < 0 and place < len(self._sizes):
                room += self._sizes[place]
                place += 1
        return place

    def runs(
        self, start: int = 0, end: int | None = None, slots_max: int = BLOCK_RECORDS_MAX
    ) -> Iterator[SlotRun]:
        """A range of hot slots, including empty ones, in runs that fit into a block."""
        if self._fresh:
            self._place()
        end = len(self._times) if end is None else end
        slots_max = min(slots_max, BLOCK_RECORDS_MAX)
        while start < end:
            sizes = self._sizes[start : min(start + slots_max, end)]
            if sum(sizes) > BLOCK_BYTES_MAX:
                sizes = sizes[: max(1, _fitting(sizes, BLOCK_BYTES_MAX, first=False))]
            stop = start + len(sizes)
            first_seq = self._hot_seq + start
            records = unpacked(self._items[start:stop], first_seq)
            yield SlotRun(first_seq, self._times[start:stop], sizes, records)
            start = stop

    def take_run(self, times: array[int], sizes: array[int], items: Sequence[Item]) -> None:
        """Append slots from a snapshot, including empty ones; call `settle` afterwards."""
        if self._fresh:
            self._place()
        self._times.extend(times)
        self._sizes.extend(sizes)
        self._items.extend(items)
        self.head_seq += len(times)
        self.count += len(sizes) - sizes.count(0)
        self.size_bytes += sum(sizes)

    def take_packed(self, times: array[int], sizes: array[int], body: bytes) -> None:
        """As `take_run`, without empty slots; the records are those of a request."""
        count = len(times)
        item: Item = PackedRecords(self.head_seq + 1, body) if count > 1 else body
        self.take_run(times, sizes, [item] * count)

    def take_block(self, block: ColdBlock, run: PackedRun) -> None:
        """Append the slots of a block from a snapshot; must precede any hot ones."""
        self.cold.append_packed(run)
        self.head_seq = run.last_seq
        self._hot_seq = run.last_seq + 1
        self.count += run.live
        self.size_bytes += run.size_bytes
        self.cold.blocks.append(block)

    def settle(self) -> None:
        """Finish loading a snapshot."""
        self._skip_empty()

    def _run(self, start_seq: int, stop_seq: int) -> tuple[array[int], array[int]]:
        """Times and sizes from a seq on, all hot or all in one cold block."""
        place = start_seq - self._hot_seq
        if place >= 0:
            stop = stop_seq - self._hot_seq
            return self._times[place:stop], self._sizes[place:stop]
        return self.cold.block_run(start_seq, min(stop_seq, self._hot_seq))

    def _found(self, start_seq: int, sizes: array[int]) -> list[RawRecord | None]:
        """The records of a run, which is hot or in one block."""
        place = start_seq - self._hot_seq
        if place >= 0:
            return unpacked(self._items[place : place + len(sizes)], start_seq)
        return self.cold.records(start_seq, sizes)


def _first_live(sizes: Sequence[int], count: int) -> int:
    """The length of the prefix that has `count` live slots, which must exist."""
    end = count
    live = count - sizes[:end].count(0)
    while live < count:
        more = sizes[end : end + count - live]
        live += len(more) - more.count(0)
        end += len(more)
    return end


def _fitting(sizes: Sequence[int], room: int, *, first: bool) -> int:
    """The length of the prefix that fits; with `first`, its first live slot always does."""
    for place, size_bytes in enumerate(sizes):
        room -= size_bytes
        if room < 0 and size_bytes:
            if not first:
                return place
            first = False
        elif size_bytes:
            first = False
    return len(sizes)
