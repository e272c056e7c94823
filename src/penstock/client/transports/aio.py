"""The client's asyncio layer: connections, background requests as tasks, signals.

`transports.blocking` has the same classes with the same methods for threads. Everything above the
two is written once, for asyncio, and generated for threads.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, Generic, TypeVar, cast

from penstock.client.errors import Disconnected
from penstock.client.settings import ClientSettings
from penstock.client.transports.connecting import (
    closed_error,
    disconnected_error,
    pool_error,
    silence_error,
    streams_error,
    time_left,
    tls_context,
    unreachable,
)
from penstock.client.transports.servers import Server, Servers
from penstock.client.wire import AnswerReader, HttpAnswer, HttpRequest
from penstock.protocol.errors import CallError

T = TypeVar("T")

_CLOSING_TURNS: Final = 100
"""Loop iterations for connections to close; an abort needs one or two."""


class AsyncTransport:
    """Connections to a server. A call takes one from the pool; calls beyond its size queue.

    Deadlines are readings of `time.monotonic`.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._servers = Servers(settings)
        self._tls: ssl.SSLContext | None = None
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self._idle: list[AsyncConnection] = []
        self._open: set[AsyncConnection] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._calls = 0
        self._streams = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def exchange(self, request: HttpRequest, deadline_s: float, wait_s: float) -> HttpAnswer:
        """One request and its whole answer. The server may be silent for `wait_s` more."""
        await self._enter(deadline_s)
        try:
            connection = await self._connection(deadline_s)
            server = connection.server
            silence_s = self._settings.read_timeout_s + wait_s
            try:
                answer = await connection.exchange(
                    server.encoder.encode(request), deadline_s, silence_s
                )
            except BaseException as error:
                connection.close()
                if isinstance(error, CallError):
                    self._servers.failed(server)
                raise
            self._servers.answered(server, answer)
            if connection.reusable and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()
            return answer
        finally:
            self._leave()

    async def stream(self, request: HttpRequest, deadline_s: float) -> AsyncConnection | HttpAnswer:
        """Open a stream; a refusal comes back as a whole answer."""
        self._use_loop()
        if self._streams >= self._settings.streams_max:
            raise streams_error(self._settings)
        self._streams += 1
        connection: AsyncConnection | None = None
        try:
            connection = await self._connect(deadline_s)
            connection.on_lost = partial(self._stream_lost, connection)
            data = connection.server.encoder.encode(request)
            head = await connection.open(data, deadline_s, self._settings.read_timeout_s)
        except BaseException as error:
            if connection is None:
                self._streams -= 1
            else:
                connection.close()
                if isinstance(error, CallError):
                    self._servers.failed(connection.server)
            raise
        if head is not None:
            self._servers.answered(connection.server, head)
            connection.close()
        return connection if head is None else head

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for connection in list(self._open):
            connection.close()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def aclose(self) -> None:
        """Close every connection and wait until they are closed."""
        self.close()
        for _ in range(_CLOSING_TURNS):
            if not self._open:
                return
            await asyncio.sleep(0)

    def _use_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop; connections of an earlier loop are dropped."""
        if self._closed:
            raise closed_error("client")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._forget()
            self._loop = loop
        return loop

    async def _enter(self, deadline_s: float) -> None:
        loop = self._use_loop()
        if self._calls < self._settings.connections_max and not self._waiters:
            self._calls += 1
            return
        waiter = loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(time_left(deadline_s, self._settings.url)):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._leave()  # the slot was granted: pass it on
            elif waiter in self._waiters:  # or a call that left has skipped it
                self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise pool_error(self._settings) from None
            raise
        if self._closed:
            raise closed_error("client")

    def _leave(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot is taken: no other call gets in between
                return
        self._calls -= 1

    async def _connection(self, deadline_s: float) -> AsyncConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.server is self._servers.current:
                return connection
            connection.close()
        return await self._connect(deadline_s)

    async def _connect(self, deadline_s: float) -> AsyncConnection:
        server = self._servers.current
        settings, address = server.settings, server.settings.address
        if address.tls and self._tls is None:
            self._tls = tls_context(settings)
        left_s = min(settings.connect_timeout_s, time_left(deadline_s, settings.url))
        loop = self._use_loop()
        try:
            async with asyncio.timeout(left_s):
                _, connection = await loop.create_connection(
                    lambda: AsyncConnection(server, loop, self._open),
                    address.host,
                    address.port,
                    ssl=self._tls if address.tls else None,
                )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self._servers.failed(server)
            raise unreachable(settings.url, error, left_s) from error
        if self._closed:  # `close` was called before there was anything to close
            connection.close()
            raise closed_error("client")
        return connection

    def _stream_lost(self, connection: AsyncConnection) -> None:
        if connection.loop is self._loop:
            self._streams -= 1


class AsyncConnection(asyncio.Protocol):
    """One connection: an exchange at a time, or one stream."""

    def __init__(
        self,
        server: Server,
        loop: asyncio.AbstractEventLoop,
        members: set[AsyncConnection],
    ) -> None:
        settings = server.settings
        self.server = server
        self._url = settings.url
        self.loop = loop
        self._members = members
        self._reader = AnswerReader(settings.answer_bytes_max)
        self._buffer_bytes = settings.stream_buffer_bytes
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._busy = False
        self._streaming = False
        self._paused = False
        self._lost = False
        self._error: CallError | None = None
        self.on_lost: Callable[[], None] = _nothing

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._members.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._busy:
            self.close()  # no request is pending, so this is not an answer
            return
        self._heard_s = monotonic()
        try:
            self._reader.feed(data)
        except CallError as error:
            self._error = error
            self.close()
        if self._streaming and self._reader.body_bytes > self._buffer_bytes and self._transport:
            self._paused = True
            self._transport.pause_reading()
        if self._streaming or self._reader.complete or self._error:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._reader.end()
        self._members.discard(self)
        self.on_lost()
        self._wake()

    # Called by the transport above.

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return not self._lost and not self._busy and self._transport is not None

    async def exchange(self, data: bytes, deadline_s: float, silence_s: float) -> HttpAnswer:
        """Send a request and wait for the whole answer."""
        self._send(data)
        while not self._reader.complete:
            self._check()
            await self._wait(silence_s, deadline_s)
        keep_alive = self._reader.keep_alive
        answer = self._reader.take()
        self._busy = False
        if not keep_alive:
            self.close()
        return answer

    async def open(self, data: bytes, deadline_s: float, silence_s: float) -> HttpAnswer | None:
        """Send a request and wait for the head of a stream, or for a whole refusal."""
        self._streaming = True
        self._send(data)
        reader = self._reader
        while not (reader.head_complete and (reader.status == 200 or reader.complete)):
            self._check()
            await self._wait(silence_s, deadline_s)
        return None if reader.status == 200 else reader.take()

    async def read(self, silence_s: float) -> bytes:
        """The next bytes of a stream, b"" at its end."""
        reader = self._reader
        while not reader.body_bytes:
            if reader.complete:
                return b""
            self._check()
            await self._wait(silence_s)
        data = reader.take_body()
        if self._paused and self._transport is not None and not self._lost:
            self._paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close the connection at once."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()

    def _send(self, data: bytes) -> None:
        self._busy = True
        if self._transport is not None:
            self._transport.write(data)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._lost:
            raise disconnected_error(self._url)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, silence_s: float, deadline_s: float = inf) -> None:
        """Wait for input. The timer is rescheduled when it fires, not with every byte."""
        self._waiter = waiter = self.loop.create_future()
        self._heard_s = monotonic()
        self._watch_time(waiter, silence_s, deadline_s)
        try:
            await waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()

    def _watch_time(
        self, waiter: asyncio.Future[None], silence_s: float, deadline_s: float
    ) -> None:
        if waiter.done():
            return
        left_s = min(self._heard_s + silence_s, deadline_s) - monotonic()
        if left_s > 0:
            self._timer = self.loop.call_later(
                left_s, self._watch_time, waiter, silence_s, deadline_s
            )
            return
        is_late = monotonic() >= deadline_s
        waiter.set_exception(silence_error(self._url, None if is_late else silence_s))


class AsyncAttempt(Generic[T]):
    """Work in progress as a task, which continues when the caller stops waiting for it.

    If its loop ends first, that counts as a lost connection.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], name: str | None = None) -> None:
        self._task = asyncio.get_running_loop().create_task(work(), name=name)
        self._task.add_done_callback(_retrieve_error)

    async def over(self, deadline_s: float) -> bool:
        """Wait for it to finish; False if the deadline comes first."""
        if self._task.get_loop() is not asyncio.get_running_loop():
            return True
        left_s = None if deadline_s == inf else deadline_s - monotonic()
        await asyncio.wait((self._task,), timeout=left_s)
        return self._task.done()

    def result(self) -> T:
        """Once it has finished: its return value, or its error raised."""
        if not self._task.done() or self._task.cancelled():
            raise Disconnected("the event loop ended before the server answered")
        return self._task.result()

    def drop(self) -> None:
        """End it as soon as possible, and close a stream that it opened."""
        if not self._task.done():
            if not self._task.get_loop().is_closed():
                self._task.cancel()
        elif not self._task.cancelled() and self._task.exception() is None:
            _close_stream(self._task.result())

    def call(self, what: Callable[[], None]) -> None:
        """Call a function where the work runs. Thread-safe."""
        with suppress(RuntimeError):  # nothing continues in a loop that has ended
            self._task.get_loop().call_soon_threadsafe(what)


class AsyncSignal:
    """Signals to tasks of one loop that something changed.

    It counts, so that no change is missed: read `count`, check the state, then wait for another
    count.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something changed."""
        self.count += 1
        for waiter in self._waiting:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def changed(self, seen: int, wait_s: float) -> None:
        """Return once the count differs from `seen`, or after `wait_s`."""
        if self.count != seen:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            if wait_s == inf:
                await waiter
            else:
                await asyncio.wait((waiter,), timeout=max(0.0, wait_s))
        finally:
            self._waiting.discard(waiter)


def at_exit(close: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:  # noqa: ARG001
    """Call `close` when the program ends; returns a function that undoes the registration.

    Here it does nothing: a program on asyncio ends with its loop, where nothing can run any more.
    """
    return _nothing


def is_cancellation(error: BaseException | None) -> bool:
    """Whether a block was left because its task is cancelled, so that it must not wait."""
    return error is not None and not isinstance(error, Exception)


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Otherwise asyncio logs the errors of attempts whose result is never read."""
    if not task.cancelled():
        task.exception()


def _close_stream(answer: object) -> None:
    if isinstance(answer, AsyncConnection):
        answer.close()


def _nothing() -> None:
    pass
