"""The runtime for threads and scripts: an asyncio runtime in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from penstock.client.errors import ClientClosed, TimedOut
from penstock.client.runtime.async_runtime import AsyncRuntime
from penstock.client.runtime.events import Committed, Ticket
from penstock.client.runtime.handlers import Handler, LaneOf
from penstock.client.runtime.policy import CommitBackpressure, RuntimeLimits
from penstock.client.runtime.status import RuntimeStatus
from penstock.client.runtime.telemetry import CommitReport, Failure
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import DEFAULT_URL, ClientSettings
from penstock.kernel.clock import Clock

EXIT_S: Final = 10.0
"""How long the end of the program waits for a runtime that was not closed."""

H = TypeVar("H", bound=Handler)
D = TypeVar("D", bound=Callable[[Transaction], None])
T = TypeVar("T")


class Handle:
    """What becomes of one event."""

    __slots__ = ("_call", "_ticket", "_told")

    def __init__(self, ticket: Ticket, call: Callable[[Callable[[], Any]], Any]) -> None:
        """Made in the runtime's thread, as outcomes are told there; `call` does things there."""
        self._ticket = ticket
        self._call = call
        self._told = threading.Event()
        ticket.when_done(self._told.set)

    @property
    def id(self) -> str:
        """The durable id of the event."""
        return self._ticket.event_id

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._told.is_set()

    @property
    def committed(self) -> Committed | None:
        """The outcome if it is a good one."""
        return self._ticket.committed

    @property
    def error(self) -> Exception | None:
        """The outcome if it is a bad one."""
        return self._ticket.error

    @property
    def children(self) -> list[Handle]:
        """The events that its handler sent, in its last run. Ask while the runtime is open."""
        found: list[Handle] = self._call(
            lambda: [Handle(ticket, self._call) for ticket in self._ticket.children]
        )
        return found

    def result(self, timeout_s: float | None = None) -> Committed:
        """Wait for the outcome: how it was committed, or the error it ended with is raised."""
        if not self._told.wait(timeout_s):
            raise TimedOut(
                f"expected event {self.id!r} to have an outcome within {timeout_s} s, found none"
            )
        if self._ticket.committed is not None:
            return self._ticket.committed
        assert self._ticket.error is not None
        raise self._ticket.error

    def __repr__(self) -> str:
        found = self._ticket.committed or self._ticket.error or "pending"
        return f"{type(self).__name__}({self._ticket.type!r}, {self.id!r}, {found!r})"


class Runtime:
    """Committed writes to one space, for threads: they converge or fail loudly.

    As `AsyncRuntime`, with methods that block. Handlers and callbacks run in the runtime's own
    thread, one at a time, so that they need no locks; they must not call the runtime. Any other
    thread may use it. A runtime belongs to its process: after a fork, make another.
    """

    def __init__(
        self,
        url: str | ClientSettings = DEFAULT_URL,
        space: str = "main",
        *,
        api_key: str | None = None,
        policy: CommitBackpressure | None = None,
        limits: RuntimeLimits | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        import uvloop  # here, as most programs that use the client have no runtime

        settings = url if isinstance(url, ClientSettings) else ClientSettings(url, api_key)
        self._process = os.getpid()
        self._loop = uvloop.new_event_loop()
        self._runtime = AsyncRuntime(
            settings,
            space,
            policy=policy,
            limits=limits,
            clock=clock,
            random=random,
        )
        self._closed = False
        self._submitting = threading.Lock()
        """Held while work is given to the loop, so that none comes after the end."""
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"penstock runtime {space}", daemon=True
        )
        self._thread.start()
        atexit.register(self._at_exit)

    # Set-up

    @property
    def space(self) -> str:
        """The space it commits to."""
        return self._runtime.space

    @property
    def session(self) -> str:
        """The name under which this runtime commits, made for it alone."""
        return self._runtime.session

    def on(self, type: str, *, lane: LaneOf = None) -> Callable[[H], H]:  # noqa: A002
        """Decorate the function that handles a type of event: `handler(tx, event)`.

        Events of one lane have their effects strictly in the order they were sent; lanes do not
        wait for each other. `lane` is a name, or a function of the event's data.
        """

        def register(handler: H) -> H:
            self.register(type, handler, lane=lane)
            return handler

        return register

    def register(self, type: str, handler: Handler, *, lane: LaneOf = None) -> None:  # noqa: A002
        """As `on`, without a decorator."""
        self._call(lambda: self._runtime.register(type, handler, lane=lane))

    def derive(self, name: str) -> Callable[[D], D]:
        """Decorate a function of the state, `derivation(tx)`, that writes its result back.

        It runs again whenever something that it has read changes. A conflict costs it nothing.
        """

        def register(function: D) -> D:
            self._call(lambda: self._runtime.derive(name)(function))
            return function

        return register

    def on_error(self, callback: Callable[[Failure], object]) -> Callable[[Failure], object]:
        """Call this with every final failure."""
        return self._call(lambda: self._runtime.on_error(callback))

    def on_commit(
        self, callback: Callable[[CommitReport], object]
    ) -> Callable[[CommitReport], object]:
        """Call this with a report of every commit."""
        return self._call(lambda: self._runtime.on_commit(callback))

    # Life

    def start(self) -> Self:
        """Begin to follow the space; returns when all of it is here."""
        try:
            self._wait(self._runtime.start())
        except BaseException:
            self.close(drain=False)
            raise
        return self

    def close(self, *, drain: bool = True) -> None:
        """Wait until everything has its outcome, then end. Without `drain`, what is left fails."""
        if self._closed or os.getpid() != self._process:
            return
        self._check_thread()
        try:
            self._wait(self._runtime.aclose(drain=drain))
        except ClientClosed:
            if not self._closed:  # by another thread
                raise
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    # Work

    def send(
        self,
        type: str,  # noqa: A002
        data: Any = None,
        *,
        lane: str | None = None,
        id: str | None = None,  # noqa: A002
        retries: bool = True,
    ) -> Handle:
        """Queue an event. Give an `id` of your own if it may be sent twice: it counts once.

        Without `retries` the first conflict is the end. In a handler, use `tx.send`.
        """

        def send() -> Handle:
            sent = self._runtime.send(type, data, lane=lane, id=id, retries=retries)
            return Handle(sent.ticket, self._call)

        return self._call(send)

    def idle(self, timeout_s: float | None = None) -> None:
        """Wait until no handler is running, queued or backing off."""
        self._wait(self._runtime.idle(), timeout_s)

    def settled(self, timeout_s: float | None = None) -> None:
        """Wait until, beyond that, every commit has its outcome."""
        self._wait(self._runtime.settled(), timeout_s)

    # Looking

    def get(self, entity: str, path: str = "", default: Any = None) -> Any:
        """A document as it looks from here, with writes that are not confirmed yet."""
        return self._call(lambda: self._runtime.get(entity, path, default))

    def confirmed(self, entity: str, default: Any = None) -> Any:
        """A document as the server had it when it was last heard of."""
        return self._call(lambda: self._runtime.confirmed(entity, default))

    def entities(self, prefix: str = "") -> list[str]:
        """The names of the entities, as they look from here."""
        return self._call(lambda: self._runtime.entities(prefix))

    def until(
        self, condition: Callable[[AsyncRuntime], bool], timeout_s: float | None = None
    ) -> None:
        """Wait until something about the state is so: `until(lambda now: now.get("x") == 1)`."""
        self._wait(self._runtime.until(condition), timeout_s)

    def status(self) -> RuntimeStatus:
        """Lanes, what is pending and why, and how fresh the replica is. Print it."""
        return self._call(self._runtime.status)

    # The shell

    def _at_exit(self) -> None:
        """The program ends with the runtime open: wait for outcomes, but not for ever."""
        if self._closed or os.getpid() != self._process:
            return
        with suppress(TimedOut):
            self.settled(EXIT_S)
        self.close(drain=False)

    def _call(self, work: Callable[[], T]) -> T:
        """Do something in the runtime's thread."""

        async def run() -> T:
            return work()

        return self._wait(run())

    def _wait(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        try:
            self._check()
            future = self._submit(coroutine)
        except ClientClosed:
            coroutine.close()
            raise
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise _closed() from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimedOut(f"expected it within {timeout_s} s, found it not done") from None

    def _submit(self, coroutine: Coroutine[Any, Any, T], *, is_last: bool = False) -> Future[T]:
        with self._submitting:
            if self._closed:
                raise _closed()
            self._closed = is_last
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _stop(self) -> None:
        """End the loop and the thread; whoever still waits for something is told so."""
        last = _cancel_others()
        try:
            ending = self._submit(last, is_last=True)
        except ClientClosed:
            last.close()
            return
        atexit.unregister(self._at_exit)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self) -> None:
        if self._closed:
            raise _closed()
        if os.getpid() != self._process:
            raise ClientClosed("expected a runtime of this process, found one from before a fork")
        self._check_thread()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise ClientClosed(
                "expected another thread than the runtime's own, found a handler or a callback "
                "that calls it: use the transaction, or send from elsewhere"
            )


async def _cancel_others() -> None:
    """Cancel all that is under way in this loop, and see it end."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _closed() -> ClientClosed:
    return ClientClosed("expected an open runtime, found it closed")
