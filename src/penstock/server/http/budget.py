"""Memory for request bodies, shared by every connection.

Bytes are counted when they arrive and released when the request is answered. Above the budget,
incomplete bodies wait, except one: one body can always finish, so there is no deadlock. That
exemption passes to the next body only when the first is answered. While some wait, slow senders get
less time. Very many peers with a little data each also add up: at a second, higher limit bodies are
refused. So the memory in use stays below that limit plus one body.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.kernel.units import format_bytes
from penstock.protocol.errors import CallError, InvalidRequest, Throttled
from penstock.server.http.message import TransportLimits
from penstock.server.http.slow_peers import Pace

HASTE: Final = 3
"""Timeouts for slow peers are divided by this while others wait for memory."""


class Waiter(Protocol):
    """A connection that reads a body."""

    def resume_body(self) -> None:
        """Continue reading: there is room again."""


class BodyBudget:
    """Counts the bytes of request bodies and decides which readers may continue."""

    def __init__(self, bytes_max: int, refuse_above: int) -> None:
        self.bytes_max = bytes_max
        self._refuse_above = refuse_above
        self.used = 0
        self._favoured: Waiter | bytes | None = None
        """The holder of the exemption: a reader, or its body until that is answered."""
        self._waiting: dict[Waiter, None] = {}

    def take(self, waiter: Waiter, size: int) -> bool:
        """Count bytes of an incomplete body; False if its reader must wait for `resume_body`.

        `Throttled` if it may not wait either: then the caller must release its bytes.
        """
        self.used += size
        if self.used <= self.bytes_max or self._favoured is waiter:
            return True
        if self._favoured is None:
            self._favoured = waiter
            return True
        if self.used > self._refuse_above:
            most = format_bytes(self._refuse_above)
            raise Throttled(f"expected at most {most} of request bodies, found more")
        self._waiting[waiter] = None
        return False

    def too_slow(
        self, pace: Pace, size: int, now_s: float, limits: TransportLimits
    ) -> CallError | None:
        """Why a slow body is refused; the limit is stricter while others wait for memory."""
        span_s = limits.body_stall_s / (HASTE if self._waiting else 1)
        if pace.keeps_up(size, now_s, span_s=span_s, least=int(span_s * limits.body_rate_min)):
            return None
        text = (
            f"expected {limits.body_rate_min} bytes of a body a second, found fewer in {span_s} s"
        )
        return Throttled(f"{text}, and others wait") if self._waiting else InvalidRequest(text)

    def finish(self, waiter: Waiter, body: bytes | None) -> None:
        """A body is complete, or abandoned: its reader no longer waits."""
        self._waiting.pop(waiter, None)
        if self._favoured is waiter:
            self._favoured = body or None
            self._wake()

    def give(self, size: int, body: bytes | None) -> None:
        """Release bytes, and the exemption if they belong to the body that holds it."""
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
