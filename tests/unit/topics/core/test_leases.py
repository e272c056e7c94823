"""What claimers say: requests, tokens, windows."""

from __future__ import annotations

import pytest
from msgspec import Raw

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.leases import (
    ClaimRequest,
    ClaimWindow,
    dead_letter,
    lease_token,
    parse_token,
)
from penstock.topics.core.record import Routed, hops_of, make_record

LIMITS = TopicLimits()


def test_a_token_comes_back_as_its_fence_and_anything_else_is_refused() -> None:
    assert parse_token(lease_token(2**64 - 1)) == 2**64 - 1
    assert parse_token("") is None
    for token in ("lease_", "lease_xyz", "LEASE_0000000000000000", "lease_" + "0" * 65):
        with pytest.raises(InvalidRequest):
            parse_token(token)


@pytest.mark.parametrize("token", ["lease_0", "lease_1234", "lease_00FF", "lease_" + "f" * 64])
def test_a_token_of_another_length_is_a_fence_all_the_same(token: str) -> None:
    assert parse_token(token) == int(token.removeprefix("lease_"), 16)


def test_a_dead_letter_keeps_what_it_was() -> None:
    letter = dead_letter(make_record(b"1", b'{"a": 1}', "t", "n"), "q", 5, 3)
    assert (bytes(letter.data), letter.tag, letter.node) == (b"1", "t", "n")
    assert bytes(letter.meta or b"") == (
        b'{"a": 1,"$dead_letter_from":"q","$dead_letter_deliveries":"3","$dead_letter_src_seq":"5"}'
    )


def test_a_dead_letter_of_a_dead_letter_tells_of_the_last_queue_and_keeps_its_hops() -> None:
    first = dead_letter(Routed(Raw(b"1"), meta=Raw(b'{"a":1}'), hops=2), "q", 5, 3)
    second = dead_letter(first, "r", 6, 4)
    assert bytes(second.meta or b"") == (
        b'{"a":1,"$dead_letter_from":"r","$dead_letter_deliveries":"4","$dead_letter_src_seq":"6"}'
    )
    assert hops_of(second) == 2


def test_a_window_gathers_claims_from_the_first_until_it_closes() -> None:
    window = ClaimWindow()
    first, second = ClaimRequest("a"), ClaimRequest("b")
    assert window.join(first, 10, jitter_ms=5) == 0
    assert window.join(second, 14, jitter_ms=5) == 1
    assert window.close(14) == ()
    assert window.close(15) == [first, second]
    assert window.close(99) == ()
    assert window.closes_ms is None
