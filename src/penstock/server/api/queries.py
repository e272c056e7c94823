"""Parsing requests: lenient query values, JSON bodies, page cursors, accepted media types.

>>> query = Query("touch=false&page_size=many&prefix=a%20b")
>>> query.flag("touch", True), query.number("page_size", 100), query.text("prefix")
(False, 100, 'a b')
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from penstock.kernel.units import MIB, format_bytes
from penstock.protocol.errors import (
    InvalidRequest,
    NotAcceptable,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from penstock.protocol.limits import PAGE_SIZE, PAGE_SIZE_MAX, TopicLimits
from penstock.protocol.routes import ARROW
from penstock.protocol.values import U64_MAX, check_text
from penstock.topics.core.batch import WriteRequest

OBJECT_BYTES_MAX: Final = MIB
"""The limit on a body that is decoded to objects: objects are many times as large as their JSON."""
EVENT_STREAM: Final = "text/event-stream"
_JSON: Final = "application/json"
_WEIGHT: Final = re.compile(r";\s*q\s*=\s*([01](?:\.[0-9]*)?)\s*(?:;|$)")
_DIGITS_MAX: Final = len(str(U64_MAX))
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
_decode: Final = msgspec.json.Decoder().decode


class Query:
    """The query of a request. A value that cannot be parsed counts as absent."""

    __slots__ = ("_values",)

    def __init__(self, raw: str) -> None:
        self._values: dict[str, str] = {}
        if raw:
            for name, value in parse_qsl(raw, keep_blank_values=True, errors="replace"):
                self._values.setdefault(name, value)

    def text(self, name: str) -> str | None:
        """A string, or None if absent."""
        return self._values.get(name)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean: true, 1, false or 0; otherwise the default."""
        return _FLAGS.get(self._values.get(name, ""), default)

    def number(self, name: str, default: int) -> int:
        """A non-negative integer that fits 64 bits; otherwise the default."""
        value = self._values.get(name, "")
        if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX):
            return default
        number = int(value)
        return number if number <= U64_MAX else default

    def page_size(self) -> int:
        """How many rows a page has."""
        return min(max(self.number("page_size", PAGE_SIZE), 1), PAGE_SIZE_MAX)

    def after(self) -> str | None:
        """The name after which a page begins, from its cursor."""
        cursor = self._values.get("cursor")
        return None if cursor is None or cursor == "" else parse_cursor(cursor)


def check_json(headers: Mapping[str, str]) -> None:
    """Refuse a body that is not declared to be JSON."""
    kind = headers.get("content-type", "")
    if not kind.lstrip().lower().startswith(_JSON):
        raise UnsupportedMediaType(f"Content-Type must be {_JSON}, not {kind or 'none'!r}")


def json_body(body: bytes, headers: Mapping[str, str], *, may_be_empty: bool = False) -> bytes:
    """A body that is declared to be JSON and not too long to be decoded to objects.

    Where allowed, an empty body is an empty object.
    """
    if may_be_empty and not body:
        return b"{}"
    check_json(headers)
    if len(body) > OBJECT_BYTES_MAX:
        raise PayloadTooLarge(
            f"the body has {len(body)} bytes; without records at most "
            f"{format_bytes(OBJECT_BYTES_MAX)} are accepted"
        )
    return body


def keyed(write: WriteRequest, headers: Mapping[str, str], limits: TopicLimits) -> WriteRequest:
    """A write with the idempotency key of the header, decoded as UTF-8, unless the body has one."""
    key = _header_key(headers)
    if not key or write.key is not None:
        return write
    check_text("idempotency_key", key, limits.key_bytes_max)
    return write._replace(key=key)


def _header_key(headers: Mapping[str, str]) -> str | None:
    key = headers.get("idempotency-key")
    if key:
        with suppress(UnicodeDecodeError):
            key = key.encode("latin-1").decode()
    return key


class _Keyed(msgspec.Struct):
    """What a write's body says about its key."""

    idempotency_key: str | None = None
    writes: list[_Keyed] = []


_decode_keyed: Final = msgspec.json.Decoder(_Keyed).decode


def key_of(body: bytes, headers: Mapping[str, str]) -> str | None:
    """The idempotency key of a request, of one write or of several that share it.

    Decodes the body again: for errors, which are rare.

    >>> key_of(b'{"records":[{"data":1}],"idempotency_key":"a"}', {})
    'a'
    >>> key_of(b'{"writes":[{"idempotency_key":"a"},{"idempotency_key":"a"}]}', {})
    'a'
    >>> key_of(b'{"seqs":[1]}', {"idempotency-key": "b"})
    'b'
    """
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        found = _decode_keyed(body)
        keys = {each.idempotency_key for each in (found, *found.writes)} - {None}
        if keys:
            return keys.pop() if len(keys) == 1 else None
    return _header_key(headers) or None


def check_accepts_events(headers: Mapping[str, str]) -> None:
    """Refuse a client that does not accept an event stream."""
    accept = headers.get("accept")
    if accept is not None and EVENT_STREAM not in accept and "*/*" not in accept:
        raise NotAcceptable(
            f"this route answers with {EVENT_STREAM}, which Accept does not allow: {accept!r}"
        )


def wants_arrow(headers: Mapping[str, str]) -> bool:
    """Whether a reader names Arrow explicitly and does not prefer JSON."""
    accept = headers.get("accept", "")
    return bool(accept) and preferred(accept, (ARROW, _JSON)) == ARROW


def preferred(accept: str, kinds: Sequence[str]) -> str | None:
    """The most preferred of some media types, the first on a tie; None if none is named."""
    weights = _weights(accept.lower())
    best = max(kinds, key=lambda kind: weights.get(kind, 0.0))
    return best if weights.get(best, 0.0) > 0.0 else None


def arrow_compression(headers: Mapping[str, str]) -> str | None:
    """The compression that a reader accepts for columns, requested by `;compression=lz4`."""
    accepted = headers.get("accept", "").replace(" ", "")
    return "lz4" if f"{ARROW};compression=lz4" in accepted else None


def make_cursor(after: str) -> str:
    """The cursor of the page that begins after a name."""
    return b64encode(msgspec.json.encode({"after": after})).decode()


def parse_cursor(cursor: str) -> str:
    """The name in a cursor, or `InvalidRequest`."""
    try:
        value = _decode(b64decode(cursor, validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"{cursor!r} is not a cursor: send next_cursor of the page before"
        ) from error
    after = value.get("after") if isinstance(value, dict) else None
    if not isinstance(after, str):
        raise InvalidRequest(f"{cursor!r} is not a cursor: send next_cursor of the page before")
    return after


def _weights(accept: str) -> dict[str, float]:
    """The preference for each named media type, from 0 (not at all) to 1."""
    weights: dict[str, float] = {}
    for named in accept.split(","):
        kind = named.partition(";")[0].strip()
        found = _WEIGHT.search(named)
        weights[kind] = max(weights.get(kind, 0.0), 1.0 if found is None else float(found[1]))
    return weights
