"""An event loop whose time is a number: a seed decides the order of everything on it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any, Final

TICK_NS: Final = 100_000_000


class SimLoop:
    """One queue of calls for all nodes. Time passes only between calls."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.steps = 0
        self._sequence = 0
        self._queue: list[tuple[int, int, _Call]] = []

    def at(self, delay_ns: int, call: Callable[..., Any], *arguments: Any) -> _Call:
        """Make a call after a delay, behind all others of that moment."""
        self._sequence += 1
        made = _Call(call, arguments)
        heappush(self._queue, (self.now_ns + delay_ns, self._sequence, made))
        return made

    def step(self) -> None:
        """Make the next call."""
        while True:
            at_ns, _, made = heappop(self._queue)
            if not made.is_cancelled:
                break
        self.now_ns = max(self.now_ns, at_ns)
        self.steps += 1
        made.run()

    def run_until(self, end_ns: int) -> None:
        """Make all calls up to a time."""
        while self._queue[0][0] <= end_ns:
            self.step()
        self.now_ns = end_ns


class _Call:
    """A call that is to be made, or was cancelled. The handle that asyncio returns."""

    __slots__ = ("_arguments", "_call", "is_cancelled")

    def __init__(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self) -> None:
        self._call(*self._arguments)


class NodeLoop:
    """The loop as one life of a node sees it: after a crash nothing of that life happens."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.is_alive = True
        self.errors: list[str] = []
        self._coroutines: list[Coroutine[Any, Any, Any]] = []

    def call_soon(
        self, call: Callable[..., Any], *arguments: Any, context: contextvars.Context | None = None
    ) -> _Call:
        return self._loop.at(0, self._make, call, arguments)

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, call: Callable[..., Any], *arguments: Any) -> _Call:
        return self._loop.at(int(delay_s * 1e9), self._make, call, arguments)

    def _make(self, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        asyncio._set_running_loop(self)  # type: ignore[arg-type]
        try:
            call(*arguments)
        finally:
            asyncio._set_running_loop(None)

    def time(self) -> float:
        return self._loop.now_ns / 1e9

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:
        self._coroutines.append(coroutine)
        return asyncio.Task(coroutine, loop=self)  # type: ignore[arg-type]

    def end(self) -> None:
        """This life is over: nothing goes on, and nothing is complained about."""
        self.is_alive = False
        for coroutine in self._coroutines:
            coroutine.close()

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What a dead life has left behind is not an error."""
        if self.is_alive:
            self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


class NodeClock:
    """The clock of a node: ahead or behind by a fixed time, and too slow or too fast by a share."""

    def __init__(self, loop: SimLoop, ahead_ms: int) -> None:
        self._loop = loop
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self._ahead_ms + self._loop.now_ns // 1_000_000

    def monotonic_ms(self) -> int:
        return self._loop.now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._loop.now_ns
