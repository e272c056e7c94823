from __future__ import annotations

import pytest

from penstock.protocol.errors import Throttled
from penstock.server.api.auth import CapLimits, Caps, parse_keys

RING = parse_keys("a,b")
A, B = RING.find("a"), RING.find("b")


def test_streams_are_limited_in_all_and_for_each_key():
    caps = Caps(CapLimits(streams_max=3, streams_per_key_max=2))
    caps.open_stream(A)
    caps.open_stream(A)
    with pytest.raises(Throttled):
        caps.open_stream(A)
    caps.open_stream(B)
    with pytest.raises(Throttled) as caught:
        caps.open_stream(None)
    assert caught.value.detail == {"limit": "max_sse_connections"}
    assert caps.streams == 3
    caps.close_stream(A)
    caps.open_stream(A)
    assert caps.streams == 3


def test_requests_of_one_key_do_not_hinder_another():
    caps = Caps(CapLimits(inflight_per_key_max=1))
    caps.enter(A)
    with pytest.raises(Throttled) as caught:
        caps.enter(A)
    assert caught.value.detail == {"limit": "max_inflight_per_key"}
    caps.enter(B)
    caps.leave(A)
    assert (caps.inflight(A), caps.inflight(B)) == (0, 1)
    caps.enter(A)


def test_a_limit_of_nought_is_no_limit():
    caps = Caps(CapLimits(0, 0, 0))
    for _ in range(20):
        caps.open_stream(A)
        caps.enter(A)
    assert (caps.streams, caps.inflight(A)) == (20, 20)
