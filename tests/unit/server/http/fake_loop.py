"""A loop, a transport and a peer that do nothing by themselves: tests say what happens when."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from penstock.server.http.head import Overlaps, nothing_overlaps
from penstock.server.http.listener import NewConnection
from penstock.server.http.message import Application, Exchange, TransportLimits
from penstock.server.http.service import Service


class FakeLoop:
    """Time stands still until told otherwise; callbacks wait until `run`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., object], *parts: Any) -> None:
        self._soon.append((callback, parts))

    def run_in_executor(self, _: None, work: Callable[..., Any], *parts: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.call_soon(lambda: done.set_result(work(*parts)))
        return done

    def run(self) -> None:
        while self._soon:
            callback, parts = self._soon.popleft()
            callback(*parts)


class FakeTransport:
    """Keeps what is written. While `stuck`, the socket takes nothing and bytes stay buffered."""

    def __init__(self, loop: FakeLoop) -> None:
        self.loop = loop
        self.protocol: Any = None
        self.sent = bytearray()
        self.buffer = bytearray()
        self.stuck = False
        self.reading = True
        self.closing = False
        self.lost = False
        self.aborted = False
        self.eof_written = False
        self.writes = 0
        self._high = 64 * 1024
        self._paused = False

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def write(self, data: bytes) -> None:
        assert not self.lost, "written after the end"
        self.writes += 1
        (self.buffer if self.stuck else self.sent).extend(data)
        if len(self.buffer) > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def unstick(self) -> None:
        self.stuck = False
        self.sent += self.buffer
        self.buffer.clear()
        if self._paused:
            self._paused = False
            self.protocol.resume_writing()
        if self.closing:
            self._lose()
        self.loop.run()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof_written = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self.buffer:
                self._lose()

    def abort(self) -> None:
        self.aborted = True
        self.closing = True
        self._lose()

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.loop.call_soon(lambda: self.protocol.connection_lost(None))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class Peer:
    """The other end of one connection of a service."""

    def __init__(
        self,
        application: Application,
        limits: TransportLimits | None = None,
        *,
        service: Service | None = None,
        overlaps: Overlaps = nothing_overlaps,
    ) -> None:
        if service is None:
            service = Service(
                application,
                limits or TransportLimits(),
                FakeLoop(),  # type: ignore[arg-type]
                overlaps=overlaps,
                wall_s=lambda: 0.0,
            )
        self.service = service
        self.loop: FakeLoop = service.loop  # type: ignore[assignment]
        self.transport = FakeTransport(self.loop)
        first = NewConnection(service)
        self.transport.set_protocol(first)
        first.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        """Bytes arrive, if the server reads them."""
        assert self.transport.reading, "the server does not read"
        if not self.transport.lost:
            self.transport.protocol.data_received(data)
        self.loop.run()

    def stop_sending(self) -> None:
        """The peer shuts down its sending side, or is gone: nobody can tell."""
        self.transport.reading = False
        if not self.transport.protocol.eof_received():
            self.transport.close()
        self.loop.run()

    def go(self) -> None:
        """The peer goes away."""
        self.transport.closing = True
        self.transport._lose()
        self.loop.run()

    def wait(self, seconds: int) -> None:
        """Let time pass, a second at a time."""
        for _ in range(seconds):
            self.loop.now_s += 1.0
            self.service.tick()
            self.loop.run()

    @property
    def sent(self) -> bytes:
        return bytes(self.transport.sent)

    def answers(self) -> list[Answer]:
        """Every whole answer that was sent."""
        found = []
        rest = self.sent
        while rest:
            head, _, rest = rest.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            length = int(headers.get("content-length", 0))
            found.append(Answer(int(first.split()[1]), headers, rest[:length]))
            rest = rest[length:]
        return found


def echo(exchange: Exchange) -> None:
    """Answer with everything the application was told."""
    request = exchange.request
    exchange.reply_json(
        json.dumps(
            [request.method, request.path, request.query, request.headers,
             request.body.decode("latin-1")]
        ).encode()
    )  # fmt: skip


class Desk:
    """An application that keeps exchanges until the test answers them."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.gone: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        exchange.on_gone = lambda: self.gone.append(exchange.request.path)


def all_overlap(_method: str, _path: str) -> bool:
    """Every request may begin at once."""
    return True


def get(path: str, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in ("Host: a", *headers))
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in ("Host: a", *headers))
    return f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
