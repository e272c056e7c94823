"""Notifications between a coordinator and callers on the same machine: the catalog has changed.

Requests and answers are rows of the catalog. A notification carries no data; it only saves both
sides the wait for their next poll. It uses a socket in Linux's abstract namespace, named after the
warehouse, which leaves no file behind and disappears with its process. Where it cannot be reached,
as from another machine or container, rows are found by polling.
"""

from __future__ import annotations

import select
import selectors
import socket
import time
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, Self

from penstock.lake.database import SqliteDatabase
from penstock.tables.store import TableStore

CONNECTIONS_MAX: Final = 128
"""Callers beyond this limit are not notified: they poll."""
POLL_S: Final = (0.02, 0.25)
"""Poll interval of a caller: without and with notifications."""
_SIGNAL: Final = b"."
_CHUNK_BYTES: Final = 4_096


def notify_address(store: TableStore) -> str:
    """The address of a warehouse's coordinator; a copy of a SQLite catalog has a different one."""
    database = store.lake.database
    place = str(Path(database.path).resolve()) if isinstance(database, SqliteDatabase) else ""
    digest = blake2b(f"{store.warehouse}\n{place}".encode(), digest_size=12).hexdigest()
    return f"\0penstock-{digest}"


class Notifier:
    """The coordinator's end. Selectable; for one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self.open()

    def open(self) -> bool:
        """Bind the address, unless another process holds it; may be retried."""
        if self._listener is None:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(self._name)
            except OSError:  # in use, or no abstract sockets on this system
                listener.close()
                return False
            listener.listen(CONNECTIONS_MAX)
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
            self._listener = listener
        return True

    def fileno(self) -> int:
        """For selecting: readable when `receive` has something to do."""
        return int(self._selector.fileno())

    def receive(self) -> bool:
        """Accept callers and read from them; returns whether one of them notified."""
        notified = False
        for key, _ in self._selector.select(0):
            ready = key.fileobj
            if ready is self._listener:
                self._accept()
            elif isinstance(ready, socket.socket):
                notified |= self._read(ready)
        return notified

    def notify(self) -> None:
        """Notify all callers that the catalog has changed."""
        for connection in list(self._connections):
            try:
                connection.send(_SIGNAL)
            except BlockingIOError:
                continue  # it has not read earlier notifications yet
            except OSError:
                self._disconnect(connection)

    def close(self) -> None:
        """Close the socket and all callers' connections."""
        for connection in list(self._connections):
            self._disconnect(connection)
        if self._listener is not None:
            self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if len(self._connections) >= CONNECTIONS_MAX:
                connection.close()
                return
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ)
            self._connections.add(connection)

    def _read(self, connection: socket.socket) -> bool:
        try:
            found = connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            found = b""
        if not found:
            self._disconnect(connection)
        return bool(found)

    def _disconnect(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()


class NotifierCall:
    """A caller's end: notifies the coordinator, and is notified by it. For one thread."""

    def __init__(self, name: str) -> None:
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(name)
            self._socket.setblocking(False)
        except OSError:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it is connected to a coordinator."""
        return self._socket is not None

    def notify(self) -> None:
        """Make the coordinator read the catalog."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.send(_SIGNAL)

    def fileno(self) -> int:
        """For selecting: readable when the coordinator notified or disconnected."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def patience_s(self) -> float:
        """The delay before the next poll: short if there is no coordinator to notify us."""
        return POLL_S[0] if self._socket is None else POLL_S[1]

    def wait(self, timeout_s: float) -> None:
        """Wait until the coordinator notifies, or until it is time to poll."""
        wait_s = min(timeout_s, self.patience_s)
        if self._socket is None:
            time.sleep(wait_s)
            return
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if poll.poll(wait_s * 1_000):
            self.receive()

    def receive(self) -> None:
        """Consume pending notifications."""
        if self._socket is None:
            return
        try:
            found = self._socket.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        if not found:
            self.close()

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
