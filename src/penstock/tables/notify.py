"""A bell between a coordinator and callers on the same machine: there is something new to look at.

Requests and answers are rows of the catalog. A bell carries none of it; it only saves both sides
the wait for their next look. It is a socket in Linux's abstract namespace, named after the
warehouse, so it leaves no file behind and is gone with its process. Where it cannot be reached, as
from another machine or container, rows are found by looking from time to time.
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

CALLERS_MAX: Final = 128
"""Callers beyond that are not rung for: they look from time to time."""
LOOK_S: Final = (0.02, 0.25)
"""How often a caller looks for itself: one that cannot be rung for, and one that can."""
_RING: Final = b"."
_CHUNK_BYTES: Final = 4_096


def bell_name(store: TableStore) -> str:
    """The address of a warehouse's bell; a copy of a SQLite catalog has another."""
    database = store.lake.database
    place = str(Path(database.path).resolve()) if isinstance(database, SqliteDatabase) else ""
    digest = blake2b(f"{store.warehouse}\n{place}".encode(), digest_size=12).hexdigest()
    return f"\0penstock-{digest}"


class Bell:
    """The coordinator's end. Select on it; for one thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._selector = selectors.DefaultSelector()
        self._door: socket.socket | None = None
        self._callers: set[socket.socket] = set()
        self.open()

    def open(self) -> bool:
        """Have the address, unless another process has it still; may be tried again."""
        if self._door is None:
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                door.bind(self._name)
            except OSError:  # in use, or a system without such addresses
                door.close()
                return False
            door.listen(CALLERS_MAX)
            door.setblocking(False)
            self._selector.register(door, selectors.EVENT_READ)
            self._door = door
        return True

    def fileno(self) -> int:
        """For selecting: readable when `hear` has something to do."""
        return int(self._selector.fileno())

    def hear(self) -> bool:
        """Take calls; whether one of the callers rang."""
        rung = False
        for key, _ in self._selector.select(0):
            end = key.fileobj
            if end is self._door:
                self._accept()
            elif isinstance(end, socket.socket):
                rung |= self._read(end)
        return rung

    def ring(self) -> None:
        """Say to all callers that there is something new."""
        for caller in list(self._callers):
            try:
                caller.send(_RING)
            except BlockingIOError:
                continue  # it has not taken what was rung before
            except OSError:
                self._hang_up(caller)

    def close(self) -> None:
        """Close it, and the ends of all callers."""
        for caller in list(self._callers):
            self._hang_up(caller)
        if self._door is not None:
            self._door.close()
        self._selector.close()

    def _accept(self) -> None:
        assert self._door is not None
        with suppress(OSError):
            caller, _ = self._door.accept()
            if len(self._callers) >= CALLERS_MAX:
                caller.close()
                return
            caller.setblocking(False)
            self._selector.register(caller, selectors.EVENT_READ)
            self._callers.add(caller)

    def _read(self, caller: socket.socket) -> bool:
        try:
            found = caller.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            found = b""
        if not found:
            self._hang_up(caller)
        return bool(found)

    def _hang_up(self, caller: socket.socket) -> None:
        self._callers.discard(caller)
        with suppress(KeyError, ValueError):
            self._selector.unregister(caller)
        caller.close()


class BellCall:
    """A caller's end: rings, and hears the coordinator ring. For one thread."""

    def __init__(self, name: str) -> None:
        self._end: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._end.connect(name)
            self._end.setblocking(False)
        except OSError:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether there is a coordinator at the other end."""
        return self._end is not None

    def ring(self) -> None:
        """Have the coordinator look at the catalog."""
        if self._end is not None:
            with suppress(OSError):
                self._end.send(_RING)

    def fileno(self) -> int:
        """For selecting: readable when the coordinator rang, or is gone."""
        return -1 if self._end is None else self._end.fileno()

    @property
    def patience_s(self) -> float:
        """How long to wait before the next look: not for long where nobody can ring."""
        return LOOK_S[0] if self._end is None else LOOK_S[1]

    def wait(self, timeout_s: float) -> None:
        """Wait until the coordinator rings, or until it is time to look all the same."""
        wait_s = min(timeout_s, self.patience_s)
        if self._end is None:
            time.sleep(wait_s)
            return
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        if poll.poll(wait_s * 1_000):
            self.hear()

    def hear(self) -> None:
        """Take what was rung."""
        if self._end is None:
            return
        try:
            found = self._end.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        if not found:
            self.close()

    def close(self) -> None:
        """Hang up."""
        if self._end is not None:
            self._end.close()
            self._end = None
