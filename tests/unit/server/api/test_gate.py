from __future__ import annotations

import pytest

from penstock.kernel.system import SystemClock
from penstock.server.api.auth import parse_keys
from penstock.server.api.gate import Gate
from penstock.server.api.sessions import Authenticator
from penstock.server.http.message import Request
from tests.unit.server.fakes import FakeExchange


def ask(target: str, **headers: str) -> FakeExchange:
    path, _, query = target.partition("?")
    exchange = FakeExchange(Request("GET", path, query, headers, b""))
    clock = SystemClock()
    Gate(clock, Authenticator(parse_keys("k"), clock), probe_auth=False)(exchange)
    return exchange


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/v0/topics/q/work?node=n&token=k", {}, 503),
        ("/v0/topics/q/work?node=n&token=other", {}, 401),
        ("/v0/topics/q?token=k", {}, 401),
        ("/v0/topics/q", {"authorization": "Bearer k"}, 503),
        ("/v0/watch/wid_1?token=k", {}, 503),
        ("/v0/ws", {"sec-websocket-protocol": "penstock.v0, bearer.aw"}, 503),
        ("/v0/nothing", {}, 401),
        ("/v0/health", {}, 200),
    ],
)
def test_before_there_is_an_engine_keys_are_taken_where_they_are_later(target, headers, status):
    """A client that is told that its key is wrong would not come back."""
    assert ask(target, **headers).status == status
