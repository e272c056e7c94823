"""The port for status of an edge: the one HTTP server, with an application of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

from penstock.app.ingest import answer_status, fetch_status
from penstock.protocol.errors import CallError
from penstock.server.http import Listener


class Shown:
    def status(self) -> dict[str, Any]:
        return {"stages": []}

    def prometheus(self) -> bytes:
        return b"ingest_connections 3\n"


def asked(method: str, path: str) -> tuple[int, str, bytes]:
    """The status, content type and body of one answer."""

    async def ask() -> tuple[int, str, bytes]:
        listener = Listener(partial(answer_status, Shown()))
        address = await listener.start(port=0)
        try:
            return await asyncio.to_thread(_ask, address, method, path)
        finally:
            await listener.abort()

    return asyncio.run(ask())


def _ask(address: tuple[str, int], method: str, path: str) -> tuple[int, str, bytes]:
    connection = HTTPConnection(*address, timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/status", "/", "/status?x=1"])
def test_the_status_is_json(path: str) -> None:
    assert asked("GET", path) == (200, "application/json", b'{"stages":[]}\n')


def test_metrics_are_text_for_prometheus() -> None:
    text = "text/plain; version=0.0.4"
    assert asked("GET", "/metrics") == (200, text, b"ingest_connections 3\n")


def test_nothing_else_is_there_and_nothing_can_be_changed() -> None:
    assert asked("GET", "/v0/topics")[0] == 404
    assert asked("POST", "/status")[0] == 405


def test_the_client_reads_the_status_and_says_when_no_edge_is_there() -> None:
    async def ask() -> dict[str, Any]:
        listener = Listener(partial(answer_status, Shown()))
        host, port = await listener.start(port=0)
        try:
            return await asyncio.to_thread(fetch_status, f"http://{host}:{port}")
        finally:
            await listener.abort()

    assert asyncio.run(ask()) == {"stages": []}
    with pytest.raises(CallError):
        fetch_status("http://127.0.0.1:1")
