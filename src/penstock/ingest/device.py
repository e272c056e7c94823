"""A device client: sends messages, waits while the edge is slow, reconnects and resends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Final, Self, cast

from penstock.flow.backoff import Backoff
from penstock.ingest.device_core import DeviceCore
from penstock.ingest.frames import (
    Ack,
    Failure,
    FrameReader,
    Pong,
    Welcome,
    encode_hello,
    encode_ping,
)
from penstock.kernel.errors import PenstockError
from penstock.kernel.units import KIB

WRITE_BYTES_MAX: Final = 256 * KIB
PING_SHARE: Final = 0.4
"""PING after this share of the silence that the edge allows."""


class Device:
    """An async device client with a window of messages that are not acknowledged.

    `send` waits for the window and the socket; `flush` for every acknowledgement. A lost
    connection is made again and what is not acknowledged is sent again.
    """

    def __init__(
        self,
        host: str,
        port: int,
        name: str,
        token: bytes = b"",
        *,
        tls: ssl.SSLContext | None = None,
        window_max: int = 256,
        random: Random | None = None,
    ) -> None:
        self.name = name
        self.core = DeviceCore(window_max)
        self.connects = 0
        self.trouble: str | None = None
        """Why there is no connection to an edge now; None while there is one, and before a try."""
        self.on_acked: Callable[[tuple[int, ...]], None] | None = None
        self._address = host, port
        self._hello = encode_hello(name, token)
        self._tls = tls
        self._random = random or Random()
        self._backoff = Backoff(base_ms=50, cap_ms=2_000, jitter=0.5, window_ms=float("inf"))
        self._link: _DeviceLink | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Connect, and stay connected until `close`."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def send(self, payload: bytes) -> int:
        """Send a message as soon as the window allows; its id. It is not acknowledged yet."""
        await self._until(lambda: self.core.has_room and self._is_writable)
        message_id, frames = self.core.message(payload)
        if self._link is not None:
            self._link.write(frames)
        return message_id

    async def flush(self) -> None:
        """Return once every message is acknowledged (or refused for good)."""
        await self._until(lambda: not self.core.unacked)

    async def close(self) -> None:
        """Disconnect; what is not acknowledged stays unacknowledged."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def drop(self) -> None:
        """Lose the connection, as a bad network would."""
        if self._link is not None:
            self._link.abort()

    @property
    def _is_writable(self) -> bool:
        return self._link is None or self._link.is_writable

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self.core.failure is not None or not condition():
            if self.core.failure is not None:
                raise self.core.failure
            self._changed.clear()
            await self._changed.wait()

    async def _run(self) -> None:
        failures = 0
        while self.core.failure is None:
            try:
                was_welcome = await self._one_connection()
                self.trouble = "the connection was closed"
            except (OSError, PenstockError) as error:
                was_welcome = False
                self.trouble = str(error)
            failures = 0 if was_welcome else failures + 1
            delay_ms = self._backoff.next_ms(failures + 1, elapsed_ms=0, random=self._random)
            await asyncio.sleep((delay_ms or 0) / 1_000)

    async def _one_connection(self) -> bool:
        """Connect and stay until the connection ends; whether the edge said WELCOME."""
        loop = asyncio.get_running_loop()
        self.connects += 1
        _, link = await loop.create_connection(
            lambda: _DeviceLink(self._hello, self._received, self._changed),
            *self._address,
            ssl=self._tls,
        )
        pinging = asyncio.ensure_future(self._ping(link))
        try:
            await link.lost
        finally:
            pinging.cancel()
            link.abort()
            self._link = None
            self._changed.set()
        return link.was_welcome

    async def _ping(self, link: _DeviceLink) -> None:
        while True:
            idle_ms = self.core.welcome.idle_ms if self.core.welcome else 60_000
            await asyncio.sleep(PING_SHARE * idle_ms / 1_000)
            link.write(encode_ping())

    def _received(self, link: _DeviceLink, frame: object) -> None:
        core = self.core
        if isinstance(frame, Ack):
            core.acknowledged(frame.message_ids)
            if self.on_acked is not None:
                self.on_acked(frame.message_ids)
        elif isinstance(frame, Welcome):
            link.was_welcome = True
            self.trouble = None
            self._link = link
            link.write(core.welcomed(frame))
        elif isinstance(frame, Failure):
            core.failed(frame)
        elif not isinstance(frame, Pong):
            link.abort()  # the peer is not an edge; the next connection may reach one
        self._changed.set()


class _DeviceLink(asyncio.Protocol):
    def __init__(
        self,
        hello: bytes,
        received: Callable[[_DeviceLink, object], None],
        changed: asyncio.Event,
    ) -> None:
        self.is_writable = True
        self.was_welcome = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hello = hello
        self._received = received
        self._changed = changed
        self._reader = FrameReader(64 * KIB, opening=False)
        self._transport = cast(asyncio.Transport, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)
        self._transport.write(self._hello)

    def data_received(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self._received(self, frame)
        if self._reader.error is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        self._changed.set()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()
