"""Memory for request bodies, shared by every connection.

Bytes are counted when they arrive and given back when the request is answered. Above the budget
an unfinished body must wait, except one: somebody can always finish, so nobody waits for ever. The
memory in use stays below the budget, one body, and one read of each connection.
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
        self._favoured: Waiter | None = None
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

    def finish(self, waiter: Waiter) -> None:
        """A body is complete or given up: its reader waits no more and favours go on."""
        self._waiting.pop(waiter, None)
        if self._favoured is waiter:
            self._favoured = None
            if self._waiting and self.used > self.bytes_max:
                self._favoured = next(iter(self._waiting))
                del self._waiting[self._favoured]
                self._favoured.resume_body()

    def give(self, size: int) -> None:
        """Take bytes back from an answered request."""
        self.used -= size
        if self._waiting and self.used <= self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                waiter.resume_body()
