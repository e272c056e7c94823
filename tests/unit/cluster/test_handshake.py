"""Greetings: who is let in, and what each side is told."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from penstock.cluster.frames import BadLetter
from penstock.cluster.handshake import (
    UNTOLD,
    Acceptor,
    Dialler,
    EntryVersions,
    LinkIdentity,
    LinkMember,
    LinkRefused,
    LinkSession,
    refusal,
)
from penstock.kernel.errors import Rejected

SECRET = b"s" * 32
A = LinkMember(1, "a", "127.0.0.1:1")
B = LinkMember(2, "b", "127.0.0.1:2")


def identity(
    member: LinkMember,
    secret: bytes = SECRET,
    cluster: str = "c",
    entries: EntryVersions = UNTOLD,
) -> LinkIdentity:
    return LinkIdentity(cluster=cluster, member=member, secret=secret, entries=entries)


def dialler(own: LinkIdentity | None = None, peer: LinkMember = B) -> Dialler:
    return Dialler(own or identity(A), peer, b"d" * 32)


def acceptor(own: LinkIdentity | None = None, removed: tuple[int, ...] = ()) -> Acceptor:
    return Acceptor(own or identity(B), b"a" * 32, removed.__contains__)


def greet(dials: Dialler, accepts: Acceptor) -> tuple[LinkSession, LinkSession]:
    challenge = accepts.step(dials.begin()).send
    let_in = accepts.step(dials.step(challenge).send)
    session = dials.step(let_in.send).session
    assert session is not None
    assert let_in.session is not None
    return session, let_in.session


@pytest.mark.parametrize("secret", [SECRET, b""], ids=["secret", "none"])
def test_both_sides_agree_on_the_peer_and_on_the_key(secret: bytes) -> None:
    dialled, accepted = greet(dialler(identity(A, secret)), acceptor(identity(B, secret)))
    assert dialled.peer == B
    assert accepted.peer == A
    assert dialled.key == accepted.key
    assert bool(dialled.key) == bool(secret)


def test_each_connection_has_a_key_of_its_own() -> None:
    first, _ = greet(dialler(), acceptor())
    second, _ = greet(dialler(), Acceptor(identity(B), b"b" * 32, lambda _: False))
    assert first.key != second.key


@pytest.mark.parametrize(
    ("own", "peer", "removed", "reason"),
    [
        (identity(A, cluster="other"), B, (), "of cluster other"),
        (identity(A), LinkMember(7, "b", B.address), (), "replace"),
        (identity(LinkMember(2, "b", B.address)), B, (), "itself"),
        (identity(A), B, (1,), "was removed"),
        (identity(A, b""), B, (), "b has a secret and a has not"),
    ],
    ids=["cluster", "member", "itself", "removed", "secret"],
)
def test_a_stranger_is_refused_with_the_reason(
    own: LinkIdentity, peer: LinkMember, removed: tuple[int, ...], reason: str
) -> None:
    dials = dialler(own, peer)
    with pytest.raises(LinkRefused, match=reason) as refused:
        acceptor(removed=removed).step(dials.begin())
    with pytest.raises(LinkRefused, match=reason):
        dials.step(refusal(str(refused.value)))


def test_a_node_without_the_secret_is_found_out_by_the_one_that_dials() -> None:
    dials = dialler()
    challenge = acceptor(identity(B, b"x" * 32)).step(dials.begin()).send
    with pytest.raises(LinkRefused, match="another secret"):
        dials.step(challenge)


def test_a_node_without_the_secret_is_found_out_by_the_one_that_accepts() -> None:
    right, wrong, accepts = dialler(), dialler(identity(A, b"x" * 32)), acceptor()
    challenge = accepts.step(right.begin()).send
    with pytest.raises(LinkRefused):
        wrong.step(challenge)
    # A proof over another conversation is no proof in this one.
    other = dialler()
    proof = other.step(Acceptor(identity(B), b"z" * 32, lambda _: False).step(other.begin()).send)
    with pytest.raises(LinkRefused, match="another secret"):
        accepts.step(proof.send)


def test_a_newer_protocol_is_refused_with_both_versions() -> None:
    newer = msgspec.msgpack.encode((2, ["something new"]))
    with pytest.raises(LinkRefused, match=r"version 2 .* this node 1"):
        acceptor().step(newer)


OLD, READS, WRITES = EntryVersions(3, 3), EntryVersions(3, 4), EntryVersions(4, 4)
"""A release, one that could write the next version of entries, and one that writes it by now."""


@pytest.mark.parametrize(
    ("dials", "accepts"), [(OLD, READS), (READS, OLD), (READS, WRITES), (WRITES, READS)]
)
def test_nodes_that_read_what_the_other_one_writes_talk_and_know_the_versions(
    dials: EntryVersions, accepts: EntryVersions
) -> None:
    dialled, accepted = greet(
        dialler(identity(A, entries=dials)), acceptor(identity(B, entries=accepts))
    )
    assert (dialled.entries, accepted.entries) == (accepts, dials)


@pytest.mark.parametrize("newer", ["dials", "accepts"])
def test_a_node_that_cannot_read_what_the_other_one_writes_is_kept_apart(newer: str) -> None:
    dials, accepts = (WRITES, OLD) if newer == "dials" else (OLD, WRITES)
    name, old = ("a", "b") if newer == "dials" else ("b", "a")
    with pytest.raises(LinkRefused, match=f"{name} writes .* version 4 .*upgrade {old}"):
        greet(dialler(identity(A, entries=dials)), acceptor(identity(B, entries=accepts)))


class OldHello(msgspec.Struct, array_like=True, tag="hello"):
    """As releases before the versions of entries were told say it."""

    cluster: str
    sender: LinkMember
    receiver: int
    purpose: str
    has_secret: bool
    nonce: bytes


class OldChallenge(msgspec.Struct, array_like=True, tag="challenge"):
    """Likewise."""

    nonce: bytes
    proof: bytes


def test_a_node_of_a_release_that_tells_no_versions_is_taken_for_one_of_version_three() -> None:
    hello = OldHello("c", A, 2, "letters", False, b"d" * 32)
    encoded = msgspec.msgpack.encode((1, hello))
    assert acceptor(identity(B, b"")).step(encoded).send
    with pytest.raises(LinkRefused, match="upgrade a"):
        acceptor(identity(B, b"", entries=WRITES)).step(encoded)
    challenge = msgspec.msgpack.encode((1, OldChallenge(b"a" * 32, b"")))
    assert dialler(identity(A, b"")).step(challenge).send
    newer = dialler(identity(A, b"", entries=WRITES))
    with pytest.raises(LinkRefused, match="upgrade b"):
        newer.step(challenge)
    # And the other way round: an old program reads what this one says, and leaves out the rest.
    said = msgspec.msgpack.decode(dialler().begin(), type=tuple[int, OldHello])
    assert said[1].sender == A


def test_what_comes_out_of_turn_or_is_no_greeting_is_a_bad_letter() -> None:
    dials, accepts = dialler(), acceptor()
    hello = dials.begin()
    accepts.step(hello)
    with pytest.raises(BadLetter):
        accepts.step(hello)
    with pytest.raises(BadLetter):
        dials.step(hello)
    with pytest.raises(BadLetter):
        acceptor().step(b"\xff\x00 no greeting")


def test_a_second_welcome_is_out_of_turn() -> None:
    dials, accepts = dialler(), acceptor()
    proof = dials.step(accepts.step(dials.begin()).send).send
    welcome = accepts.step(proof).send
    assert dials.step(welcome).session is not None
    with pytest.raises(BadLetter, match="out of turn"):
        dials.step(welcome)


def test_a_secret_needs_thirty_two_bytes() -> None:
    identity(A, b"s" * 32)
    with pytest.raises(Rejected, match="at least 32"):
        identity(A, b"s" * 31)
    assert replace(identity(A), secret=b"").secret == b""
