"""What one peer may cost the others: memory for its bodies, time, and turns of the event loop.

Bytes of bodies are counted when they arrive and released when the request is answered. Above the
budget, incomplete bodies wait, except one: one body can always finish, so there is no deadlock.
That exemption passes to the next body only when the first is answered. While some wait, slow
senders get less time. Very many peers with a little data each also add up: at a second, higher
limit bodies are refused. So the memory in use stays below that limit plus one body.

A body must arrive fast enough in every span: no burst pays for a trickle later.

>>> pace = Pace(0.0)
>>> [pace.keeps_up(size, now_s, span_s=10, least=100) for now_s, size in ((5, 0), (11, 150))]
[True, True]
>>> pace.keeps_up(200, 22.0, span_s=10, least=100)
False

How long a peer has taken nothing, or next to nothing, of what waits for it in a buffer.

>>> stall = Stall(least=3)
>>> [stall.lasted_s(size, now_s) for now_s, size in enumerate([9, 9, 8, 7, 5, 5, 0, 0])]
[0, 1, 2, 3, 0, 1, 0, 0]
>>> [stall.lasted_s(*look) for look in [(9, 0), (12, 1, 3), (12, 2, 3)]]
[0, 1, 0]

One read may hold thousands of frames. `InPortions` processes a portion of them at once; the rest is
kept, and nothing more is read, until other connections had their turn.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from penstock.kernel.units import format_bytes
from penstock.protocol.errors import CallError, InvalidRequest, Throttled
from penstock.server.http.message import TransportLimits


class Pace:
    """Remembers how many bytes had arrived when the current span began."""

    __slots__ = ("_size", "began_s")

    def __init__(self, now_s: float) -> None:
        self.began_s = now_s
        self._size = 0

    def keeps_up(self, size: int, now_s: float, *, span_s: float, least: int) -> bool:
        """Whether at least `least` bytes arrived in the span that just ended, if one did."""
        if now_s - self.began_s <= span_s:
            return True
        came, self._size, self.began_s = size - self._size, size, now_s
        return came >= least

    def excuse(self, span_s: float) -> None:
        """Do not count a time during which the peer was not at fault."""
        self.began_s += span_s


class Stall:
    """Checks a buffer periodically; one that shrinks enough, or is empty, is not stalled.

    Where a buffer may be large, `least` keeps a peer from holding it forever by reading a trickle.
    """

    __slots__ = ("_least", "_since_s", "_size", "_taken")

    def __init__(self, *, least: int = 1) -> None:
        self._least = least
        self._size = 0
        self._taken = 0  # since `_since_s`
        self._since_s = 0.0

    def lasted_s(self, size: int, now_s: float, added: int = 0) -> float:
        """Seconds since enough was read from the buffer, or it was empty.

        `added`: bytes added since the last check, which hide what was read.
        """
        self._taken += max(0, self._size + added - size)
        if not size or not self._size or self._taken >= self._least:
            self._since_s = now_s
            self._taken = 0
        self._size = size
        return now_s - self._since_s


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
            raise Throttled(
                f"request bodies use more than {most} of memory: send this one again later"
            )
        self._waiting[waiter] = None
        return False

    def too_slow(
        self, pace: Pace, size: int, now_s: float, limits: TransportLimits
    ) -> CallError | None:
        """Why a slow body is refused; the limit is stricter while others wait for memory."""
        span_s = limits.body_stall_s / (HASTE if self._waiting else 1)
        if pace.keeps_up(size, now_s, span_s=span_s, least=int(span_s * limits.body_rate_min)):
            return None
        text = f"the body came at less than {limits.body_rate_min} bytes a second for {span_s} s"
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


class InPortions(asyncio.Protocol):
    """A connection of frames. A base class: a component that calls back would be a reference cycle.

    Subclasses define how much is a portion (`_portion`), what is done with it (`_take_portion`),
    and whether reading is paused because the peer does not read (`_is_held`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._portions_loop = loop
        self._transport = cast(asyncio.Transport, None)
        self._inbox = b""

    def _portion(self, data: bytes) -> int:
        """How many of these bytes to process at once."""
        raise NotImplementedError

    def _take_portion(self, data: bytes) -> None:
        """Process a portion."""
        raise NotImplementedError

    def _is_held(self) -> bool:
        """Whether processing is paused; `_read_on` is called when the pause ends."""
        raise NotImplementedError

    def _arrived(self, data: bytes) -> None:
        """Bytes were read."""
        if self._inbox:
            self._inbox += data
        else:
            self._feed(data)

    def _read_on(self) -> None:
        """The peer reads again: continue with the input kept, or read."""
        if self._inbox:
            self._portions_loop.call_soon(self._go_on)
        else:
            self._transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        size = self._portion(data)
        if size < len(data):
            self._inbox = data[size:]
            self._transport.pause_reading()
            self._portions_loop.call_soon(self._go_on)
        self._take_portion(data[:size])

    def _go_on(self) -> None:
        """Continue after other connections had their turn: process more input, then read again."""
        if self._is_held() or not self._inbox:
            return
        data, self._inbox = self._inbox, b""
        self._feed(data)
        if not (self._inbox or self._is_held() or self._transport.is_closing()):
            self._transport.resume_reading()
