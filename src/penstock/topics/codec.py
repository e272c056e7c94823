"""Entries as the bytes of the log: a version, then the entries of one commit as MessagePack.

>>> decode_entries(encode_entries([Dropped("t")]))
[Dropped(topic='t')]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.kernel.errors import Corrupt
from penstock.topics.batch import Batch
from penstock.topics.entries import Dropped  # noqa: F401  (for the example above)
from penstock.topics.partition import Entry

_VERSION: Final = b"\x01"


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """One payload of the log."""
    return _VERSION + _ENCODER.encode(entries)


def decode_entries(payload: bytes) -> list[Entry]:
    """The entries of one payload, or `Corrupt`."""
    if not payload.startswith(_VERSION):
        raise Corrupt(
            f"expected entries of version {_VERSION[0]}, found {payload[:1]!r}: "
            "they are of another program or of a newer version of this one"
        )
    try:
        return _DECODER.decode(memoryview(payload)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Corrupt(f"expected the entries of a commit, found: {error}") from error


def _encode_batch(value: Any) -> bytes:
    assert isinstance(value, Batch), value
    return value.body


def _decode_batch(kind: type, value: Any) -> Any:
    assert kind is Batch, kind
    if not isinstance(value, bytes):
        raise ValueError(f"expected the bytes of a batch, found {type(value).__name__}")
    return Batch.decoded(value)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_encode_batch)
_DECODER: Final = msgspec.msgpack.Decoder(list[Entry], dec_hook=_decode_batch)
