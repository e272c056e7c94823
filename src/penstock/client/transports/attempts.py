"""Requests that outlive the wait for them.

A caller's deadline that comes first, or a wait that is cancelled, says nothing about the server, so
what was asked goes on, and the next call waits for the same answer. Were it asked anew each time, a
caller whose patience is always shorter than the server's answer takes would never get there; and
what the server had sent to the one before would be lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar, cast

from penstock.client.errors import Disconnected
from penstock.client.transports.ports import Attempt, Stream, Transport, finish

T = TypeVar("T")


class Underway:
    """The one request of a watch or a work stream that is on its way."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._attempt: Attempt[Any] | None = None

    async def answer(
        self,
        ask: Callable[[], Coroutine[Any, Any, T]],
        deadline_s: float,
        is_ended: Callable[[], bool],
    ) -> T | None:
        """What is asked for; None if the deadline comes first: then ask for the same again.

        Another thread may end the stream and `drop` this before there is anything to drop.
        """
        attempt: Attempt[T] | None = self._attempt
        if attempt is None:
            attempt = self._attempt = self._transport.begin(ask())
            if is_ended():
                self.drop()
        if not await attempt.over(deadline_s):
            return None
        self._attempt = None
        return attempt.result()

    def drop(self) -> None:
        """Nobody wants the answer any more."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.drop()


class AsyncAttempt(Generic[T]):
    """Under way as a task. One whose loop has ended counts as a lost connection."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(_look_at)

    async def over(self, deadline_s: float) -> bool:
        if self._task.get_loop() is not asyncio.get_running_loop():
            return True
        left_s = None if deadline_s == inf else deadline_s - monotonic()
        await asyncio.wait((self._task,), timeout=left_s)
        return self._task.done()

    def result(self) -> T:
        if not self._task.done() or self._task.cancelled():
            raise Disconnected("expected an answer, found the loop that waited for it ended")
        return self._task.result()

    def drop(self) -> None:
        if not self._task.done():
            if not self._task.get_loop().is_closed():
                self._task.cancel()
        elif not self._task.cancelled() and self._task.exception() is None:
            _let_go(self._task.result())

    def call(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # a loop that has ended has nothing that goes on
            self._task.get_loop().call_soon_threadsafe(what)


class ThreadAttempt(threading.Thread, Generic[T]):
    """Under way in a thread. In a forked child, where it is not, it counts as a lost connection."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        super().__init__(name="penstock request", daemon=True)
        self._work = work
        self._answer: T | None = None
        self._error: Exception | None = Disconnected(
            "expected an answer, found a fork or the end before it"
        )
        self._wanted = True
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._answer = finish(self._work)
            self._error = None
        except Exception as error:  # raised again where the result is asked for
            self._error = error
        if not self._wanted:
            _let_go(self._answer)
        self._over.set()

    async def over(self, deadline_s: float) -> bool:
        if not self.is_alive():
            return True  # also in a forked child, where nobody would tell
        return self._over.wait(min(max(0.0, deadline_s - monotonic()), threading.TIMEOUT_MAX))

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._answer)

    def drop(self) -> None:
        self._wanted = False  # before the look at the answer: one of the two threads sees both
        _let_go(self._answer)
        self._over.set()

    def call(self, what: Callable[[], None]) -> None:
        what()


def _look_at(task: asyncio.Task[Any]) -> None:
    """Else asyncio complains about errors of a watch that nobody reads any more."""
    if not task.cancelled():
        task.exception()


def _let_go(answer: object) -> None:
    if isinstance(answer, Stream):
        answer.close()
