"""News from one thread or task to those that wait for it."""

from __future__ import annotations

import asyncio
import threading
from math import inf
from typing import Protocol


class Signal(Protocol):
    """Counts news, so that none is missed: look at the count, look around, then wait for more."""

    count: int

    def tell(self) -> None:
        """There is news for everyone who waits."""
        ...

    async def changed(self, seen: int, wait_s: float) -> None:
        """Return once the count is another than was seen, or after so long."""
        ...


class ThreadSignal:
    """Among threads."""

    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()

    def tell(self) -> None:
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    async def changed(self, seen: int, wait_s: float) -> None:
        limit_s = None if wait_s == inf else min(max(0.0, wait_s), threading.TIMEOUT_MAX)
        with self._condition:
            self._condition.wait_for(lambda: self.count != seen, limit_s)


class AsyncSignal:
    """Among the tasks of one loop."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        self.count += 1
        for waiter in self._waiting:
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    async def changed(self, seen: int, wait_s: float) -> None:
        if self.count != seen:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=None if wait_s == inf else max(0.0, wait_s))
        finally:
            self._waiting.discard(waiter)
