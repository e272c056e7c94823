"""Records, and checks of the size and shape of their JSON.

Payloads stay the JSON bytes that were written; only their size is checked.

>>> record = make_record(b'{"a": 1}', tag="x")
>>> bytes(record.data), size_of(record)
(b'{"a": 1}', 7)
>>> splice_meta(b'{"k":1}', b'"more":2')
b'{"k":1,"more":2}'
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Final

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


class Record(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One record as written. Its seq and time are kept by its topic.

    `data` and `meta` are slices of the request and keep its bytes alive.
    """

    data: Raw
    tag: str | None = None
    node: str | None = None
    meta: OptionalRaw = None


class Routed(Record, gc=False):
    """A record that came through routers, with the number of hops."""

    hops: int = 1


def hops_of(record: Record) -> int:
    """How many routers a record has come through."""
    return record.hops if type(record) is Routed else 0


def make_record(
    data: bytes, meta: bytes | None = None, tag: str | None = None, node: str | None = None
) -> Record:
    """A record of JSON that is known to be valid."""
    return Record(Raw(data), tag, node, None if meta is None else Raw(meta))


def size_of(record: Record) -> int:
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
        raise InvalidRequest("expected meta to be an object, found another kind of JSON")
    if len(meta) > limits.meta_bytes_max and compact_bytes(meta) > limits.meta_bytes_max:
        raise InvalidRequest(
            f"expected meta of at most {limits.meta_bytes_max} bytes, found {len(meta)}"
        )
    # An object has a colon per key, so it is parsed only when it may have too many.
    if meta.count(b":") > limits.meta_keys_max and meta_keys(meta) > limits.meta_keys_max:
        raise InvalidRequest(
            f"expected meta of at most {limits.meta_keys_max} keys, found {meta_keys(meta)}"
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
        raise InvalidRequest(f"expected JSON at most {DEPTH_MAX} deep, found it deeper")


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
