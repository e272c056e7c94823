"""Who may talk: what two nodes say to each other before the first letter, as states without IO.

The node that dials says who it is and whom it expects; the node that accepts answers with a
challenge. Where there is a secret both prove that they have it over everything that was said, and
letters then have a MAC with keys of this connection alone. A refusal says its reason to the peer.

Both say which version of the log's entries the cluster writes, as far as they know, and which ones
they read: a node that cannot read what is written is kept apart, or it would take the first such
entry for damage. A node that could write more is not: see `upgrade`.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar, Final

import msgspec

from penstock.cluster.frames import BadLetter
from penstock.kernel.errors import Rejected

PROTOCOL: Final = 1
NONCE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 32
LETTERS: Final = "letters"
BULK: Final = "bulk"


class LinkRefused(Rejected):
    """A peer may not talk to this node, or this node not to it."""

    code: ClassVar[str] = "link_refused"


class LinkMember(msgspec.Struct, frozen=True, array_like=True):
    """A member as links know it."""

    id: int
    name: str
    address: str
    url: str = ""
    """Where clients reach it, as it says itself."""


class EntryVersions(msgspec.Struct, frozen=True, array_like=True):
    """The version of the log's entries that a node writes now, and the newest one that it reads.

    A program that does not say so is of the time of version 3, when clusters began.
    """

    written: int = 3
    read: int = 3


UNTOLD: Final = EntryVersions()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkIdentity:
    """What a node says of itself to its peers, and the secret it shares with them."""

    cluster: str
    member: LinkMember
    secret: bytes = b""
    entries: EntryVersions = UNTOLD

    def __post_init__(self) -> None:
        if self.secret and len(self.secret) < SECRET_BYTES_MIN:
            raise Rejected(
                f"the cluster's secret has {len(self.secret)} bytes: it needs at least "
                f"{SECRET_BYTES_MIN}; make one with `head -c 32 /dev/urandom | base64`"
            )


class LinkHello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of the node that dials."""

    cluster: str
    sender: LinkMember
    receiver: int
    purpose: str
    has_secret: bool
    nonce: bytes
    entries: EntryVersions = UNTOLD


class LinkChallenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    """The answer of the node that accepts, with its proof."""

    nonce: bytes
    proof: bytes
    entries: EntryVersions = UNTOLD


class LinkProof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    """The proof of the node that dials."""

    proof: bytes


class LinkWelcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The peer is let in: letters may follow."""


class LinkRefusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    """The peer is not let in, and why."""

    reason: str


GREETING_BYTES_MAX: Final = 4_096
"""A longer letter is not read from a peer that is not let in yet."""

_Message = LinkHello | LinkChallenge | LinkProof | LinkWelcome | LinkRefusal


@dataclass(frozen=True, slots=True)
class LinkSession:
    """A peer that was let in; `key` is that of its letters, empty without a secret."""

    peer: LinkMember
    purpose: str
    key: bytes
    entries: EntryVersions = UNTOLD


@dataclass(frozen=True, slots=True)
class LinkStep:
    """What to send, and the session once both sides agree."""

    send: bytes = b""
    session: LinkSession | None = None


class Dialler:
    """The side that dials: `begin`, then `step` with each message until there is a session."""

    def __init__(
        self, own: LinkIdentity, peer: LinkMember, nonce: bytes, purpose: str = LETTERS
    ) -> None:
        self.peer = peer
        self._own, self._purpose = own, purpose
        self._hello = _encode(
            LinkHello(
                own.cluster, own.member, peer.id, purpose, bool(own.secret), nonce, own.entries
            )
        )
        self._challenge = b""
        self._is_welcome = False
        self._entries = UNTOLD

    def begin(self) -> bytes:
        """The hello."""
        return self._hello

    def step(self, received: bytes) -> LinkStep:
        """Take a message of the peer, or raise `LinkRefused` or `BadLetter`."""
        message = _decode(received)
        if isinstance(message, LinkRefusal):
            raise LinkRefused(f"{self.peer.name} at {self.peer.address}: {message.reason}")
        if isinstance(message, LinkChallenge) and not self._challenge:
            return self._prove(received, message)
        if isinstance(message, LinkWelcome) and self._challenge and not self._is_welcome:
            self._is_welcome = True
            key = _key(self._own.secret, self._hello, self._challenge)
            session = LinkSession(self.peer, self._purpose, key, self._entries)
            return LinkStep(session=session)
        raise BadLetter(f"a {type(message).__name__} out of turn")

    def _prove(self, received: bytes, message: LinkChallenge) -> LinkStep:
        secret = self._own.secret
        expected = _proof(secret, b"accept", self._hello, message.nonce)
        if not hmac.compare_digest(message.proof, expected):
            raise LinkRefused(f"{self.peer.name} at {self.peer.address} has another secret")
        check_entries(self._own, self.peer.name, message.entries)
        self._entries = message.entries
        self._challenge = received
        return LinkStep(_encode(LinkProof(_proof(secret, b"dial", self._hello, received))))


class Acceptor:
    """The side that accepts. `is_removed` tells whether a member id has left the cluster."""

    def __init__(self, own: LinkIdentity, nonce: bytes, is_removed: Callable[[int], bool]) -> None:
        self._own, self._nonce, self._is_removed = own, nonce, is_removed
        self._hello_bytes = self._challenge = b""
        self._hello: LinkHello | None = None

    def step(self, received: bytes) -> LinkStep:
        """Take a message of the peer, or raise `LinkRefused` or `BadLetter`."""
        message = _decode(received)
        if isinstance(message, LinkHello) and self._hello is None:
            self._check(message)
            self._hello, self._hello_bytes = message, received
            proof = _proof(self._own.secret, b"accept", received, self._nonce)
            self._challenge = _encode(LinkChallenge(self._nonce, proof, self._own.entries))
            return LinkStep(self._challenge)
        if isinstance(message, LinkProof) and self._hello is not None:
            return self._let_in(self._hello, message)
        if isinstance(message, LinkRefusal):
            raise LinkRefused(message.reason)
        raise BadLetter(f"a {type(message).__name__} out of turn")

    def _let_in(self, hello: LinkHello, message: LinkProof) -> LinkStep:
        secret = self._own.secret
        expected = _proof(secret, b"dial", self._hello_bytes, self._challenge)
        if not hmac.compare_digest(message.proof, expected):
            raise LinkRefused(f"{hello.sender.name} has another secret than this node")
        key = _key(secret, self._hello_bytes, self._challenge)
        session = LinkSession(hello.sender, hello.purpose, key, hello.entries)
        return LinkStep(_encode(LinkWelcome()), session)

    def _check(self, hello: LinkHello) -> None:
        own, sender = self._own, hello.sender
        if hello.cluster != own.cluster:
            raise LinkRefused(
                f"{sender.name} is of cluster {hello.cluster}, this node of {own.cluster}"
            )
        if hello.receiver != own.member.id:
            raise LinkRefused(
                f"{sender.name} expects member {hello.receiver:016x} here, this is "
                f"{own.member.name}, member {own.member.id:016x}: its directory is another one; "
                "see `penstock cluster replace`"
            )
        if sender.id == own.member.id:
            raise LinkRefused(f"member {sender.id:016x} is this node itself")
        if self._is_removed(sender.id):
            raise LinkRefused(f"{sender.name}, member {sender.id:016x}, was removed")
        if hello.purpose not in (LETTERS, BULK):
            raise LinkRefused(f"unknown purpose {hello.purpose!r}")
        if hello.has_secret != bool(own.secret):
            with_secret, without = (sender, own.member)[:: 1 if hello.has_secret else -1]
            raise LinkRefused(f"{with_secret.name} has a secret and {without.name} has not")
        check_entries(own, sender.name, hello.entries)


def refusal(reason: str) -> bytes:
    """The message that tells a peer why it is refused."""
    return _encode(LinkRefusal(reason))


def check_entries(own: LinkIdentity, name: str, theirs: EntryVersions) -> None:
    """Refuse a peer where one of the two cannot read what the other one writes to the log."""
    sides = ((own.member.name, own.entries), (name, theirs))
    for (newer, writes), (older, reads) in (sides, sides[::-1]):
        if reads.read < writes.written:
            raise LinkRefused(
                f"{newer} writes entries of version {writes.written} and {older} reads them up to "
                f"version {reads.read}: upgrade {older}"
            )


def _proof(secret: bytes, label: bytes, hello: bytes, more: bytes) -> bytes:
    if not secret:
        return b""
    return hmac.digest(secret, b"penstock %b %d %b%b" % (label, len(hello), hello, more), sha256)


def _key(secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    return _proof(secret, b"letters", hello, challenge)


def _encode(message: _Message) -> bytes:
    return _ENCODER.encode((PROTOCOL, message))


def _decode(received: bytes) -> _Message:
    try:
        version, raw = _VERSIONED.decode(received)
        if version != PROTOCOL:
            raise LinkRefused(
                f"the peer speaks version {version} of the cluster's protocol, this node {PROTOCOL}"
            )
        return _DECODER.decode(raw)
    except msgspec.MsgspecError as error:
        raise BadLetter(f"malformed greeting: {error}") from error


_ENCODER: Final = msgspec.msgpack.Encoder()
_VERSIONED: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_DECODER: Final[msgspec.msgpack.Decoder[_Message]] = msgspec.msgpack.Decoder(_Message)
