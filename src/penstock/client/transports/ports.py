"""What the faces of the client stand on: a way to exchange, to stream and to pause.

There are two: on asyncio, and on plain sockets. The second one's coroutines never suspend, so that
`finish` runs the same code to its end without an event loop, in any thread, also inside a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Protocol, TypeVar, runtime_checkable

from penstock.client.errors import Unreachable
from penstock.client.transports.signals import Signal
from penstock.client.wire import Answer, HttpRequest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Stream(Protocol):
    """An answer that goes on."""

    async def read(self, silence_s: float) -> bytes:
        """The next bytes, b"" at the end; `TimedOut` after so long a silence."""
        ...

    def close(self) -> None:
        """Let go of the connection; a pending read ends."""
        ...


class Attempt(Protocol[T_co]):
    """Something under way, which goes on when nobody waits for it."""

    async def over(self, deadline_s: float) -> bool:
        """Wait for its end; False if the deadline comes first."""
        ...

    def result(self) -> T_co:
        """What it came to, or the error it ended with, once it is over."""
        ...

    def drop(self) -> None:
        """End it as soon as can be; a stream that it came to is closed."""
        ...

    def call(self, what: Callable[[], None]) -> None:
        """Call something where it runs, which may be called for anywhere."""
        ...


class Transport(Protocol):
    """Connections to one server. Deadlines are readings of `time.monotonic`."""

    async def exchange(self, request: HttpRequest, deadline_s: float, wait_s: float) -> Answer:
        """One request and its whole answer. `wait_s` is how long the server may be silent more."""
        ...

    async def stream(self, request: HttpRequest, deadline_s: float) -> Stream | Answer:
        """Open a stream; a refusal comes back as a whole answer."""
        ...

    def begin(self, work: Coroutine[Any, Any, T]) -> Attempt[T]:
        """Start what a caller may stop waiting for before it is over."""
        ...

    def signal(self) -> Signal:
        """A way to wait for news of what was begun."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    coroutine.close()
    raise RuntimeError("expected a coroutine on plain sockets, found one that waits for a loop")


def time_left(deadline_s: float, server: str) -> float:
    """Seconds until a deadline; `Unreachable` if it is over before anything was sent."""
    left_s = deadline_s - monotonic()
    if left_s <= 0:
        raise Unreachable(f"expected time to send to {server}, found the deadline over")
    return left_s
