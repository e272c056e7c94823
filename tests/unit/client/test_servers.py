"""Which of its servers a client talks to."""

from __future__ import annotations

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transports.servers import Servers
from penstock.client.wire import HttpAnswer
from penstock.protocol.errors import LEADER_HEADER


@pytest.mark.parametrize(
    ("status", "leader", "then"),
    [
        (200, "http://c:1", "a"),
        (503, "", "b"),
        (421, "", "b"),
        (421, "http://c:1", "c"),
        (421, "http://elsewhere:1", "b"),
    ],
)
def test_a_client_goes_to_the_leader_that_is_named_or_to_the_next(
    status: int, leader: str, then: str
) -> None:
    servers = Servers(ClientSettings("a:1,b:1,c:1"))
    headers = {LEADER_HEADER: leader} if leader else {}
    servers.answered(servers.current, HttpAnswer(status, headers, b""))
    assert servers.current.settings.url == f"http://{then}:1"
