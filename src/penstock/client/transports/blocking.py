"""Connections on plain sockets: for threads, for forked workers, and inside a running loop.

Nothing here suspends, so no loop is needed; a call costs one send and one receive, in the thread of
the caller. Only what shall go on when the caller stops waiting gets a thread of its own. Any number
of threads may call. A forked child starts with an empty pool: sockets of the parent are never used
from two processes.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any, Final, TypeVar

from penstock.client.errors import ClientClosed, Disconnected, Limited, TimedOut, Unreachable
from penstock.client.settings import ClientSettings
from penstock.client.transports.attempts import ThreadAttempt
from penstock.client.transports.connecting import tls_context, unreachable
from penstock.client.transports.ports import Stream, time_left
from penstock.client.transports.signals import ThreadSignal
from penstock.client.wire import Answer, AnswerReader, HttpRequest, RequestEncoder
from penstock.kernel.units import KIB

T = TypeVar("T")

_RECEIVE_BYTES: Final = 256 * KIB


class BlockingTransport:
    """Calls take a connection from the pool; those beyond its size wait in line."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._encoder = RequestEncoder(settings)
        self._tls: ssl.SSLContext | None = None
        self._closed = threading.Event()
        self._begin()
        _TRANSPORTS.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(self._settings.connections_max)
        self._idle: list[_Connection] = []
        self._in_use: set[_Connection] = set()
        self._streams: set[_Connection] = set()

    def after_fork(self) -> None:
        """Forget what belongs to the parent; closing our copies does not end its connections."""
        closed = self._closed.is_set()
        for connection in (*self._idle, *self._in_use, *self._streams):
            connection.forget()
        self._closed = threading.Event()
        if closed:
            self._closed.set()
        self._begin()

    async def exchange(self, request: HttpRequest, deadline_s: float, wait_s: float) -> Answer:
        self._check_open()
        if not self._places.acquire(timeout=time_left(deadline_s, self._settings.url)):
            raise Unreachable(
                f"expected one of {self._settings.connections_max} connections to "
                f"{self._settings.url} to be free in time, found all in use"
            )
        try:
            return self._exchange(request, deadline_s, wait_s)
        finally:
            self._places.release()

    def _exchange(self, request: HttpRequest, deadline_s: float, wait_s: float) -> Answer:
        connection = self._idle_connection() or self._connect(deadline_s)
        silence_s = self._settings.read_timeout_s + wait_s
        self._enlist(connection, self._in_use)
        try:
            answer = connection.exchange(self._encoder.encode(request), deadline_s, silence_s)
        except BaseException:
            with self._lock:
                self._in_use.discard(connection)
            connection.close()
            raise
        with self._lock:
            self._in_use.discard(connection)
            keep = connection.reusable and not self._closed.is_set()
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        return answer

    async def stream(self, request: HttpRequest, deadline_s: float) -> Stream | Answer:
        self._check_open()
        with self._lock:
            self._streams -= {stream for stream in self._streams if stream.closed}
            if len(self._streams) >= self._settings.streams_max:
                raise Limited(f"expected at most {self._settings.streams_max} streams, found more")
        connection = self._connect(deadline_s)
        self._enlist(connection, self._streams)
        try:
            data = self._encoder.encode(request)
            head = connection.open(data, deadline_s, self._settings.read_timeout_s)
        except BaseException:
            connection.close()
            raise
        if head is not None:
            connection.close()
            return head
        return connection

    def begin(self, work: Coroutine[Any, Any, T]) -> ThreadAttempt[T]:
        return ThreadAttempt(work)

    def signal(self) -> ThreadSignal:
        return ThreadSignal()

    async def pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise ClientClosed("expected an open client, found it closed")

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            connections = [*self._idle, *self._in_use, *self._streams]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _enlist(self, connection: _Connection, members: set[_Connection]) -> None:
        """Let `close` find a connection before anything waits on it."""
        with self._lock:
            is_late = self._closed.is_set()  # `close` has looked: nobody else would end it
            if not is_late:
                members.add(connection)
        if is_late:
            connection.close()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ClientClosed("expected an open client, found it closed")

    def _idle_connection(self) -> _Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.quiet:
                return connection
            connection.close()  # the server ended it while it was idle

    def _connect(self, deadline_s: float) -> _Connection:
        settings, address = self._settings, self._settings.address
        if address.tls and self._tls is None:
            self._tls = tls_context(settings)
        left_s = min(settings.connect_timeout_s, time_left(deadline_s, settings.url))
        try:
            sock = socket.create_connection((address.host, address.port), timeout=left_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=address.host)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            raise unreachable(settings.url, error, left_s) from error
        return _Connection(settings, sock)


_TRANSPORTS: weakref.WeakSet[BlockingTransport] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in list(_TRANSPORTS):
        transport.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class _Connection:
    """One connection: an exchange at a time, or one stream."""

    def __init__(self, settings: ClientSettings, sock: socket.socket) -> None:
        self._url = settings.url
        self._socket = sock
        self._reader = AnswerReader(settings.answer_bytes_max)
        self.reusable = False
        self.closed = False

    @property
    def quiet(self) -> bool:
        """Whether nothing came since the last answer: then the server still listens."""
        poll = select.poll()  # `select` cannot look at sockets with high numbers
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def exchange(self, data: bytes, deadline_s: float, silence_s: float) -> Answer:
        """Send a request and wait for the whole answer."""
        self.reusable = False
        self._send(data, deadline_s)
        while not self._reader.complete:
            self._receive(silence_s, deadline_s)
        self.reusable = self._reader.keep_alive
        return self._reader.take()

    def open(self, data: bytes, deadline_s: float, silence_s: float) -> Answer | None:
        """Send a request and wait for the head of a stream, or for a whole refusal."""
        self._send(data, deadline_s)
        reader = self._reader
        while not (reader.head_complete and (reader.status == 200 or reader.complete)):
            self._receive(silence_s, deadline_s)
        return None if reader.status == 200 else reader.take()

    async def read(self, silence_s: float) -> bytes:
        """The next bytes of a stream, b"" at its end."""
        while not self._reader.body_bytes:
            if self._reader.complete:
                return b""
            self._receive(silence_s, monotonic() + silence_s)
        return self._reader.take_body()

    def close(self) -> None:
        """End the connection; a thread that reads from it is woken."""
        self.closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """Give back this process's copy without a word to the server."""
        self.closed = True
        self._socket.close()

    def _send(self, data: bytes, deadline_s: float) -> None:
        try:
            self._socket.settimeout(time_left(deadline_s, self._url))
            self._socket.sendall(data)
        except TimeoutError as error:
            raise TimedOut(f"expected {self._url} to take the request in time") from error
        except OSError as error:
            # The server may have answered and closed before it had read everything.
            with suppress(Disconnected, TimedOut):
                while not self._reader.complete:
                    self._receive(1.0, deadline_s)
                return
            raise self._disconnected() from error

    def _receive(self, silence_s: float, deadline_s: float) -> None:
        left_s = deadline_s - monotonic()
        try:
            self._socket.settimeout(max(0.0001, min(silence_s, left_s)))  # 0 would not wait at all
            room = self._reader.room()
            data = b"" if room else self._socket.recv(_RECEIVE_BYTES)
            count = self._socket.recv_into(room) if room else len(data)
        except TimeoutError as error:
            found = "the deadline over" if left_s < silence_s else f"{silence_s:g} s of silence"
            raise TimedOut(f"expected an answer from {self._url} in time, found {found}") from error
        except OSError as error:
            raise self._disconnected() from error
        if data:
            self._reader.feed(data)
        elif count:
            self._reader.filled(count)
        else:
            self._reader.end()
            if not self._reader.complete:
                raise self._disconnected()

    def _disconnected(self) -> Disconnected:
        return Disconnected(f"expected an answer from {self._url}, found the connection closed")
