"""A look at the newest records of a topic: few of them, whatever comes in, and the rest counted.

>>> allowance = Allowance(0)
>>> allowance.records(0), allowance.records(1_000)
(20, 20)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.kernel.units import KIB
from penstock.server.api.answers import encode
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import ReadRequest, read
from penstock.topics.core.record import Found, RawRecord, records_json, size_of
from penstock.topics.engine.engine import Engine

RECORDS_PER_S: Final = 20
BYTES_PER_S: Final = 64 * KIB
RECORD_BYTES_MAX: Final = 4 * KIB
"""A larger record is shown without its data."""
SCAN_MAX: Final = 500
"""Records that one look filters; others are skipped."""
FLOOD: Final = 100
FLOOD_MS: Final = 700
"""If more records than these came since the last look, the next one is so much later: to read the
newest, the whole request that they came with is decoded."""
NEWEST: Final = 20
"""Records that the twin of a topic has."""


class Allowance:
    """How much may be shown now: so many records and bytes a second, saved up for one second."""

    def __init__(self, now_ms: int) -> None:
        self._filled_ms = now_ms
        self._records = float(RECORDS_PER_S)
        self.bytes = float(BYTES_PER_S)

    def records(self, now_ms: int) -> int:
        """How many records may be shown."""
        passed_s = max(0, now_ms - self._filled_ms) / 1e3
        self._filled_ms = now_ms
        self._records = min(RECORDS_PER_S, self._records + passed_s * RECORDS_PER_S)
        self.bytes = min(BYTES_PER_S, self.bytes + passed_s * BYTES_PER_S)
        return int(self._records)

    def spend(self, records: int, size_bytes: int) -> None:
        """So much was shown."""
        self._records -= records
        self.bytes -= size_bytes


class Seen(NamedTuple):
    """Records as the inside of a JSON array, their number, and where they end."""

    records: bytes
    count: int  # type: ignore[assignment]
    size_bytes: int
    skipped: int
    to_seq: int


class Peek:
    """Follows one topic, or what a tag selects of it, for any number of viewers."""

    def __init__(self, engine: Engine, name: str, tag: Predicate | None, now_ms: int) -> None:
        self._engine, self._name, self._tag = engine, name, tag
        self._allowance = Allowance(now_ms)
        self._skipped = 0
        self._looked_ms = now_ms - FLOOD_MS
        self._scanned_to = self.to_seq = self._head()
        """Up to where viewers have been told."""

    def look(self, now_ms: int) -> bytes | None:
        """The members of the next `peek`, without braces; None if there is nothing to tell yet."""
        head_seq = self._head()
        if head_seq < self.to_seq:  # the topic was recreated
            self._scanned_to = self.to_seq = 0
        if head_seq == self._scanned_to:
            return None
        if head_seq - self._scanned_to > FLOOD and 0 <= now_ms - self._looked_ms < FLOOD_MS:
            return None
        allowed = self._allowance.records(now_ms)
        if not allowed:
            return None
        self._looked_ms = now_ms
        seen = self._read(self._scanned_to, head_seq, allowed, now_ms)
        self._scanned_to = head_seq
        self._skipped += seen.skipped
        if not seen.count and not self._skipped:
            return None
        self._allowance.spend(seen.count, seen.size_bytes)
        skipped, self._skipped = self._skipped, 0
        before, self.to_seq = self.to_seq, head_seq
        return members(self._name, now_ms, before, seen._replace(skipped=skipped))

    def newest(self, now_ms: int) -> bytes:
        """The members of what a viewer who comes now is told first."""
        seen = self._read(0, self.to_seq, NEWEST, now_ms)
        first = self.to_seq if self._tag is not None else max(0, self.to_seq - NEWEST)
        return members(self._name, now_ms, first, seen._replace(skipped=0))

    def gap(self, after_seq: int, now_ms: int) -> bytes | None:
        """The members that account for what a viewer was not told; None if that is nothing."""
        if after_seq >= self.to_seq:
            return None
        return members(
            self._name, now_ms, after_seq, Seen(b"", 0, 0, self.to_seq - after_seq, self.to_seq)
        )

    def _head(self) -> int:
        topic = self._engine.registry.topics.get(self._name)
        return 0 if topic is None else topic.head_seq

    def _read(self, after_seq: int, to_seq: int, most: int, now_ms: int) -> Seen:
        """The newest records in a range. Not by the engine: looking on is no use of the topic."""
        scanned = most if self._tag is None else SCAN_MAX
        start = max(after_seq, to_seq - scanned)
        request = ReadRequest(start, scanned, include_tags=True, tag=self._tag)
        topic = self._engine.registry.topics.get(self._name)
        if topic is None:
            return Seen(b"", 0, 0, 0, to_seq)
        try:
            found = read(topic, request, now_ms, self._engine.limits, to_seq).found
        except NotLoaded:
            found = Found((), (), ())
        text, shown, size_bytes = self._shown(found, most)
        # Without a filter, every seq that is not shown was skipped; with one, what did not match
        # was not.
        left_out = to_seq - after_seq if self._tag is None else start - after_seq + len(found.seqs)
        return Seen(text, shown, size_bytes, left_out - shown, to_seq)

    def _shown(self, found: Found, most: int) -> tuple[bytes, int, int]:
        """The newest of some records, within the allowance of bytes, in order; number and size."""
        room = max(self._allowance.bytes, RECORD_BYTES_MAX)
        first = max(0, len(found.seqs) - most)
        newest = Found(found.seqs[first:], found.times[first:], found.records[first:])
        written = sum(map(_written, newest.records))
        if written <= RECORD_BYTES_MAX and newest.seqs:  # small ones, encoded together
            text = records_json(newest, include_tags=True)
            if len(text) <= room:
                return text, len(newest.seqs), len(text)
        shown: list[bytes] = []
        size_bytes = 0
        for seq, ts_ms, record in zip(*map(reversed, newest), strict=True):
            text = _shown_record(seq, ts_ms, record)
            if size_bytes + len(text) > room:
                break
            size_bytes += len(text)
            shown.append(text)
        return b",".join(shown[::-1]), len(shown), size_bytes


def members(topic: str, now_ms: int, from_seq: int, seen: Seen) -> bytes:
    """The members of a `peek`, without braces."""
    return (
        b'"at":%d,"topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b],"skipped":%d'
        % (now_ms, encode(topic), from_seq, seen.to_seq, seen.to_seq, seen.records, seen.skipped)
    )


def _shown_record(seq: int, ts_ms: int, record: RawRecord) -> bytes:
    """A record as JSON, without data and meta if it is too large to be pushed unasked."""
    one = Found((seq,), (ts_ms,), (record,))
    # As they were written, records may have blanks; so this is the most that it can be.
    size_bytes = _written(record)
    if size_bytes > RECORD_BYTES_MAX:
        size_bytes = size_of(record)
    if size_bytes <= RECORD_BYTES_MAX:
        return records_json(one, include_tags=True)
    bare = records_json(one, include_tags=True, include_meta=False, include_data=False)
    return b'%b,"cut":%d}' % (bare[:-1], size_bytes)


def _written(record: RawRecord) -> int:
    return len(record.data) + (0 if record.meta is None else len(record.meta))
