"""Payloads of the log: in every version that is written, and damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import UpgradePending
from penstock.topics.core.batch import Batch
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import (
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
    Passed,
    Removed,
    SpaceCommitted,
)
from penstock.topics.core.leases import JobLease
from penstock.topics.core.partition import Entry
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import Routed, make_record
from penstock.topics.core.versions import NEWEST, OLDEST_WRITTEN, WrittenVersion, needed

PAYLOAD = encode_entries(
    [
        Created("t", 5, 1, TopicConfig()),
        Appended("t", 1, 5, Batch.of([make_record(b'{"a":[1]}', b"{}", "t", "n")]), "k"),
        Appended("t", 2, 5, Batch.of([Routed(Raw(b"1"))]), None, FeedMark("r", 1, 8, 3)),
        Deleted("t", 5, 8, None, Predicate("a", prefix=True)),
        Configured("t", 5, {"ttl_ms": 9}),
        JobsClaimed("t", 5, (JobLease(1, "n", 7, 9, 2),), (4,)),
    ]
)


@settings(max_examples=500)
@given(
    at=st.integers(0, len(PAYLOAD)),
    gone=st.integers(0, 4),
    put=st.binary(max_size=4) | st.just(b""),
)
def test_a_damaged_payload_is_corrupt_or_other_entries(at: int, gone: int, put: bytes) -> None:
    damaged = PAYLOAD[:at] + put + PAYLOAD[at + gone :]
    try:
        entries = decode_entries(damaged)
    except Corrupt:
        return
    assert decode_entries(encode_entries(entries)) == entries


@given(payload=st.binary(max_size=40))
def test_anything_at_all_is_corrupt_or_entries(payload: bytes) -> None:
    try:
        decode_entries(b"\x01" + payload)
    except Corrupt:
        return


TEXTS = st.text(max_size=8)
NUMBERS = st.integers(0, 2**64 - 1)
SEQS = st.lists(NUMBERS, max_size=4).map(tuple)
BATCHES = st.lists(st.integers(0, 9), max_size=3).map(
    lambda found: Batch.of([make_record(b"%d" % each) for each in found])
)
LARGE = Batch.of([make_record(b'"' + b"x" * 2_000 + b'"')])
SAID_BY_ALL: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Dropped, TEXTS),
    st.builds(Appended, TEXTS, NUMBERS, NUMBERS, BATCHES | st.just(LARGE), st.none() | TEXTS),
    st.builds(JobsAcked, TEXTS, NUMBERS, SEQS),
    st.builds(JobsNacked, TEXTS, NUMBERS, SEQS, NUMBERS, st.booleans()),
    st.builds(JobsExtended, TEXTS, NUMBERS, SEQS, NUMBERS),
    st.builds(SpaceCommitted, TEXTS, NUMBERS, NUMBERS, BATCHES, NUMBERS),
    st.builds(Began, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Passed, NUMBERS),
)
NEW: st.SearchStrategy[Entry] = st.one_of(
    st.builds(Removed, TEXTS, NUMBERS, SEQS),
    st.builds(JobsNacked, TEXTS, NUMBERS, SEQS, NUMBERS, st.booleans(), st.text(min_size=1)),
)


@given(st.lists(SAID_BY_ALL | NEW, max_size=5))
def test_entries_come_back_from_every_version_that_can_say_them(entries: list[Entry]) -> None:
    wanted = max(map(needed, entries), default=OLDEST_WRITTEN)
    for version in range(OLDEST_WRITTEN, NEWEST + 1):
        if version < wanted:
            with pytest.raises(ValueError, match="cannot say"):
                encode_entries(entries, version)
        else:
            payload = encode_entries(entries, version)
            assert payload[0] == version
            assert decode_entries(payload) == entries


@given(st.lists(SAID_BY_ALL, max_size=5), st.lists(NEW, min_size=1, max_size=2))
def test_only_what_is_new_needs_the_newest_version(old: list[Entry], new: list[Entry]) -> None:
    WrittenVersion(OLDEST_WRITTEN).check(old)
    with pytest.raises(UpgradePending):
        WrittenVersion(OLDEST_WRITTEN).check([*old, *new])
