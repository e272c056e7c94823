"""The client's threads layer: connections, background requests as threads, signals.

`transports.aio` has the same classes with the same methods for asyncio. No event loop is needed: a
call costs one send and one receive in the caller's thread, also inside a running loop. Only work
that must continue when the caller stops waiting gets its own thread. Any number of threads may
call. A forked child starts with an empty pool, so that two processes never share a socket.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, Generic, TypeVar, cast

from penstock.client.errors import Disconnected, TimedOut
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
from penstock.kernel.units import KIB
from penstock.protocol.errors import CallError

T = TypeVar("T")

_RECEIVE_BYTES: Final = 256 * KIB


class Transport:
    """Connections to a server. A call takes one from the pool; calls beyond its size queue.

    Deadlines are readings of `time.monotonic`.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._servers = Servers(settings)
        self._tls: ssl.SSLContext | None = None
        self._closed = threading.Event()
        self._begin()
        _TRANSPORTS.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(self._settings.connections_max)
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._streams: set[Connection] = set()

    def after_fork(self) -> None:
        """Forget the parent's connections. Closing our copies does not end them."""
        closed = self._closed.is_set()
        for connection in (*self._idle, *self._in_use, *self._streams):
            connection.forget()
        self._closed = threading.Event()
        if closed:
            self._closed.set()
        self._begin()

    def exchange(self, request: HttpRequest, deadline_s: float, wait_s: float) -> HttpAnswer:
        """One request and its whole answer. The server may be silent for `wait_s` more."""
        self._check_open()
        if not self._places.acquire(timeout=time_left(deadline_s, self._settings.url)):
            raise pool_error(self._settings)
        try:
            return self._exchange(request, deadline_s, wait_s)
        finally:
            self._places.release()

    def _exchange(self, request: HttpRequest, deadline_s: float, wait_s: float) -> HttpAnswer:
        connection = self._idle_connection() or self._connect(deadline_s)
        server = connection.server
        silence_s = self._settings.read_timeout_s + wait_s
        self._enlist(connection, self._in_use)
        try:
            answer = connection.exchange(server.encoder.encode(request), deadline_s, silence_s)
        except BaseException as error:
            with self._lock:
                self._in_use.discard(connection)
            connection.close()
            if isinstance(error, CallError):
                self._servers.failed(server)
            raise
        self._servers.answered(server, answer)
        with self._lock:
            self._in_use.discard(connection)
            keep = connection.reusable and not self._closed.is_set()
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        return answer

    def stream(self, request: HttpRequest, deadline_s: float) -> Connection | HttpAnswer:
        """Open a stream; a refusal comes back as a whole answer."""
        self._check_open()
        with self._lock:
            self._streams -= {stream for stream in self._streams if stream.closed}
            if len(self._streams) >= self._settings.streams_max:
                raise streams_error(self._settings)
        connection = self._connect(deadline_s)
        self._enlist(connection, self._streams)
        try:
            data = connection.server.encoder.encode(request)
            head = connection.open(data, deadline_s, self._settings.read_timeout_s)
        except BaseException as error:
            connection.close()
            if isinstance(error, CallError):
                self._servers.failed(connection.server)
            raise
        if head is not None:
            self._servers.answered(connection.server, head)
            connection.close()
            return head
        return connection

    def pause(self, seconds: float) -> None:
        """Wait."""
        if self._closed.wait(seconds):
            raise closed_error("client")

    def close(self) -> None:
        """Close every connection."""
        self._closed.set()
        with self._lock:
            connections = [*self._idle, *self._in_use, *self._streams]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def _enlist(self, connection: Connection, members: set[Connection]) -> None:
        """Register a connection for `close` before anything waits on it."""
        with self._lock:
            is_late = self._closed.is_set()  # `close` has already run and would not close it
            if not is_late:
                members.add(connection)
        if is_late:
            connection.close()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise closed_error("client")

    def _idle_connection(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.server is self._servers.current and connection.quiet:
                return connection
            connection.close()  # the server closed it while it was idle, or another one is used

    def _connect(self, deadline_s: float) -> Connection:
        server = self._servers.current
        settings, address = server.settings, server.settings.address
        if address.tls and self._tls is None:
            self._tls = tls_context(settings)
        left_s = min(settings.connect_timeout_s, time_left(deadline_s, settings.url))
        try:
            sock = socket.create_connection((address.host, address.port), timeout=left_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None and address.tls:
                sock = self._tls.wrap_socket(sock, server_hostname=address.host)
        except (OSError, ssl.SSLError, TimeoutError) as error:
            self._servers.failed(server)
            raise unreachable(settings.url, error, left_s) from error
        return Connection(server, sock)


_TRANSPORTS: weakref.WeakSet[Transport] = weakref.WeakSet()


def _after_fork() -> None:
    for transport in list(_TRANSPORTS):
        transport.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class Connection:
    """One connection: an exchange at a time, or one stream."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        settings = server.settings
        self.server = server
        self._url = settings.url
        self._socket = sock
        self._reader = AnswerReader(settings.answer_bytes_max)
        self.reusable = False
        self.closed = False

    @property
    def quiet(self) -> bool:
        """Whether nothing arrived since the last answer: then the server still listens."""
        poll = select.poll()  # `select` does not support high descriptors
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def exchange(self, data: bytes, deadline_s: float, silence_s: float) -> HttpAnswer:
        """Send a request and wait for the whole answer."""
        self.reusable = False
        self._send(data, deadline_s)
        while not self._reader.complete:
            self._receive(silence_s, deadline_s)
        self.reusable = self._reader.keep_alive
        return self._reader.take()

    def open(self, data: bytes, deadline_s: float, silence_s: float) -> HttpAnswer | None:
        """Send a request and wait for the head of a stream, or for a whole refusal."""
        self._send(data, deadline_s)
        reader = self._reader
        while not (reader.head_complete and (reader.status == 200 or reader.complete)):
            self._receive(silence_s, deadline_s)
        return None if reader.status == 200 else reader.take()

    def read(self, silence_s: float) -> bytes:
        """The next bytes of a stream, b"" at its end."""
        while not self._reader.body_bytes:
            if self._reader.complete:
                return b""
            self._receive(silence_s, monotonic() + silence_s)
        return self._reader.take_body()

    def close(self) -> None:
        """Close the connection; a thread that reads from it is woken."""
        self.closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def forget(self) -> None:
        """Close this process's copy without shutting down the connection."""
        self.closed = True
        self._socket.close()

    def _send(self, data: bytes, deadline_s: float) -> None:
        try:
            self._socket.settimeout(time_left(deadline_s, self._url))
            self._socket.sendall(data)
        except TimeoutError as error:
            raise TimedOut(f"{self._url} did not take the request before the deadline") from error
        except OSError as error:
            # The server may have answered and closed before it read everything.
            with suppress(Disconnected, TimedOut):
                while not self._reader.complete:
                    self._receive(1.0, deadline_s)
                return
            raise disconnected_error(self._url) from error

    def _receive(self, silence_s: float, deadline_s: float) -> None:
        left_s = deadline_s - monotonic()
        try:
            self._socket.settimeout(max(0.0001, min(silence_s, left_s)))  # 0 would not wait at all
            room = self._reader.room()
            data = b"" if room else self._socket.recv(_RECEIVE_BYTES)
            count = self._socket.recv_into(room) if room else len(data)
        except TimeoutError as error:
            is_late = left_s < silence_s
            raise silence_error(self._url, None if is_late else silence_s) from error
        except OSError as error:
            raise disconnected_error(self._url) from error
        if data:
            self._reader.feed(data)
        elif count:
            self._reader.filled(count)
        else:
            self._reader.end()
            if not self._reader.complete:
                raise disconnected_error(self._url)


class Attempt(threading.Thread, Generic[T]):
    """Work in progress in a thread, which continues when the caller stops waiting for it.

    In a forked child, where the thread does not run, that counts as a lost connection.
    """

    def __init__(self, work: Callable[[], T], name: str | None = None) -> None:
        super().__init__(name=name or "penstock request", daemon=True)
        self._work = work
        self._answer: T | None = None
        self._error: Exception | None = Disconnected(
            "the process was forked, or the stream closed, before the server answered"
        )
        self._wanted = True
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Run the work, in the new thread."""
        try:
            self._answer = self._work()
            self._error = None
        except Exception as error:  # raised again where the result is read
            self._error = error
        if not self._wanted:
            _close_stream(self._answer)
        self._over.set()

    def over(self, deadline_s: float) -> bool:
        """Wait for it to finish; False if the deadline comes first.

        A thread never waits for itself.
        """
        if not self.is_alive() or threading.current_thread() is self:
            return True  # also in a forked child, where the event would never be set
        return self._over.wait(min(max(0.0, deadline_s - monotonic()), threading.TIMEOUT_MAX))

    def result(self) -> T:
        """Once it has finished: its return value, or its error raised."""
        if self._error is not None:
            raise self._error
        return cast(T, self._answer)

    def drop(self) -> None:
        """End it as soon as possible, and close a stream that it opened."""
        self._wanted = False  # before checking for the answer: one of the two threads sees both
        _close_stream(self._answer)
        self._over.set()

    def call(self, what: Callable[[], None]) -> None:
        """Call a function where the work runs. With threads, that is here."""
        what()


class Signal:
    """Signals to threads that something changed.

    It counts, so that no change is missed: read `count`, check the state, then wait for another
    count.
    """

    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()

    def tell(self) -> None:
        """Something changed."""
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def changed(self, seen: int, wait_s: float) -> None:
        """Return once the count differs from `seen`, or after `wait_s`."""
        limit_s = None if wait_s == inf else min(max(0.0, wait_s), threading.TIMEOUT_MAX)
        with self._condition:
            self._condition.wait_for(lambda: self.count != seen, limit_s)


def at_exit(close: Callable[[], None]) -> Callable[[], None]:
    """Call `close` when the program ends; returns a function that undoes the registration."""
    atexit.register(close)
    return lambda: atexit.unregister(close)


def is_cancellation(error: BaseException | None) -> bool:  # noqa: ARG001
    """Whether a block was left because it is cancelled. A thread never is."""
    return False


def _close_stream(answer: object) -> None:
    if isinstance(answer, Connection):
        answer.close()
