"""Where a runtime runs: in its caller's loop, or in a dedicated loop and thread.

Both hosts have the same methods, so that the public interfaces of a runtime are written once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from penstock.client.aio.client import AsyncClient
from penstock.client.errors import ClientClosed, TimedOut
from penstock.client.settings import ClientSettings
from penstock.client.transports.connecting import closed_error

EXIT_S: Final = 10.0
"""How long the end of the program waits for a runtime that was not closed."""

T = TypeVar("T")

AsyncServer = str | ClientSettings | AsyncClient
"""The server of an `AsyncRuntime`. A client that is passed in is shared, and not closed."""
Server = str | ClientSettings
"""The server of a `Runtime`, which always has its own connections."""


class AsyncHost:
    """Runs everything in the loop of the caller."""

    def __init__(self, name: str) -> None:
        self.name = name

    def call(self, work: Callable[[], T]) -> T:
        """Call a function where the runtime runs."""
        return work()

    async def wait(
        self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None
    ) -> T:
        """Run a coroutine where the runtime runs; `TimedOut` after the timeout."""
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await work()
        except TimeoutError:
            if limit.expired():
                raise _too_long(timeout_s) from None
            raise

    async def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the final coroutine."""
        await work()

    def at_exit(self, settle: Callable[[], object], close: Callable[[], object]) -> None:
        """A program on asyncio ends with its loop: nothing could run after it."""


class Host:
    """A loop in a dedicated thread, for callers in any other thread of this process."""

    def __init__(self, name: str) -> None:
        import uvloop  # here, because most programs that use the client have no runtime

        self._process = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._closed = False
        self._submitting = threading.Lock()
        """Held while work is submitted to the loop, so that none is submitted after the end."""
        self._at_exit: Callable[[], None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], T]) -> T:
        """Call a function where the runtime runs."""

        async def run() -> T:
            return work()

        return self.wait(run)

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run a coroutine where the runtime runs; `TimedOut` after the timeout."""
        self._check()
        future = self._submit(work)
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise closed_error("runtime") from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise _too_long(timeout_s) from None

    def close(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the final coroutine, then end the thread. Remaining waits fail."""
        if self._closed or os.getpid() != self._process:
            return
        self._check_thread()
        try:
            self.wait(work)
        except ClientClosed:
            if not self._closed:  # by another thread
                raise
        finally:
            self._stop()

    def at_exit(self, settle: Callable[[], object], close: Callable[[], object]) -> None:
        """If the program ends first, wait for outcomes, for a limited time."""

        def end() -> None:
            if not self._closed and os.getpid() == self._process:
                with suppress(TimedOut):
                    settle()
                close()

        self._at_exit = end
        atexit.register(end)

    def _submit(
        self, work: Callable[[], Coroutine[Any, Any, T]], *, is_last: bool = False
    ) -> Future[T]:
        with self._submitting:
            if self._closed:
                raise closed_error("runtime")
            self._closed = is_last
            return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def _stop(self) -> None:
        try:
            ending = self._submit(_cancel_others, is_last=True)
        except ClientClosed:
            return
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self) -> None:
        if self._closed:
            raise closed_error("runtime")
        if os.getpid() != self._process:
            raise ClientClosed("this runtime belongs to the process before the fork; make another")
        self._check_thread()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise ClientClosed(
                "a handler or a callback called its runtime, whose thread it runs in: use the "
                "transaction, or call from another thread"
            )


async def _cancel_others() -> None:
    """Cancel all other tasks of this loop, and wait for their end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _too_long(timeout_s: float | None) -> TimedOut:
    return TimedOut(f"it was not done within {timeout_s} s")
