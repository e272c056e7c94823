"""Entries as log bytes: a version, then the entries of one commit as MessagePack.

>>> decode_entries(encode_entries([Dropped("t")]))
[Dropped(topic='t')]

Entries that an older version can say are the same entries again, whichever version they were
written in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.kernel.errors import Corrupt
from penstock.raft.members import MARK, decode_members
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import (  # noqa: F401  (Dropped: the example above)
    Appended,
    Dropped,
    JobsNacked,
    MembersChanged,
)
from penstock.topics.core.partition import Entry
from penstock.topics.core.versions import COMPLETE, NEWEST, REASONS, needed

VERSIONS_END: Final = 0x80
"""Bytes from here on never begin entries of any version."""
_VERSIONS: Final = tuple(bytes((version,)) for version in range(1, NEWEST + 1))
"""Those that can be read."""
_LARGE_BYTES: Final = 1_024
# MessagePack: an array of seven, bytes with a four-byte length, and two nils.
_APPENDED: Final = b"\x97"
_BYTES: Final = b"\xc6"
_NO_MORE: Final = b"\xc0\xc0"


class _Nacked2(msgspec.Struct, frozen=True, array_like=True, tag="n"):
    """`JobsNacked` as version 2 has it."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    due_ms: int
    unseen: bool


def encode_entries(entries: Sequence[Entry], version: int = NEWEST) -> bytes:
    """Encode one payload of the log, in a version that can say these entries."""
    mark = bytes((version,))
    if version < COMPLETE:
        entries = [_older(entry, version) for entry in entries]
    first = entries[0] if entries else None
    if type(first) is not Appended or len(first.batch.body) < _LARGE_BYTES:
        return mark + _ENCODER.encode(entries)
    # An encoder's buffer is moved whenever it grows, so large bodies are copied once, into their
    # place.
    parts = [mark, _array_head(len(entries))]
    for entry in entries:
        if type(entry) is Appended and entry.key is None and entry.feed is None:
            body = entry.batch.body
            head = _ENCODER.encode(("a", entry.topic, entry.first_seq, entry.now_ms))
            parts += (_APPENDED, head[1:], _BYTES + len(body).to_bytes(4, "big"), body, _NO_MORE)
        else:
            parts.append(_ENCODER.encode(entry))
    return b"".join(parts)


class NewerEntries(Corrupt):
    """A newer release wrote these entries. Nothing is damaged: this program is too old for them."""


def decode_entries(payload: bytes) -> list[Entry]:
    """The entries of one payload, or `Corrupt`."""
    if not payload.startswith(_VERSIONS):
        if payload.startswith(MARK):
            return [MembersChanged(decode_members(payload))]
        if payload and NEWEST < payload[0] < VERSIONS_END:
            raise NewerEntries(
                f"the log has entries of version {payload[0]}, and this release reads them up to "
                f"version {NEWEST}: start the newer release again"
            )
        raise Corrupt(f"the log has an entry of another program, which begins with {payload[:8]!r}")
    try:
        return _DECODER.decode(memoryview(payload)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Corrupt(f"malformed entries of a commit: {error}") from error


def _older(entry: Entry, version: int) -> Any:
    """An entry in the form of an older version."""
    if needed(entry) > version:
        raise ValueError(f"version {version} of entries cannot say {entry!r:.200}")
    if type(entry) is JobsNacked and version < REASONS:
        return _Nacked2(entry.topic, entry.now_ms, entry.seqs, entry.due_ms, entry.unseen)
    return entry


def _array_head(count: int) -> bytes:
    """The MessagePack header of an array."""
    if count < 1 << 4:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def _encode_batch(value: Any) -> bytes:
    assert isinstance(value, Batch), value
    return value.body


def _decode_batch(kind: type, value: Any) -> Any:
    assert kind is Batch, kind
    if not isinstance(value, bytes):
        raise ValueError(f"a batch must be bytes, not {type(value).__name__}")
    return Batch.decoded(value)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_encode_batch)
_DECODER: Final = msgspec.msgpack.Decoder(list[Entry], dec_hook=_decode_batch)
