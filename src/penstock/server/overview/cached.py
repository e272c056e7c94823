"""The result of a look, kept for a moment: many callers cost one look.

Ten pages that are open show the same facts; each fact is looked up once a second, however many ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from penstock.kernel.clock import Clock

T = TypeVar("T")
FRESH_MS: Final = 900
"""How long a result is kept: a frame a second gets a new one each time."""
FRESH_MS_MAX: Final = 10_000


class Cached(Generic[T]):
    """The last result of `look`. A failed look is not kept: the next caller looks again.

    A look that takes long is repeated seldom: its result is kept for `share` times as long as it
    took.
    """

    def __init__(self, look: Callable[[], Awaitable[T]], clock: Clock, *, share: int = 1) -> None:
        self._look = look
        self._clock = clock
        self._share = share
        self._task: asyncio.Task[T] | None = None
        self._until_ms = 0

    async def get(self) -> T:
        """The result: of the look that is under way, or that ended just now, or of a new one."""
        task = self._task
        if task is None or (task.done() and self._is_over(task)):
            task = self._task = asyncio.ensure_future(self._timed())
        # Shielded: a caller that leaves does not end the look of the others.
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Look again for the next caller: something was changed."""
        self._until_ms = 0

    async def _timed(self) -> T:
        began_ms = self._clock.monotonic_ms()
        found = await self._look()
        now_ms = self._clock.monotonic_ms()
        kept_ms = max(FRESH_MS, self._share * (now_ms - began_ms))
        self._until_ms = now_ms + min(kept_ms, FRESH_MS_MAX)
        return found

    def _is_over(self, task: asyncio.Task[T]) -> bool:
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock.monotonic_ms() >= self._until_ms
