"""What members of a group say to each other, and its bytes: a version first, then an array.

Every message carries the term its sender is in, so that one rule covers terms: a larger one makes
the receiver a follower, and an answer of a smaller one changes nothing.

>>> beat = Heartbeat(2, 1, 7, commit=40, read_round=3)
>>> decode(encode(beat)) == beat
True
"""

from __future__ import annotations

from typing import Any, Final, Union

import msgspec

from penstock.kernel.errors import Corrupt
from penstock.log.store import LogEntry
from penstock.raft.members import Members

VERSION: Final = 1


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot as the log sees it: the last entry in it, and the members at that entry."""

    index: int
    term: int
    members: Members


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """The head of every message."""

    to: int
    sender: int
    term: int


class Append(Message, frozen=True, tag=1):
    """Entries, and the entry before them by index and term."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[LogEntry, ...] = ()


class AppendAnswer(Message, frozen=True, tag=2):
    """The log agrees with the leader's up to `index` and is synced, or a refusal.

    A refusal repeats the index that was asked for and hints at the place to try next. A saturated
    follower confirms what it has and takes no entries for a while.
    """

    index: int
    refused: bool = False
    hint_index: int = 0
    hint_term: int = 0
    saturated: bool = False


class Heartbeat(Message, frozen=True, tag=3):
    """The leader is alive; `commit` is never beyond what the receiver has confirmed."""

    commit: int
    read_round: int = 0


class HeartbeatAnswer(Message, frozen=True, tag=4):
    """The heartbeat was heard, with the read round it carried."""

    read_round: int = 0


class Committed(Message, frozen=True, tag=5):
    """The commit index, when there are no entries to carry it. Never answered."""

    commit: int


class VoteRequest(Message, frozen=True, tag=6):
    """A request for a vote. `pre`: would you vote for me in the next term?"""

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteAnswer(Message, frozen=True, tag=7):
    """A vote, or a refusal with the term of the member that refuses."""

    granted: bool
    pre: bool = False


class InstallSnapshot(Message, frozen=True, tag=8):
    """The follower needs entries that the leader no longer has: continue after this snapshot."""

    mark: Mark


class TimeoutNow(Message, frozen=True, tag=9):
    """Leadership is handed over: stand for election at once."""


class ReadRequest(Message, frozen=True, tag=10):
    """A follower asks the leader for an index that makes a read linearizable."""

    context: int


class ReadAnswer(Message, frozen=True, tag=11):
    """The read may be answered once `index` is applied."""

    context: int
    index: int


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return _ENCODER.encode((VERSION, message))


def decode(letter: bytes) -> Message:
    """The message of these bytes, or `Corrupt`."""
    try:
        version, raw = _VERSIONED.decode(letter)
        if version != VERSION:
            raise Corrupt(
                f"a message of version {version}: this program speaks version {VERSION}; "
                "run the same version on every node, or upgrade one node at a time"
            )
        return _DECODER.decode(raw)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"malformed message: {error}") from error


_ENCODER: Final = msgspec.msgpack.Encoder()
_VERSIONED: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
AnyMessage: Any = Union[tuple(Message.__subclasses__())]  # noqa: UP007  (made at run time)
_DECODER: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(AnyMessage)
