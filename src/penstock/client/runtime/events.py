"""Input and output of a runtime: events, their outcomes, and tickets to wait on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened and must take effect exactly once. A handler gets it.

    `id` is durable: the first commit of it leaves a receipt, and there is never a second one.
    """

    id: str
    type: str
    data: Any = None
    lane: str = ""
    attempt: int = 1
    """How often the handler has run for a commit, including this time."""


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """An event that took effect.

    `seq` is the space's commit; None if the handler wrote nothing, so that no commit was necessary.
    """

    event_id: str
    seq: int | None
    ts_ms: int | None = None
    attempts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An event as it was sent, before it is queued."""

    type: str
    data: Any = None
    lane: str | None = None
    """None for the lane that the handler names."""
    id: str | None = None
    """The caller's durable id; None lets the runtime generate one."""
    retries: bool = True


class Ticket:
    """Holds the outcome of one event for those that wait for it. Final once done."""

    __slots__ = ("_callbacks", "children", "committed", "error", "event_id", "lane", "type")

    def __init__(self, event_id: str, kind: str, lane: str) -> None:
        self.event_id = event_id
        self.type = kind
        self.lane = lane
        self.committed: Committed | None = None
        self.error: Exception | None = None
        self.children: tuple[Ticket, ...] = ()
        """Events that its handler sent, in its last run."""
        self._callbacks: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.committed is not None or self.error is not None

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call a function once the outcome is known; at once if it already is."""
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def settle(self, outcome: Committed | Exception) -> None:
        """Set the outcome; only the first call counts."""
        if self.done:
            return
        if isinstance(outcome, Committed):
            self.committed = outcome
        else:
            self.error = outcome

    def tell(self) -> None:
        """Run the callbacks, once."""
        waiting, self._callbacks = self._callbacks, []
        for callback in waiting:
            callback()
