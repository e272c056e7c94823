"""Records by seq: a row of slots without gaps, of which some are empty.

Seqs are assigned without gaps, so a record's place is arithmetic. Times and sizes stand beside
the records in arrays, so that what leaves in runs is counted without looking at each record. What
leaves at the front is given back in runs too, at a constant cost for each record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.topics.batch import Batch
from penstock.topics.model import Record, size_of

_RUN: Final = 256
"""How many slots a reader looks at in one go: enough to be quick, few enough to stop early."""


class Slot(NamedTuple):
    """A record where it stands."""

    seq: int
    ts_ms: int
    record: Record


class Slots:
    """The records of one topic from its first live one to its head; times never go back.

    A size of 0 marks an empty slot: no JSON has no bytes.
    """

    __slots__ = ("_base_seq", "_first", "_records", "_sizes", "_times", "count", "size_bytes")

    def __init__(self, head_seq: int = 0) -> None:
        self._base_seq = head_seq + 1  # the seq of the first slot
        self._first = 0  # the first slot that is not empty, or the end
        self._records: list[Record | None] = []
        self._times = array("q")
        self._sizes = array("Q")
        self.count = 0
        self.size_bytes = 0

    @classmethod
    def restored(cls, head_seq: int, live: Sequence[Slot]) -> Slots:
        """The slots that hold these records, all others being empty."""
        slots = cls(live[0].seq - 1 if live else head_seq)
        for seq, ts_ms, record in live:
            slots.skip_to(seq - 1, ts_ms)
            slots.extend(Batch([record], [size_of(record)]), ts_ms)
        if live:
            slots.skip_to(head_seq, live[-1].ts_ms)
        return slots

    @property
    def earliest_seq(self) -> int:
        """The first live seq; one past the head when there is none."""
        return self._base_seq + self._first

    @property
    def head_seq(self) -> int:
        """The last seq assigned."""
        return self._base_seq + len(self._records) - 1

    def extend(self, batch: Batch, ts_ms: int) -> None:
        """Put records at the end."""
        records = batch.records
        self._records.extend(records)
        self._sizes.fromlist(batch.sizes)
        if len(records) == 1:
            self._times.append(ts_ms)
        else:
            self._times.extend(array("q", (ts_ms,)) * len(records))
        self.count += len(records)
        self.size_bytes += batch.size_bytes

    def get(self, seq: int) -> Record | None:
        """The live record of a seq."""
        place = seq - self._base_seq
        return self._records[place] if self._first <= place < len(self._records) else None

    def slot(self, seq: int) -> Slot | None:
        """The live record of a seq, with its time."""
        record = self.get(seq)
        return Slot(seq, self._times[seq - self._base_seq], record) if record is not None else None

    def live(self, from_seq: int, upto_seq: int) -> Iterator[Slot]:
        """The live records after `from_seq` and up to `upto_seq`, in order."""
        start = max(from_seq + 1 - self._base_seq, self._first)
        stop = min(upto_seq + 1 - self._base_seq, len(self._records))
        for here in range(start, stop, _RUN):
            run = slice(here, min(here + _RUN, stop))
            seqs = range(self._base_seq + here, self._base_seq + run.stop)
            for slot in zip(seqs, self._times[run], self._records[run], strict=True):
                if slot[2] is not None:
                    yield Slot._make(slot)

    def page(self, from_seq: int, upto_seq: int, limit: int, bytes_max: int) -> tuple[
        list[int], list[int], list[Record], int
    ]:
        """Seqs, times and records after `from_seq`, and the last seq that was looked at.

        At least one record, though it has more than `bytes_max`; one that is left out for its
        size is not passed. Reads the slots in runs, with no work for each that needs none.
        """
        seqs: list[int] = []
        times: list[int] = []
        records: list[Record] = []
        start = max(from_seq + 1 - self._base_seq, self._first)
        stop = min(upto_seq + 1 - self._base_seq, len(self._records))
        room = bytes_max
        while start < stop and limit:
            run = slice(start, min(start + limit, stop))
            sizes = self._sizes[run]
            total = sum(sizes)
            if total > room:
                run = slice(start, start + _fitting(sizes, room, first=not records))
                sizes = self._sizes[run]
                if run.stop == start:
                    return seqs, times, records, max(from_seq, self._base_seq + start - 1)
            room -= sum(sizes)
            found = self._records[run]
            numbers = range(self._base_seq + run.start, self._base_seq + run.stop)
            if sizes.count(0):
                for seq, ts_ms, record in zip(numbers, self._times[run], found, strict=True):
                    if record is not None:
                        seqs.append(seq)
                        times.append(ts_ms)
                        records.append(record)
            else:
                seqs.extend(numbers)
                times.extend(self._times[run])
                records.extend(found)  # type: ignore[arg-type]
            limit -= len(found) - sizes.count(0)
            start = run.stop
        passed = upto_seq if start >= stop and limit else self._base_seq + start - 1
        return seqs, times, records, max(from_seq, passed)

    def remove(self, seq: int) -> bool:
        """Empty one slot. False if it was empty."""
        if self.get(seq) is None:
            return False
        self._empty(seq - self._base_seq)
        self._skip_empty()
        return True

    def remove_matching(self, matches: Callable[[str | None], bool], before_seq: int) -> None:
        """Empty every slot before a seq whose record's tag matches."""
        records = self._records
        stop = min(max(before_seq - self._base_seq, self._first), len(records))
        for place in range(self._first, stop):
            record = records[place]
            if record is not None and matches(record.tag):
                self._empty(place)
        self._skip_empty()

    def drop_through(self, seq: int) -> None:
        """Empty every slot up to a seq."""
        first, stop = self._first, min(seq + 1 - self._base_seq, len(self._records))
        if stop <= first:
            return
        sizes = self._sizes[first:stop]
        self.count -= len(sizes) - sizes.count(0)
        self.size_bytes -= sum(sizes)
        self._records[first:stop] = [None] * len(sizes)
        self._sizes[first:stop] = array("Q", bytes(8 * len(sizes)))
        self._first = stop
        self._skip_empty()

    def last_before(self, ts_ms: int) -> int | None:
        """The last live seq, in the run at the front, that is older than a time; None if none."""
        place = bisect_left(self._times, ts_ms, self._first) - 1
        while place >= self._first:
            if self._records[place] is not None:
                return self._base_seq + place
            place -= 1
        return None

    def seq_before(self, ts_ms: int) -> int:
        """The last seq, live or not, that is older than a time; one before the first if none."""
        return self._base_seq + bisect_left(self._times, ts_ms) - 1

    def seq_to_shed(self, bytes_max: int) -> int | None:
        """The last seq that must leave, oldest first, so that at most `bytes_max` stay."""
        over = self.size_bytes - bytes_max
        seq = None
        for place in range(self._first, len(self._sizes)):
            if over <= 0:
                break
            size_bytes = self._sizes[place]
            if size_bytes:
                over -= size_bytes
                seq = self._base_seq + place
        return seq

    def skip_to(self, seq: int, ts_ms: int) -> None:
        """Leave empty slots up to a seq."""
        missing = seq - self.head_seq
        if missing > 0:
            self._records.extend([None] * missing)
            self._times.extend(array("q", (ts_ms,)) * missing)
            self._sizes.extend(array("Q", bytes(8 * missing)))
            self._skip_empty()

    def _empty(self, place: int) -> None:
        size_bytes = self._sizes[place]
        if size_bytes:
            self._records[place] = None
            self._sizes[place] = 0
            self.count -= 1
            self.size_bytes -= size_bytes

    def _skip_empty(self) -> None:
        records, first, end = self._records, self._first, len(self._records)
        while first < end and records[first] is None:
            first += 1
        self._first = first
        if first * 2 > end:  # as many were emptied since the last time as are moved now
            del records[:first]
            del self._times[:first]
            del self._sizes[:first]
            self._base_seq += first
            self._first = 0


def _fitting(sizes: Sequence[int], room: int, *, first: bool) -> int:
    """How many of these, from the start on, have room; the first live one has it in any case."""
    for place, size_bytes in enumerate(sizes):
        room -= size_bytes
        if room < 0 and size_bytes:
            if not first:
                return place
            first = False
        elif size_bytes:
            first = False
    return len(sizes)
