"""Tells a process on the same machine that a lake has a new snapshot.

A signal carries no data; it only saves a follower the wait for its next look. It is a datagram to a
socket in Linux's abstract namespace, named after the lake, which leaves no file behind and
disappears with its process. Without a follower, or from another machine, nothing happens.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from penstock.lake.database import Database, SqliteDatabase

_SIGNAL: Final = b"."


def bell_address(database: Database, data_path: str) -> str:
    """The address of a lake's follower; a copy of a SQLite catalog has a different one."""
    place = str(Path(database.path).resolve()) if isinstance(database, SqliteDatabase) else ""
    digest = blake2b(f"{place}\n{data_path}".encode(), digest_size=12).hexdigest()
    return f"\0penstock-lake-{digest}"


class BellRinger:
    """Signals a lake's follower. Thread-safe."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def ring(self) -> None:
        """There is a new snapshot."""
        with suppress(OSError):  # no follower, or one that has not read earlier signals yet
            self._socket.sendto(_SIGNAL, self._address)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class LakeBell:
    """The follower's end. Selectable; for one thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._is_open = False
        self.open()

    def open(self) -> bool:
        """Bind the address, unless another process holds it; may be retried."""
        if not self._is_open:
            with suppress(OSError):  # in use, or no abstract sockets on this system
                self._socket.bind(self._address)
                self._is_open = True
        return self._is_open

    def fileno(self) -> int:
        """For selecting: readable when the bell was rung."""
        return self._socket.fileno()

    def receive(self) -> bool:
        """Take all signals; returns whether there were any."""
        rung = False
        with suppress(BlockingIOError):
            while self._socket.recv(16):
                rung = True
        return rung

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
