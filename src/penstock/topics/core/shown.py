"""Records in responses: compact JSON, keys in order, payloads as written.

>>> from penstock.topics.core.record import make_record
>>> found = Found([7], [1000], [make_record(b'{"a": 1}', tag="x")])
>>> records_json(found, include_tags=True)
b'{"$seq":7,"$tag":"x","$ts":1000,"data":{"a": 1}}'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.topics.core.record import Record


class Found(NamedTuple):
    """The records of a page in columns: seqs, times and contents."""

    seqs: Sequence[int]
    times: Sequence[int]
    records: Sequence[Record]


class _Plain(Struct, gc=False, rename={"seq": "$seq", "ts": "$ts"}):
    seq: int
    ts: int
    data: Any


class _Shown(
    Struct,
    gc=False,
    omit_defaults=True,
    rename={"node": "$node", "seq": "$seq", "tag": "$tag", "ts": "$ts"},
):
    """Every field's default is a value that no record has, so missing fields are omitted."""

    node: str | None = None
    seq: int = -1
    tag: str | None = None
    ts: int = -1
    data: Any = None
    meta: Any = None


_encode: Final = msgspec.json.Encoder().encode


def records_json(
    found: Found, *, include_tags: bool, include_meta: bool = True, include_data: bool = True
) -> bytes:
    """The records of a page as the inside of a JSON array.

    They become structs and are encoded together, in a third of the time of one by one.
    """
    seqs, times, records = found
    if include_data and is_plain(records):
        shown: list[Any] = list(map(_Plain, seqs, times, [record.data for record in records]))
    else:
        nothing = [None] * len(records)
        shown = list(
            map(
                _Shown,
                [record.node for record in records],
                seqs,
                [record.tag for record in records] if include_tags else nothing,
                times,
                [record.data for record in records] if include_data else nothing,
                [record.meta for record in records] if include_meta else nothing,
            )
        )
    return _encode(shown)[1:-1]


def is_plain(records: Sequence[Record]) -> bool:
    """Whether every record has only data."""
    for record in records:
        if record.node is not None or record.tag is not None or record.meta is not None:
            return False
    return True
