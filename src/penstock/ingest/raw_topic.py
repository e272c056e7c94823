"""The durable topic behind the edge: its records, and the port through which the edge writes it.

A message is one record: `data` is the text of its payload in base64, `node` the device, `tag` the
message id in decimal. So a reader needs nothing but the record to know which message it is. What
the edge remembers of devices is a checkpoint in a topic beside it.

>>> body = encode_batch([Message(EdgeDevice("meter-7"), 12, b"payload")], key="after-3")
>>> b'"records":[{"data":"cGF5bG9hZA==","tag":"12","node":"meter-7"}]' in body
True
>>> identity_of("meter-7", "12")
('meter-7', 12)
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from penstock.ingest.reassemble import EdgeDevice, Message, Seen
from penstock.kernel.errors import Corrupt, Rejected

RAW_TOPIC: Final = "ingest.raw"
REJECT_TOPIC: Final = "ingest.rejects"
KEY_WINDOW_MS: Final = 600_000
"""How long the topic remembers which append came after which seq."""

RAW_OPTIONS: Final[dict[str, Any]] = {
    "durability": "fsync",
    "idempotency_window_ms": KEY_WINDOW_MS,
}
REJECT_OPTIONS: Final[dict[str, Any]] = {"durability": "disk", "cap_records": 10_000}
DEVICES_OPTIONS: Final[dict[str, Any]] = {"durability": "fsync"}

Identity: TypeAlias = tuple[str, int]
"""A device and one of its message ids."""

DEVICES_PER_RECORD: Final = 1_000
MESSAGE_ID_MAX: Final = 2**64 - 1


class TooLarge(Rejected):
    """The topic permanently refuses a record or a write of that size."""

    code = "too_large"


class TopicNames(NamedTuple):
    """Where messages, rejects and the edge's memory of devices go."""

    raw: str = RAW_TOPIC
    rejects: str = REJECT_TOPIC

    @property
    def devices(self) -> str:
        """Checkpoints of what is durable of each device."""
        return f"{self.raw}.devices"


class Landed(NamedTuple):
    """Where a write is. `deduped`: a write with the same key had been there before."""

    first_seq: int
    last_seq: int
    deduped: bool


class IdentityPage(NamedTuple):
    """Which messages stand after a seq; those of other writers are None."""

    identities: list[Identity | None]
    next_from_seq: int
    caught_up: bool


class RawTopic(Protocol):
    """The topics that an edge writes: those of an engine in this process, or of a server.

    No call is retried here. Each raises `TooLarge` if it can never succeed, and any other
    `PenstockError` if a later try may.
    """

    async def open(self) -> None:
        """Make the topics as they have to be."""
        ...

    async def append(self, body: bytes, key: str) -> Landed:
        """Append the records of a body, all or none; returns when they are durable."""
        ...

    async def identities(self, from_seq: int) -> IdentityPage:
        """A page of the messages after a seq."""
        ...

    async def load(self) -> list[bytes]:
        """The records of the topic of devices, oldest first."""
        ...

    async def save(self, records: Sequence[bytes]) -> None:
        """Write records to the topic of devices, together, and remove all before them."""
        ...

    async def reject(self, records: Sequence[bytes]) -> None:
        """Write JSON to the reject topic."""
        ...

    async def close(self) -> None:
        """Give back what `open` took."""
        ...


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


def identity_of(node: str | None, tag: str | None) -> Identity | None:
    """Which message a record is; None if it was not written by an edge."""
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


def encode_checkpoint(seq: int, devices: Mapping[str, EdgeDevice]) -> list[bytes]:
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
            raise Corrupt(f"the edge's checkpoint cannot be read: {error}") from error
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
        raise Corrupt(f"the edge's checkpoint cannot be read: {error}") from error
    return Checkpoint(whole[0].seq if whole else 0, seen)
