"""Records on their way out: any Python object, a `Record` with its tag, node and meta, or raw JSON.

>>> encode_record({"kwh": 1.5})
b'{"data":{"kwh":1.5}}'
>>> encode_record(Record({"kwh": 1.5}, tag="meter-7"))
b'{"data":{"kwh":1.5},"tag":"meter-7"}'
>>> encode_record(b' {"already": "JSON"}')
b'{"data": {"already": "JSON"}}'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from penstock.client.errors import InvalidRequest

_ENCODER: Final = msgspec.json.Encoder()
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record to be written. `bytes` (and `msgspec.Raw`) as `data` are taken as JSON text."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None


def encode_record(record: object) -> bytes:
    """A record as the protocol wants it. Text that is not JSON is refused here, by name."""
    if not isinstance(record, Record):
        return b'{"data":%b}' % encode_data(record)
    if isinstance(record.data, bytes | bytearray | memoryview):
        record = msgspec.structs.replace(record, data=msgspec.Raw(checked_json(record.data)))
    try:
        return _ENCODER.encode(record)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"expected a record that can be JSON, found {error}") from error


def encode_data(data: object) -> bytes:
    """A payload as JSON."""
    if isinstance(data, bytes | bytearray | memoryview):
        return checked_json(data)
    try:
        return _ENCODER.encode(data)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"expected data that can be JSON, found {error}") from error


def checked_json(text: bytes | bytearray | memoryview) -> bytes:
    """JSON text that is known to be JSON: a slip in it must not become another record."""
    raw = bytes(text)
    try:
        _SYNTAX.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected JSON text, found {raw[:80]!r}: {error}") from error
    return raw


def encode_records(records: Iterable[object]) -> bytes:
    """The array of records of a write."""
    if isinstance(records, str | bytes | bytearray | Mapping | Record) or not isinstance(
        records, Iterable
    ):
        kind = type(records).__name__
        raise InvalidRequest(f"expected a list of records, found one {kind}: put it into a list")
    if isinstance(records, list | tuple) and not any(isinstance(r, _SPECIAL) for r in records):
        return encode_data([_Plain(record) for record in records])
    return b"[%b]" % b",".join([encode_record(record) for record in records])


class _Plain(msgspec.Struct, gc=False):
    """A record of nothing but data, so that a whole batch is encoded in one call."""

    data: Any


_SPECIAL: Final = (Record, bytes, bytearray, memoryview)
