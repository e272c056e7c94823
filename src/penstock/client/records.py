"""Records to send: any Python object, a `Record` with its tag, node and meta, or raw JSON.

>>> encode_record({"kwh": 1.5})
b'{"data":{"kwh":1.5}}'
>>> encode_record(Record({"kwh": 1.5}, tag="meter-7"))
b'{"data":{"kwh":1.5},"tag":"meter-7"}'
>>> encode_record(b' {"already": "JSON"}')
b'{"data": {"already": "JSON"}}'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.requests import Record

_ENCODER: Final = msgspec.json.Encoder()
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)


class _Encoded(Record, frozen=True, omit_defaults=True):
    """A record as it was encoded: its payload is JSON text."""

    data: msgspec.Raw


_RECORD: Final = msgspec.json.Decoder(_Encoded)


def encode_record(record: object) -> bytes:
    """A record in the form of the protocol. Text that is not JSON is refused here."""
    if not isinstance(record, Record):
        return b'{"data":%b}' % encode_data(record)
    if isinstance(record.data, bytes | bytearray | memoryview | msgspec.Raw):
        record = msgspec.structs.replace(record, data=msgspec.Raw(checked_json(record.data)))
    try:
        encoded = _ENCODER.encode(record)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"the record cannot be encoded as JSON: {error}") from error
    check_numbers(record, encoded)
    return encoded


def decode_record(encoded: bytes) -> Record:
    """The record encoded in these bytes, to be inspected or sent again."""
    return _RECORD.decode(encoded)


def encode_data(data: object) -> bytes:
    """A payload as JSON."""
    if isinstance(data, bytes | bytearray | memoryview | msgspec.Raw):
        return checked_json(data)
    try:
        encoded = _ENCODER.encode(data)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"the data cannot be encoded as JSON: {error}") from error
    check_numbers(data, encoded)
    return encoded


def check_numbers(value: object, encoded: bytes) -> None:
    """Refuse nan and inf, which JSON does not have and the encoder turns into null.

    JSON without a null needs no further check. Otherwise the data is encoded again in a format that
    has such numbers, and every value is checked only if one may be among them.
    """
    if b"null" not in encoded:
        return
    try:
        if _NOT_FINITE.search(msgspec.msgpack.encode(value)) is None:
            return
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        pass  # valid only in JSON, such as integers of any size: check every value
    for place, number in _not_finite(value, ""):
        where = f" at {place}" if place else ""
        raise InvalidRequest(f"JSON has no number {number}{where}: use None")


def checked_json(text: bytes | bytearray | memoryview | msgspec.Raw) -> bytes:
    """JSON text, validated: an error in it must not change the record."""
    raw = bytes(text)
    try:
        _SYNTAX.decode(raw)
        _ = raw.isascii() or raw.decode()  # the parser does not check the contents of strings
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"bytes must be JSON text: {error}: {raw[:80]!r}") from error
    return raw


def encode_records(records: Iterable[object]) -> bytes:
    """The array of records of a write."""
    if isinstance(records, str | bytes | bytearray | Mapping | Record) or not isinstance(
        records, Iterable
    ):
        kind = type(records).__name__
        raise InvalidRequest(f"records must be a list, not one {kind}: put it into a list")
    if isinstance(records, list | tuple) and not any(isinstance(r, _SPECIAL) for r in records):
        return encode_data([_Plain(record) for record in records])
    return b"[%b]" % b",".join([encode_record(record) for record in records])


class _Plain(msgspec.Struct, gc=False):
    """A record with only data, so that a whole batch is encoded in one call."""

    data: Any


_SPECIAL: Final = (Record, bytes, bytearray, memoryview, msgspec.Raw)

_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""How nan and inf begin in MessagePack; other bytes may look the same."""


def _not_finite(value: object, place: str) -> Iterator[tuple[str, float]]:
    """The numbers that JSON does not have, each with its path."""
    if isinstance(value, float):
        if not isfinite(value):
            yield place, value
        return
    for name, each in _members(value):
        yield from _not_finite(each, f"{place}[{name!r}]")


def _members(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    names = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return ((name, getattr(value, name)) for name in names)
