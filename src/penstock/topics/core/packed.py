"""Records as the bytes they arrived in, decoded when read.

A decoded record costs an object, two or three more inside it, and the request it came in. Most
records are read rarely or never, so only the request is kept and decoded on demand: one call per
request in a run of slots, and only once for readers that go through a large request in small steps.
The first reader of a very large request splits it, so that later ones need not decode all of it for
a few records.

>>> packed = Packed(7, b'{"records":[{"data":1},{"data":2,"tag":"x"}]}')
>>> [bytes(record.data) for record in unpacked([packed, packed], 7)]
[b'1', b'2']
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import NoneType
from typing import Final

from penstock.kernel.units import KIB, MIB
from penstock.topics.core.batch import decode_each, decode_records, encode_records
from penstock.topics.core.record import Record, Routed

OPENED_BYTES_MAX: Final = 4 * MIB
WHOLE_BYTES_MAX: Final = MIB
"""A larger request is split: reading one record would decode all of them."""
PIECE_BYTES: Final = 128 * KIB


class Packed:
    """A request with several records, shared by all of their slots."""

    __slots__ = ("_pieces", "body", "first_seq")

    def __init__(self, first_seq: int, body: bytes) -> None:
        self.first_seq = first_seq
        self.body = body
        self._pieces: list[Packed] | None = None

    def piece(self, seq: int) -> Packed:
        """The part with the record of a seq: the whole request, unless it is very large."""
        if self._pieces is None:
            if len(self.body) <= WHOLE_BYTES_MAX:
                return self
            self._pieces = _cut(self)
            self.body = b""
        return self._pieces[bisect_right(self._pieces, seq, key=_first_seq) - 1]

    def pieces(self) -> list[Packed]:
        """All parts of the request."""
        return [self] if self._pieces is None else self._pieces


Item = Record | bytes | Packed | None
"""The content of a slot: a record, a request with this record alone or with others, or nothing."""


def unpacked(items: list[Item], first_seq: int) -> list[Record | None]:
    """The records of consecutive slots, the first of which has this seq."""
    kinds = set(map(type, items))
    if kinds <= _AS_THEY_ARE:
        return items  # type: ignore[return-value]
    if kinds == _ALONE:
        return decode_each(items)  # type: ignore[arg-type,return-value]
    found: list[Record | None] = []
    while len(found) < len(items):
        item = items[len(found)]
        if type(item) is Packed:
            seq = first_seq + len(found)
            piece = item.piece(seq)
            skipped = seq - piece.first_seq
            wanted = skipped + len(items) - len(found)
            found += opened.records(piece)[skipped:wanted]
        else:
            found.append(unpack(item, 0))
    if NoneType in kinds:
        return [None if item is None else record for item, record in zip(items, found, strict=True)]
    return found


def unpack(item: Item, seq: int) -> Record | None:
    """The record of one slot."""
    if type(item) is bytes:
        return decode_records(item)[0]
    if type(item) is Packed:
        piece = item.piece(seq)
        return opened.records(piece)[seq - piece.first_seq]
    return item  # type: ignore[return-value]


class Opened:
    """Recently decoded requests with their records; the oldest are evicted first."""

    def __init__(self, bytes_max: int = OPENED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[Packed, Sequence[Record]] = {}
        self.kept_bytes = 0

    def records(self, packed: Packed) -> Sequence[Record]:
        """All records of a request."""
        found = self._kept.get(packed)
        if found is None:
            found = decode_records(packed.body)
            self._kept[packed] = found
            self.kept_bytes += len(packed.body)
            while self.kept_bytes > self._bytes_max and len(self._kept) > 1:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self.kept_bytes -= len(oldest.body)
        return found


def _cut(packed: Packed) -> list[Packed]:
    """Split a request into pieces of at least one record each."""
    records = decode_records(packed.body)
    pieces: list[Packed] = []
    start = end_bytes = 0
    for end, total_bytes in enumerate(accumulate(map(_bytes_of, records)), 1):
        if total_bytes >= end_bytes + PIECE_BYTES or end == len(records):
            pieces.append(Packed(packed.first_seq + start, encode_records(records[start:end])))
            start, end_bytes = end, total_bytes
    return pieces


def _bytes_of(record: Record) -> int:
    return len(record.data) + (0 if record.meta is None else len(record.meta))


def _first_seq(packed: Packed) -> int:
    return packed.first_seq


opened: Final = Opened()
_AS_THEY_ARE: Final = {Record, Routed, NoneType}
_ALONE: Final = {bytes}
