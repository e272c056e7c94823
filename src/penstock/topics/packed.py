"""Records as the bytes they came in, until someone reads them.

A record in memory is an object, two or three more that it is made of, and the request it came in.
Most records are read seldom or never, so the request alone is kept, and what is read is decoded
again: from a run of slots in as few calls as there are requests in it, and only once for readers
who go through a large request in small steps.

>>> packed = Packed(7, b'{"records":[{"data":1},{"data":2,"tag":"x"}]}')
>>> [bytes(record.data) for record in unpacked([packed, packed], 7)]
[b'1', b'2']
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import Final

from penstock.kernel.units import MIB
from penstock.topics.batch import decode_each, decode_records
from penstock.topics.model import Record, Routed

OPENED_BYTES_MAX: Final = 4 * MIB


class Packed:
    """The request that brought several records; each of their slots has it until it is empty."""

    __slots__ = ("body", "first_seq")

    def __init__(self, first_seq: int, body: bytes) -> None:
        self.first_seq = first_seq
        self.body = body


Item = Record | bytes | Packed | None
"""What a slot has: a record, the request that brought it alone or with others, or nothing."""


def unpacked(items: list[Item], first_seq: int) -> list[Record | None]:
    """The records of consecutive slots, of which the first has this seq."""
    kinds = set(map(type, items))
    if kinds <= _AS_THEY_ARE:
        return items  # type: ignore[return-value]
    if kinds == _ALONE:
        return decode_each(items)  # type: ignore[arg-type,return-value]
    found: list[Record | None] = []
    while len(found) < len(items):
        item = items[len(found)]
        if type(item) is Packed:
            skipped = first_seq + len(found) - item.first_seq
            wanted = skipped + len(items) - len(found)
            found += opened.records(item)[skipped:wanted]
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
        return opened.records(item)[seq - item.first_seq]
    return item  # type: ignore[return-value]


class Opened:
    """Requests that were decoded of late, with their records; the oldest go first."""

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
            while self.kept_bytes > self._bytes_max:
                oldest = next(iter(self._kept))
                del self._kept[oldest]
                self.kept_bytes -= len(oldest.body)
        return found


opened: Final = Opened()
_AS_THEY_ARE: Final = {Record, Routed, NoneType}
_ALONE: Final = {bytes}
