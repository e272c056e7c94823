"""A small HTTP port beside the edge: `/metrics` for Prometheus, `/status` as JSON."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from penstock.ingest.status import CONTENT_TYPE
from penstock.kernel.errors import Rejected

HEAD_BYTES_MAX: Final = 8_192
READ_S: Final = 5.0
CLIENTS_MAX: Final = 64


class Shown(Protocol):
    """What can be looked at."""

    def status(self) -> dict[str, Any]:
        """Plain values."""
        ...

    def prometheus(self) -> str:
        """Prometheus text."""
        ...


class StatusServer:
    """Answers GET, one request a connection."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listen; returns the address that was bound."""
        try:
            self._server = await asyncio.start_server(
                self._answer, host, port, limit=HEAD_BYTES_MAX
            )
        except OSError as error:
            raise Rejected(
                f"expected a free address, found {host}:{port} unusable: {error.strerror or error}"
            ) from error
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return bound_host, bound_port

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients <= CLIENTS_MAX:
                async with asyncio.timeout(READ_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._page(head.split(b" ", 2)))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._clients -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _page(self, request: list[bytes]) -> bytes:
        target = request[1].partition(b"?")[0] if len(request) == 3 else b""
        if request[0] != b"GET":
            return _page("405 Method Not Allowed", "text/plain", b"expected GET\n")
        if target == b"/metrics":
            return _page("200 OK", CONTENT_TYPE, self._shown.prometheus().encode())
        if target in (b"/status", b"/"):
            body = msgspec.json.encode(self._shown.status())
            return _page("200 OK", "application/json", body + b"\n")
        return _page("404 Not Found", "text/plain", b"expected /metrics or /status\n")


def _page(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
