"""Messages as records of the raw topic, and what the edge remembers as records beside it.

A message is one record: `data` is the text of its payload in base64, `node` the device, `tag` the
message id in decimal. So a reader needs nothing but the record to know which message it is.

>>> body = encode_batch([Message(Device("meter-7"), 12, b"payload")], key="after-3")
>>> b'"records":[{"data":"cGF5bG9hZA==","tag":"12","node":"meter-7"}]' in body
True
>>> payload_of('"cGF5bG9hZA=="'), identity_of("meter-7", "12")
(b'payload', ('meter-7', 12))
"""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from penstock.ingest.reassemble import Device, Message
from penstock.ingest.seen import Seen
from penstock.kernel.errors import Corrupt

Identity: TypeAlias = tuple[str, int]
"""A device and one of its message ids."""

DEVICES_PER_RECORD: Final = 1_000


MESSAGE_ID_MAX: Final = 2**64 - 1


def encode_batch(messages: Iterable[Message], *, key: str) -> bytes:
    """The body of a write of messages; it makes no topic, which would not be as it has to be."""
    records = b",".join(
        [
            b'{"data":"%b","tag":"%d","node":"%b"}'
            % (b2a_base64(payload, newline=False), message_id, device.name_bytes)
            for device, message_id, payload in messages
        ]
    )
    return b'{"create":false,"idempotency_key":"%b","records":[%b]}' % (key.encode(), records)


def payload_of(data: str | bytes) -> bytes:
    """The payload of a raw record's data, as JSON has it."""
    return b64decode(data[1:-1])


def identity_of(node: str | None, tag: str | None) -> Identity | None:
    """Which message a record is; None if somebody else wrote it."""
    if node is None or tag is None or not (tag.isascii() and tag.isdigit()):
        return None
    message_id = int(tag)
    return (node, message_id) if message_id <= MESSAGE_ID_MAX else None


class Checkpoint(NamedTuple):
    """What the edge remembers of devices, true of every raw record up to a seq."""

    seq: int
    seen: dict[str, Seen]


class _Part(msgspec.Struct):
    seq: int
    part: int
    parts: int
    devices: dict[str, tuple[int, str]]


_PART: Final = msgspec.json.Decoder(_Part)


def encode_checkpoint(seq: int, devices: Mapping[str, Device]) -> list[bytes]:
    """The records of a checkpoint, to be written together."""
    rows = [(name, (device.seen.top, f"{device.seen.bits:x}")) for name, device in devices.items()]
    starts = range(0, max(1, len(rows)), DEVICES_PER_RECORD)
    return [
        msgspec.json.encode(
            _Part(seq, part, len(starts), dict(rows[start : start + DEVICES_PER_RECORD]))
        )
        for part, start in enumerate(starts)
    ]


def decode_checkpoint(records: Sequence[bytes]) -> Checkpoint:
    """The last whole checkpoint among records, oldest first; an empty one if there is none."""
    parts: list[_Part] = []
    whole: list[_Part] = []
    for record in records:
        try:
            part = _PART.decode(record)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"expected a checkpoint of the edge, found: {error}") from error
        parts = [*parts, part] if part.part else [part]
        if part.part == part.parts - 1 and len(parts) == part.parts:
            whole = parts
    try:
        seen = {
            name: Seen(top, int(bits, 16))
            for part in whole
            for name, (top, bits) in part.devices.items()
        }
    except ValueError as error:
        raise Corrupt(f"expected a checkpoint of the edge, found: {error}") from error
    return Checkpoint(whole[0].seq if whole else 0, seen)
