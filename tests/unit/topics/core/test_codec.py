"""Entries as bytes: every kind comes back, anything else stops the node."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from msgspec import Raw, Struct

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import UpgradePending
from penstock.raft.members import Members
from penstock.topics.core.batch import Batch, parse_write
from penstock.topics.core.codec import NewerEntries, decode_entries, encode_entries
from penstock.topics.core.entries import (
    Advanced,
    Appended,
    Began,
    Configured,
    Created,
    Deleted,
    Dropped,
    FeedMark,
    JobsAcked,
    JobsClaimed,
    JobsExtended,
    JobsNacked,
    MembersChanged,
    Passed,
    Removed,
    Skipped,
    SpaceCommitted,
)
from penstock.topics.core.leases import JobLease
from penstock.topics.core.partition import Entry
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import Routed
from penstock.topics.core.router import RouterConfig, RouterRemoved, RouterStored
from penstock.topics.core.versions import NEWEST, WrittenVersion

MOST = 2**64 - 1
DEEP = b"[" * 100_000 + b"]" * 100_000
WRITTEN = parse_write(b'{"records":[{"data": {"a" : 1} ,"meta":{}},{"data":2}],"node":"n"}').batch
EVERY_KIND: list[Entry] = [
    Created("t", 5, 1, TopicConfig(type="queue", ttl_ms=MOST, priority=-3, dead_letter="d")),
    Dropped("t"),
    Appended("t", 1, 5, WRITTEN),
    Appended("t", 1, 5, WRITTEN, "kä"),
    Appended("t", 9, 5, Batch.of([Routed(Raw(b"1"), hops=2)]), None, FeedMark("r", 1, 8, 3)),
    Appended("t", 9, 5, Batch.of([]), None, FeedMark("r", 1, 8)),
    Deleted("t", 5, 8, None, Predicate("a", prefix=True)),
    Deleted("t", 5, 8, MOST, None),
    Configured("t", 5, {"ttl_ms": MOST, "priority": None, "discard": "old", "dedupe_node": True}),
    Advanced("t", 1_024),
    Skipped("t", 4_096),
    JobsClaimed("t", 5, (JobLease(1, "n", MOST, 9, 2), JobLease(2, "m", 0, 9, 1, 3)), (4, 5)),
    JobsAcked("t", 5, (1, 2)),
    JobsNacked("t", 5, (), 9),
    JobsNacked("t", 5, (1,), 9, unseen=True),
    JobsNacked("t", 5, (1,), 9, reason="it is too läte"),
    Removed("t", 5, (1, MOST)),
    JobsExtended("t", 5, (1,), 9),
    RouterStored(RouterConfig("r", "s", "d", filter=Predicate("x", prefix=False)), 1, 7),
    RouterRemoved("r", "d"),
    SpaceCommitted("t", 7, 5, WRITTEN, 2**63 - 1),
    Passed(5),
    Began(3, 2**64 - 1, 5, 4_096),
    MembersChanged(Members((1, 2**64 - 1), (3,))),
]


def test_no_kind_of_entry_is_missing_here() -> None:
    assert {type(entry) for entry in EVERY_KIND} == set(get_args(Entry))


@pytest.mark.parametrize("entry", EVERY_KIND, ids=lambda entry: type(entry).__name__)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    (again,) = decode_entries(encode_entries([entry]))
    assert again == entry
    assert type(again) is type(entry)
    if isinstance(entry, Appended):
        assert isinstance(again, Appended)
        assert again.batch.sizes == entry.batch.sizes
        assert again.batch.body == entry.batch.body
        assert again.seqs == entry.seqs


def test_what_was_given_back_before_it_could_be_unseen_was_seen() -> None:
    class Before(Struct, frozen=True, array_like=True, tag="n"):
        topic: str
        now_ms: int
        seqs: tuple[int, ...]
        due_ms: int

    (again,) = decode_entries(encode_entries([Before("t", 5, (1,), 9)]))  # type: ignore[list-item]
    assert again == JobsNacked("t", 5, (1,), 9)


def test_a_nack_of_version_2_had_no_reason() -> None:
    version_2 = msgspec.msgpack.encode([["n", "t", 5, [1], 9, True]])
    assert decode_entries(b"\x02" + version_2) == [JobsNacked("t", 5, (1,), 9, True, "")]


def test_a_nack_without_a_reason_is_written_as_version_2_had_it() -> None:
    version_2 = msgspec.msgpack.encode([["n", "t", 5, [1], 9, True]])
    assert encode_entries([JobsNacked("t", 5, (1,), 9, True)], 2) == b"\x02" + version_2


@pytest.mark.parametrize("entry", [Removed("t", 5, (1,)), JobsNacked("t", 5, (1,), 9, reason="x")])
def test_what_a_version_cannot_say_is_never_written_in_it(entry: Entry) -> None:
    with pytest.raises(ValueError, match="version 2 of entries cannot say"):
        encode_entries([Dropped("t"), entry], 2)
    with pytest.raises(UpgradePending, match="upgrade b") as error:
        WrittenVersion(2, ("b",)).check([Dropped("t"), entry])
    assert error.value.detail["needed"] == 3
    WrittenVersion(3).check([entry])
    WrittenVersion(2).check([Dropped("t")])
    assert "penstock cluster status" in UpgradePending(3, 2).message


def test_entries_of_a_newer_release_are_told_from_damage() -> None:
    payload = encode_entries([Dropped("t")])
    with pytest.raises(NewerEntries, match="start the newer release again"):
        decode_entries(bytes((NEWEST + 1,)) + payload[1:])
    for garbage in (b"", b"\x00" + payload[1:], b"\xff" + payload[1:]):
        with pytest.raises(Corrupt) as error:
            decode_entries(garbage)
        assert not isinstance(error.value, NewerEntries)


def test_the_entries_of_one_commit_come_back_in_order() -> None:
    assert decode_entries(encode_entries(EVERY_KIND)) == EVERY_KIND
    assert decode_entries(encode_entries([])) == []


@pytest.mark.parametrize("count", [1, 15, 16, 70_000])
def test_large_requests_are_encoded_as_small_ones_are(count: int) -> None:
    large = parse_write(b'{"records":[{"data":"%b"}]}' % (b"x" * 2_000)).batch
    first = Appended("t", 1, 5, large)
    plain = Appended("ä", 2**40, 2**41, WRITTEN)
    entries = [first, *EVERY_KIND, *[plain] * count][:count]
    encoded = msgspec.msgpack.encode(entries, enc_hook=lambda batch: batch.body)
    assert decode_entries(encode_entries(entries)) == decode_entries(b"\x01" + encoded)


def test_a_request_stands_in_the_log_byte_for_byte() -> None:
    body = b'{"records" : [ {"data":"as it came"} ]}'
    entry = Appended("t", 1, 0, parse_write(body).batch)
    assert body in encode_entries([entry])


def test_a_configuration_holds_only_what_the_log_can_hold() -> None:
    config = TopicConfig()
    assert msgspec.convert(msgspec.to_builtins(config), TopicConfig) == config


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"\x04" + encode_entries([Dropped("t")])[1:],
        b"\x01",
        b"\x01\xc1",
        encode_entries([Dropped("t")])[:-1],
        encode_entries([Dropped("t")]) + b"\x00",
        b"\x01" + msgspec.msgpack.encode([["?", "t"]]),
        b"\x01" + msgspec.msgpack.encode([["d"]]),
        b"\x01" + msgspec.msgpack.encode([["d", 5]]),
        b"\x01" + msgspec.msgpack.encode({"d": "t"}),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, b"no JSON"]]),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, b"R{}"]]),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, b'{"records":[{"data":1,"x":2}]}']]),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, 7]]),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, "text"]]),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, None]]),
        b"\x01" + msgspec.msgpack.encode([["a", "t", 1, 5, b'{"records":[{"data":%b}]}' % DEEP]]),
        b"\x01" + b"\x91" * 100_000,
        b"\x01\x91\x94\xa1p\xa1t\x05\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
    ],
)
def test_what_is_no_commit_of_this_version_stops_the_node(payload: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_entries(payload)
