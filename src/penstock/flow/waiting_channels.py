"""Blocking wrappers of the windowed channel: one for asyncio tasks, one for threads.

Both deliver an item exactly once, in the order sent. Iterating is the easy way to receive: it marks
an item done, with its latency, when the next one is requested.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Generic, TypeVar

from penstock.flow.channel import Closed, WindowedChannel
from penstock.flow.meter import Measurement
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Busy
from penstock.kernel.system import SystemClock

T = TypeVar("T")


class AsyncChannel(Generic[T]):
    """A channel between tasks of one event loop. Any thread may call `resize`."""

    def __init__(self, window: int, *, clock: Clock | None = None) -> None:
        self._core: WindowedChannel[T] = WindowedChannel(window)
        self._clock = clock or SystemClock()
        self._senders: deque[asyncio.Future[None]] = deque()
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()

    @property
    def core(self) -> WindowedChannel[T]:
        """Counts and occupancy, read-only."""
        return self._core

    async def send(self, item: T, size_bytes: int = 0) -> None:
        """Add an item, waiting for a credit. Raises `Closed` after `close`."""
        first_try = True
        while (first_try and self._senders) or not self._core.try_send(item, size_bytes):
            await self._wait(self._senders, first=not first_try)
            first_try = False
        if self._receivers:
            _wake(self._receivers, 1)

    async def receive(self) -> T:
        """Take the oldest item, waiting for one. Raises `Closed` when closed and drained."""
        core = self._core
        while not core.items:
            await self._wait_for_item()
        return core.receive()

    async def receive_many(self, count: int) -> list[T]:
        """Take up to `count` of the oldest items, waiting for at least one."""
        core = self._core
        while not core.items:
            await self._wait_for_item()
        return core.receive_up_to(count)

    def done(self, count: int = 1, latency_ns: int | None = None) -> None:
        """Free the slots of received items."""
        self._core.done(count, latency_ns)
        if self._senders:
            _wake(self._senders, self._core.worth_waking)

    def resize(self, window: int) -> None:
        """Set the window, at any time and from any thread."""
        if self._loop is None or threading.get_ident() == self._thread:
            self._core.resize(window)
            _wake(self._senders, self._core.worth_waking)
        else:
            self._loop.call_soon_threadsafe(self.resize, window)

    def close(self) -> None:
        """Accept no more items; queued items can still be received."""
        self._core.close()
        _wake(self._senders, len(self._senders))
        _wake(self._receivers, len(self._receivers))

    def measure(self) -> None:
        """Due every 100 ms: pace the credits."""
        self._core.measure(self._clock.monotonic_ms())
        _wake(self._senders, self._core.worth_waking)

    def report(self) -> Measurement:
        """Due every second: measurements for the planner."""
        return self._core.report(self._clock.monotonic_ms())

    async def __aiter__(self) -> AsyncIterator[T]:
        while True:
            try:
                item = await self.receive()
            except Closed:
                return
            began_ns = self._clock.monotonic_ns()
            yield item
            self.done(1, self._clock.monotonic_ns() - began_ns)

    async def _wait_for_item(self) -> None:
        if self._core.closed:
            raise Closed("the channel is closed and drained")
        await self._wait(self._receivers)

    async def _wait(self, line: deque[asyncio.Future[None]], *, first: bool = False) -> None:
        """Wait in line until woken. A cancelled waiter passes its turn on."""
        if self._loop is None:
            self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        turn = self._loop.create_future()
        if first:
            line.appendleft(turn)
        else:
            line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                _wake(line, 1)
            elif turn in line:
                line.remove(turn)
            raise


def _wake(line: deque[asyncio.Future[None]], count: int) -> None:
    while count > 0 and line:
        turn = line.popleft()
        if not turn.done():
            turn.set_result(None)
            count -= 1


class ThreadChannel(Generic[T]):
    """A channel between threads. Any thread may call any method."""

    def __init__(self, window: int, *, clock: Clock | None = None) -> None:
        self._core: WindowedChannel[T] = WindowedChannel(window)
        self._items = self._core.items
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._senders: deque[threading.Lock] = deque()
        self._receivers: deque[threading.Lock] = deque()

    @property
    def core(self) -> WindowedChannel[T]:
        """Counts and occupancy, read-only; approximate while other threads send."""
        return self._core

    def send(self, item: T, size_bytes: int = 0, *, timeout_s: float = -1) -> None:
        """Add an item, waiting for a credit. `Closed` after `close`, `Busy` after a timeout."""
        with self._lock:
            if not self._senders and self._core.try_send(item, size_bytes):
                if self._receivers:
                    self._receivers.popleft().release()
                return
        if not self.send_many((item,), size_bytes, timeout_s=timeout_s):
            raise Busy(f"no credit within {timeout_s} s: the receiver is slow, try again later")

    def send_many(self, items: Sequence[T], size_bytes: int = 0, *, timeout_s: float = -1) -> int:
        """Add items in order, waiting for credits; return how many were added before a timeout.

        `size_bytes` is the size of each item, `timeout_s` the limit of each wait.
        """
        sent, first_try = 0, True
        while sent < len(items):
            with self._lock:
                if not (first_try and self._senders):
                    sent += self._core.try_send_many(items[sent:] if sent else items, size_bytes)
                    if self._receivers and self._items:
                        self._receivers.popleft().release()
                    if sent == len(items):
                        break
                gate = self._stand(self._senders, first=not first_try)
            first_try = False
            if not self._pass(gate, self._senders, timeout_s):
                break
        return sent

    def receive(self, *, timeout_s: float = -1) -> T:
        """Take the oldest item, waiting for one. `Closed` when drained, `Busy` after a timeout."""
        return self.receive_many(1, timeout_s=timeout_s)[0]

    def receive_many(self, count: int, *, done: int = 0, timeout_s: float = -1) -> list[T]:
        """Take up to `count` of the oldest items, waiting for at least one.

        `done` first frees the slots of that many previously received items.
        """
        with self._lock:
            if done:
                self._core.done(done)
                self._let_send()
            if self._items:
                return self._take(count)
        while True:
            with self._lock:
                if self._items:
                    return self._take(count)
                if self._core.closed:
                    raise Closed("the channel is closed and drained")
                gate = self._stand(self._receivers)
            if not self._pass(gate, self._receivers, timeout_s):
                raise Busy(f"no item within {timeout_s} s: try again later")

    def done(self, count: int = 1, latency_ns: int | None = None) -> None:
        """Free the slots of received items."""
        with self._lock:
            self._core.done(count, latency_ns)
            self._let_send()

    def resize(self, window: int) -> None:
        """Set the window at any time."""
        with self._lock:
            self._core.resize(window)
            self._let_send()

    def close(self) -> None:
        """Accept no more items; queued items can still be received."""
        with self._lock:
            self._core.close()
            for line in (self._senders, self._receivers):
                while line:
                    line.popleft().release()

    def measure(self) -> None:
        """Due every 100 ms: pace the credits."""
        with self._lock:
            self._core.measure(self._clock.monotonic_ms())
            self._let_send()

    def report(self) -> Measurement:
        """Due every second: measurements for the planner."""
        with self._lock:
            return self._core.report(self._clock.monotonic_ms())

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                item = self.receive()
            except Closed:
                return
            began_ns = self._clock.monotonic_ns()
            yield item
            self.done(1, self._clock.monotonic_ns() - began_ns)

    def _take(self, count: int) -> list[T]:
        taken = self._core.receive_up_to(count)
        if self._items and self._receivers:
            self._receivers.popleft().release()
        return taken

    def _let_send(self) -> None:
        if self._senders:
            for _ in range(min(self._core.worth_waking, len(self._senders))):
                self._senders.popleft().release()

    def _stand(self, line: deque[threading.Lock], *, first: bool = False) -> threading.Lock:
        gate = threading.Lock()
        gate.acquire()
        if first:
            line.appendleft(gate)
        else:
            line.append(gate)
        return gate

    def _pass(self, gate: threading.Lock, line: deque[threading.Lock], timeout_s: float) -> bool:
        """Wait for a turn. A waiter that times out after it was called passes its turn on."""
        if gate.acquire(timeout=timeout_s):
            return True
        with self._lock:
            if gate in line:
                line.remove(gate)
            elif line:
                line.popleft().release()
        return False
