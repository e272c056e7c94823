"""What claimers say: requests, tokens, windows."""

from __future__ import annotations

import pytest

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.leases import (
    ClaimRequest,
    ClaimWindow,
    lease_token,
    parse_token,
)

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


def test_a_window_gathers_claims_from_the_first_until_it_closes() -> None:
    window = ClaimWindow()
    first, second = ClaimRequest("a"), ClaimRequest("b")
    assert window.join(first, 10, jitter_ms=5) == 0
    assert window.join(second, 14, jitter_ms=5) == 1
    assert window.close(14) == ()
    assert window.close(15) == [first, second]
    assert window.close(99) == ()
    assert window.closes_ms is None
