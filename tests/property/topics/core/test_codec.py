"""Damaged payloads of the log: entries, or `Corrupt`, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import TopicConfig
from penstock.topics.core.batch import Batch
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import (
    Appended,
    Configured,
    Created,
    Deleted,
    FeedMark,
    JobsClaimed,
)
from penstock.topics.core.leases import JobLease
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import Routed, make_record

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
