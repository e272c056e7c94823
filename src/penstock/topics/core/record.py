"""Records, their JSON in requests and in responses, and checks of its size and shape.

Payloads stay the JSON bytes that were written; only their size is checked. This module cannot be
compiled: the decoder needs the annotations of its classes.

>>> record = make_record(b'{"a": 1}', tag="x")
>>> bytes(record.data), size_of(record)
(b'{"a": 1}', 7)
>>> splice_meta(b'{"k":1}', b'"more":2')
b'{"k":1,"more":2}'
>>> records_json(Found([7], [1000], [record]), include_tags=True)
b'{"$seq":7,"$tag":"x","$ts":1000,"data":{"a": 1}}'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import TopicLimits

_BLANKS: Final = b" \t\n\r"
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NEITHER_WAY: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = bytes.maketrans(b"[]{}", b"\x01\xff\x01\xff")
_MEMBERS: Final = msgspec.json.Decoder(dict[str, Raw])
DEPTH_MAX: Final = 256
"""The deepest nesting of arrays and objects: an accepted record must be decodable again, even from
deep in a call stack.
"""
_HALF_DEPTH: Final = DEPTH_MAX // 2

if TYPE_CHECKING:
    OptionalRaw = Raw | None
else:
    OptionalRaw = Raw  # the decoder does not support the union; None means not sent


class RawRecord(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One record as written. Its seq and time are kept by its topic.

    `data` and `meta` are slices of the request and keep its bytes alive.
    """

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: OptionalRaw = None


class Routed(RawRecord, gc=False):
    """A record that came through routers, with the number of hops."""

    hops: int = 1


def hops_of(record: RawRecord) -> int:
    """How many routers a record has come through."""
    return record.hops if type(record) is Routed else 0


def make_record(
    data: bytes, meta: bytes | None = None, tag: str | None = None, node: str | None = None
) -> RawRecord:
    """A record of JSON that is known to be valid."""
    return RawRecord(Raw(data), tag, node, None if meta is None else Raw(meta))


def size_of(record: RawRecord) -> int:
    """The size of data and meta as compact JSON."""
    data, meta = record.data, record.meta
    return compact_bytes(data) + (compact_bytes(meta) if meta is not None else 0)


def splice_meta(meta: bytes | None, members: bytes) -> bytes:
    """Add members to a JSON object without changing the bytes of existing ones."""
    if meta is None:
        return b"{" + members + b"}"
    inside = meta.strip(_BLANKS)[1:-1]
    return b"{" + inside + (b"," if inside.strip(_BLANKS) else b"") + members + b"}"


def check_meta(meta: bytes, limits: TopicLimits) -> None:
    """Refuse a meta that is not an object, is too large or has too many keys."""
    if not meta.lstrip(_BLANKS).startswith(b"{"):
        raise InvalidRequest("meta must be a JSON object")
    if len(meta) > limits.meta_bytes_max and compact_bytes(meta) > limits.meta_bytes_max:
        raise InvalidRequest(
            f"meta has {len(meta)} bytes: at most {limits.meta_bytes_max} are allowed"
        )
    # An object has a colon per key, so it is parsed only when it may have too many.
    if meta.count(b":") > limits.meta_keys_max and meta_keys(meta) > limits.meta_keys_max:
        raise InvalidRequest(
            f"meta has {meta_keys(meta)} keys: at most {limits.meta_keys_max} are allowed"
        )


def check_depth(raw: Raw | bytes) -> None:
    """Refuse JSON that is nested too deeply.

    Deep JSON has many brackets of one kind. Removing a few is faster than counting them all.
    """
    text = bytes(raw)
    few = len(text) - _HALF_DEPTH
    if (
        len(text.replace(b"[", b"", _HALF_DEPTH)) == few
        or len(text.replace(b"{", b"", _HALF_DEPTH)) == few
    ) and depth_of(text) > DEPTH_MAX:
        raise InvalidRequest(
            f"the JSON is nested too deeply: at most {DEPTH_MAX} levels are allowed"
        )


def depth_of(text: bytes) -> int:
    """The nesting depth of JSON."""
    steps = _STRING.sub(b"", text).translate(_STEPS, _NEITHER_WAY)
    return max(accumulate(memoryview(steps).cast("b")), default=0)


def meta_keys(meta: bytes) -> int:
    """How many keys a JSON object has."""
    return len(_MEMBERS.decode(meta))


def has_member(meta: bytes, key: str) -> bool:
    """Whether a JSON object has a key, with any escaping."""
    return (key.encode() in meta or b"\\" in meta) and key in _MEMBERS.decode(meta)


def without_members(meta: bytes, prefix: str) -> bytes:
    """A JSON object without the members whose keys begin with a prefix."""
    if prefix.encode() not in meta and b"\\" not in meta:
        return meta
    kept = {key: raw for key, raw in _MEMBERS.decode(meta).items() if not key.startswith(prefix)}
    return msgspec.json.encode(kept)


def compact_bytes(raw: Raw | bytes) -> int:
    """The size of JSON without whitespace between tokens."""
    return len(msgspec.json.format(bytes(raw), indent=-1))


class WriteBody(Struct, forbid_unknown_fields=True):
    """A write with only the known fields."""

    records: list[RawRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class PlainRecord(Struct, gc=False, forbid_unknown_fields=True):
    """A record with data only."""

    data: Raw


class PlainBody(Struct, forbid_unknown_fields=True):
    """A write of such records, the most common kind: decodes faster than the general one."""

    records: list[PlainRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class LooseRecord(RawRecord, gc=False, forbid_unknown_fields=False):
    """A record with unknown fields, which are ignored."""


class LooseBody(Struct, kw_only=True):
    """A write with unknown fields, which are ignored."""

    records: list[LooseRecord]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool | None = None


class RoutedBody(Struct):
    """Records that came through routers, as stored in the log."""

    records: list[Routed]


class Found(NamedTuple):
    """The records of a page in columns: seqs, times and contents."""

    seqs: Sequence[int]
    times: Sequence[int]
    records: Sequence[RawRecord]


class _PlainShown(Struct, gc=False, rename={"seq": "$seq", "ts": "$ts"}):
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
        shown: list[Any] = list(map(_PlainShown, seqs, times, [record.data for record in records]))
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


def is_plain(records: Sequence[RawRecord]) -> bool:
    """Whether every record has only data."""
    for record in records:
        if record.node is not None or record.tag is not None or record.meta is not None:
            return False
    return True
