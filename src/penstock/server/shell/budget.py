"""Memory for request bodies, shared by every connection.

Bytes are counted when they arrive and given back when the request is answered. Above the budget
an unfinished body must wait, except one: somebody can always finish, so nobody waits for ever. The
favour goes to the next only when that one is answered, so the memory in use stays below the
budget, one body, and one read of each connection.
"""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """Somebody who reads a body."""

    def resume_body(self) -> None:
        """Read on: there is room again."""


class BodyBudget:
    """Counts the bytes of request bodies and says who may read on."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._favoured: Waiter | bytes | None = None
        """Who may go beyond the budget: a reader, or its body until that is answered."""
        self._waiting: dict[Waiter, None] = {}

    def take(self, waiter: Waiter, size: int) -> bool:
        """Count bytes of an unfinished body; False if its reader must wait for `resume_body`."""
        self.used += size
        if self.used <= self.bytes_max or self._favoured is waiter:
            return True
        if self._favoured is None:
            self._favoured = waiter
            return True
        self._waiting[waiter] = None
        return False

    def finish(self, waiter: Waiter, body: bytes | None) -> None:
        """A body is whole, or given up: its reader waits no more."""
        self._waiting.pop(waiter, None)
        if self._favoured is waiter:
            self._favoured = body or None
            self._wake()

    def give(self, size: int, body: bytes | None) -> None:
        """Take bytes back, with the body if they were those of a whole one."""
        self.used -= size
        if body and self._favoured is body:
            self._favoured = None
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        waiting = self._waiting
        if not waiting:
            return
        if self.used <= self.bytes_max:
            self._waiting = {}
            for waiter in waiting:
                waiter.resume_body()
        elif self._favoured is None:
            self._favoured = favoured = next(iter(waiting))
            del waiting[favoured]
            favoured.resume_body()
