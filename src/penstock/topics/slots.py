"""Records by seq: a row of slots without gaps, of which some are empty.

Seqs are assigned without gaps, so a record's place is arithmetic. What leaves at the front is
given back in runs, at a constant cost for each record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.topics.model import Record

_RUN: Final = 256
"""How many slots a reader looks at in one go: enough to be quick, few enough to stop early."""


class Slot(NamedTuple):
    """A record where it stands."""

    seq: int
    ts_ms: int
    record: Record


class Slots:
    """The records of one topic from its first live one to its head; times never go back."""

    __slots__ = ("_base_seq", "_first", "_records", "_times", "count", "size_bytes")

    def __init__(self, head_seq: int = 0) -> None:
        self._base_seq = head_seq + 1  # the seq of the first slot
        self._first = 0  # the first slot that is not empty, or the end
        self._records: list[Record | None] = []
        self._times: list[int] = []
        self.count = 0
        self.size_bytes = 0

    @classmethod
    def restored(cls, head_seq: int, live: Sequence[Slot]) -> Slots:
        """The slots that hold these records, all others being empty."""
        slots = cls(live[0].seq - 1 if live else head_seq)
        for seq, ts_ms, record in live:
            slots._fill_to(seq - 1, ts_ms)
            slots.extend((record,), ts_ms, record.size_bytes)
        if live:
            slots._fill_to(head_seq, live[-1].ts_ms)
        return slots

    @property
    def earliest_seq(self) -> int:
        """The first live seq; one past the head when there is none."""
        return self._base_seq + self._first

    @property
    def head_seq(self) -> int:
        """The last seq assigned."""
        return self._base_seq + len(self._records) - 1

    def extend(self, records: Sequence[Record], ts_ms: int, size_bytes: int) -> None:
        """Put records at the end."""
        self._records.extend(records)
        self._times.extend([ts_ms] * len(records))
        self.count += len(records)
        self.size_bytes += size_bytes

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
        stop = min(seq + 1 - self._base_seq, len(self._records))
        for place in range(self._first, stop):
            if self._records[place] is not None:
                self._empty(place)
        self._first = max(self._first, stop)
        self._skip_empty()

    def last_before(self, ts_ms: int) -> int | None:
        """The last live seq, in the run at the front, that is older than a time; None if none."""
        place = bisect_left(self._times, ts_ms, self._first) - 1
        while place >= self._first:
            if self._records[place] is not None:
                return self._base_seq + place
            place -= 1
        return None

    def seq_to_shed(self, bytes_max: int) -> int | None:
        """The last seq that must leave, oldest first, so that at most `bytes_max` stay."""
        over = self.size_bytes - bytes_max
        seq = None
        for place in range(self._first, len(self._records)):
            if over <= 0:
                break
            record = self._records[place]
            if record is not None:
                over -= record.size_bytes
                seq = self._base_seq + place
        return seq

    def _fill_to(self, seq: int, ts_ms: int) -> None:
        """Add empty slots, up to a seq."""
        missing = seq - self.head_seq
        self._records.extend([None] * missing)
        self._times.extend([ts_ms] * missing)

    def _empty(self, place: int) -> None:
        record = self._records[place]
        if record is not None:
            self._records[place] = None
            self.count -= 1
            self.size_bytes -= record.size_bytes

    def _skip_empty(self) -> None:
        records, first, end = self._records, self._first, len(self._records)
        while first < end and records[first] is None:
            first += 1
        self._first = first
        if first * 2 > end:  # as many were emptied since the last time as are moved now
            del records[:first]
            del self._times[:first]
            self._base_seq += first
            self._first = 0
