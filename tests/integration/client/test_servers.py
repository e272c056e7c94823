"""A client with several addresses moves on when a server is away, silent or without a leader."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from penstock.client import ClientSettings
from penstock.client.transports.servers import Servers
from penstock.client.wire import HttpAnswer
from tests.unit.client.faces import FACES, named

NO_LEADER = b'{"error":{"code":"no_leader","message":"no leader"}}'
HEALTH = b'{"status":"ok"}'


@pytest.fixture(params=FACES, ids=named)
def face(request: pytest.FixtureRequest) -> Any:
    return request.param


class Answering:
    """Answers every request the same way, and counts them; without an answer it is silent."""

    def __init__(self, status: int | None, body: bytes = b"") -> None:
        self.asked = 0
        self._answer = b"" if status is None else (
            b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
        )  # fmt: skip
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with ExitStack() as stack:
            while True:
                try:
                    connection = self._listener.accept()[0]
                except OSError:
                    return
                stack.enter_context(connection)
                threading.Thread(target=self._answer_all, args=(connection,), daemon=True).start()

    def _answer_all(self, connection: socket.socket) -> None:
        with suppress(OSError):  # the server closes it at its end
            while connection.recv(65_536):
                self.asked += 1
                if self._answer:
                    connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def answering(status: int | None, body: bytes = b"") -> Iterator[Answering]:
    server = Answering(status, body)
    try:
        yield server
    finally:
        server.close()


def gone() -> str:
    """The URL of a server that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_is_away_is_left_for_the_next_one(face: Any) -> None:
    with answering(200, HEALTH) as good:
        settings = ClientSettings(f"{gone()},{good.url}")
        answers = face.calls(settings, ("metrics", (), {}), ("metrics", (), {}))
    assert len(answers) == 2
    assert good.asked == 2


def test_a_server_without_a_leader_is_left_for_the_next_one(face: Any) -> None:
    with answering(503, NO_LEADER) as bad, answering(200, HEALTH) as good:
        settings = ClientSettings(f"{bad.url},{good.url}")
        face.calls(settings, ("metrics", (), {}), ("metrics", (), {}))
    assert (bad.asked, good.asked) == (1, 2)


def test_a_server_that_is_silent_is_left_for_the_next_one(face: Any) -> None:
    with answering(None) as silent, answering(200, HEALTH) as good:
        settings = ClientSettings(f"{silent.url},{good.url}", read_timeout_s=0.1)
        face.calls(settings, ("metrics", (), {}), ("metrics", (), {}))
    assert (silent.asked, good.asked) == (1, 2)


def test_calls_that_failed_together_move_on_once() -> None:
    servers = Servers(ClientSettings("a:1,b:1,c:1"))
    first = servers.current
    servers.failed(first)
    second = servers.current
    servers.failed(first)
    assert servers.current is second
    servers.answered(second, HttpAnswer(409, {}, b""))
    assert servers.current is second
    servers.failed(second)
    servers.failed(servers.current)
    assert servers.current is first
