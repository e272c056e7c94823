"""The runtime for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from penstock.client.aio.client import AsyncClient
from penstock.client.errors import ClientClosed
from penstock.client.runtime.core import RuntimeCore
from penstock.client.runtime.effects import Effect, Fail, Report, Run, Tell, Transmit
from penstock.client.runtime.events import Committed, Intent, Ticket
from penstock.client.runtime.feed import Feed, feed_of
from penstock.client.runtime.handlers import Handler, Handlers, LaneOf
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.policy import CommitBackpressure, RuntimeLimits
from penstock.client.runtime.replica import Change, Version
from penstock.client.runtime.status import RuntimeStatus, status_of
from penstock.client.runtime.telemetry import CommitReport, Failure
from penstock.client.runtime.transaction import Transaction
from penstock.client.runtime.wire import commit_call
from penstock.client.settings import DEFAULT_URL, ClientSettings
from penstock.commits.model import Commit
from penstock.kernel.clock import Clock
from penstock.kernel.shell import SystemClock
from penstock.protocol.errors import CallError, InvalidRequest

_LOG: Final = logging.getLogger("penstock.client.runtime")
HANDLERS_A_TURN: Final = 64
"""Handlers that run before other work of the loop gets its turn."""
TIMER_MS_MIN: Final = 1.0

H = TypeVar("H", bound=Handler)
D = TypeVar("D", bound=Callable[[Transaction], None])


class AsyncHandle:
    """What becomes of one event. Await it: its `Committed`, or the error it ended with."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    @property
    def ticket(self) -> Ticket:
        """Where the outcome is kept."""
        return self._ticket

    @property
    def id(self) -> str:
        """The durable id of the event."""
        return self._ticket.event_id

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._ticket.done

    @property
    def committed(self) -> Committed | None:
        """The outcome if it is a good one."""
        return self._ticket.committed

    @property
    def error(self) -> Exception | None:
        """The outcome if it is a bad one."""
        return self._ticket.error

    @property
    def children(self) -> list[AsyncHandle]:
        """The events that its handler sent, in its last run."""
        return [AsyncHandle(ticket) for ticket in self._ticket.children]

    def __await__(self) -> Generator[Any, None, Committed]:
        return self._wait().__await__()

    async def _wait(self) -> Committed:
        ticket = self._ticket
        if not ticket.done:
            told = asyncio.Event()
            ticket.when_done(told.set)
            await told.wait()
        if ticket.committed is not None:
            return ticket.committed
        assert ticket.error is not None
        raise ticket.error

    def __repr__(self) -> str:
        ticket = self._ticket
        found = ticket.committed or ticket.error or "pending"
        return f"{type(self).__name__}({ticket.type!r}, {self.id!r}, {found!r})"


class _Follower:
    """What the feed tells a runtime."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime

    def listed(self, versions: Mapping[str, Version], head: int, epoch: int | None) -> None:
        runtime = self._runtime
        runtime._trouble = None
        runtime._perform(runtime._core.listed(versions, head, epoch, runtime._now_ms()))

    def advanced(self, changes: Sequence[Change]) -> None:
        runtime = self._runtime
        runtime._perform(runtime._core.advanced(changes, runtime._now_ms()))

    def troubled(self, error: CallError) -> None:
        runtime = self._runtime
        if runtime._trouble is None and runtime._core.replica.live:
            runtime._fail(Failure(error, None, "replica"))
        runtime._trouble = error
        runtime._wake()


class AsyncRuntime:
    """Committed writes to one space: they converge or fail loudly.

    Handlers are registered by type; `send` queues an event and returns at once. The handler reads
    and writes through a transaction; its writes show here at once and are committed in the
    background. On a conflict they are taken back and the same event runs again, in its place, on
    fresh state. Use it as `async with`: leaving waits until everything has its outcome.
    """

    def __init__(
        self,
        client: str | ClientSettings | AsyncClient = DEFAULT_URL,
        space: str = "main",
        *,
        policy: CommitBackpressure | None = None,
        limits: RuntimeLimits | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._owned = None if isinstance(client, AsyncClient) else AsyncClient(client)
        self._client = client if isinstance(client, AsyncClient) else self._owned
        assert self._client is not None
        self._runner = self._client._runner
        self.space = space
        self._clock = clock or SystemClock()
        random = random or Random()
        self._handlers = Handlers()
        self._core = RuntimeCore(
            uuid4().hex,
            random=random,
            lane_of=self._handlers.lane_of,
            policy=policy,
            limits=limits,
        )
        self._feed: Feed | None = None
        self._error_callbacks: list[Callable[[Failure], object]] = []
        self._commit_callbacks: list[Callable[[CommitReport], object]] = []
        self._todo: deque[Effect] = deque()
        self._performing = False
        self._in_handler = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float | None = None
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._follower = _Follower(self)
        self._trouble: CallError | None = None
        self._closed = False

    # Set-up

    @property
    def session(self) -> str:
        """The name under which this runtime commits, made for it alone."""
        return self._core.session

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
        self._handlers.add(type, handler, lane)

    def derive(self, name: str) -> Callable[[D], D]:
        """Decorate a function of the state, `derivation(tx)`, that writes its result back.

        It runs again whenever something that it has read changes. A conflict costs it nothing.
        """

        def register(function: D) -> D:
            self._perform(self._core.derive(name, function, self._now_ms()))
            return function

        return register

    def on_error(self, callback: Callable[[Failure], object]) -> Callable[[Failure], object]:
        """Call this with every final failure."""
        self._error_callbacks.append(callback)
        return callback

    def on_commit(
        self, callback: Callable[[CommitReport], object]
    ) -> Callable[[CommitReport], object]:
        """Call this with a report of every commit."""
        self._commit_callbacks.append(callback)
        return callback

    # Life

    async def start(self) -> Self:
        """Begin to follow the space; returns when all of it is here."""
        if self._closed:
            raise ClientClosed("expected an open runtime, found it closed")
        if self._feed is None:
            self._feed = feed_of(self._runner, self.space)
            self._feed.join(self._follower)
        await self._until(lambda: self._core.replica.live or self._trouble is not None)
        if not self._core.replica.live and self._trouble is not None:
            error = self._trouble
            await self.aclose(drain=False)
            raise error
        return self

    async def aclose(self, *, drain: bool = True) -> None:
        """Wait until everything has its outcome, then end. Without `drain`, what is left fails."""
        if self._closed:
            return
        if drain and self._feed is not None:
            await self.settled()
        self._closed = True
        self._perform(self._core.close(self._now_ms()))
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            await self._feed.leave(self._follower)
        if self._owned is not None:
            await self._owned.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.aclose(drain=error is None)

    # Work

    def send(
        self,
        type: str,  # noqa: A002
        data: Any = None,
        *,
        lane: str | None = None,
        id: str | None = None,  # noqa: A002
        retries: bool = True,
    ) -> AsyncHandle:
        """Queue an event. Give an `id` of your own if it may be sent twice: it counts once.

        Without `retries` the first conflict is the end. In a handler, use `tx.send`.
        """
        if self._closed:
            raise ClientClosed("expected an open runtime, found it closed")
        if self._in_handler:
            raise InvalidRequest("expected tx.send in a handler, found runtime.send")
        self._handlers.check(type)
        intent = Intent(type=type, data=data, lane=lane, id=id, retries=retries)
        ticket, effects = self._core.send(intent, self._now_ms())
        self._perform(effects)
        return AsyncHandle(ticket)

    async def idle(self) -> None:
        """Wait until no handler is running, queued or backing off."""
        await self._until(lambda: self._core.is_idle)

    async def settled(self) -> None:
        """Wait until, beyond that, every commit has its outcome."""
        await self._until(lambda: self._core.is_settled)

    # Looking

    def get(self, entity: str, path: str = "", default: Any = None) -> Any:
        """A document as it looks from here, with writes that are not confirmed yet."""
        return Transaction(self._core.view, self._handlers.lane_of).get(entity, path, default)

    def confirmed(self, entity: str, default: Any = None) -> Any:
        """A document as the server had it when it was last heard of."""
        version = self._core.replica.version(entity)
        return default if version is None else version.doc

    def entities(self, prefix: str = "") -> list[str]:
        """The names of the entities, as they look from here."""
        return sorted(name for name in self._core.view.names() if name.startswith(prefix))

    async def until(self, condition: Callable[[AsyncRuntime], bool]) -> None:
        """Wait until something about the state is so: `until(lambda now: now.get("x") == 1)`."""
        await self._until(lambda: condition(self))

    def status(self) -> RuntimeStatus:
        """Lanes, what is pending and why, and how fresh the replica is. Print it."""
        return status_of(self._core, self.space, self._now_ms())

    # The shell

    def _now_ms(self) -> float:
        return self._clock.monotonic_ns() / 1e6

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Do what the core wants, in order, until there is nothing left to do."""
        self._todo.extend(effects)
        if self._performing:
            return
        self._performing = True
        ran = 0
        try:
            while self._todo:
                if isinstance(self._todo[0], Run):
                    ran += 1
                    if ran > HANDLERS_A_TURN:
                        asyncio.get_running_loop().call_soon(self._perform, ())
                        return
                self._do(self._todo.popleft())
        finally:
            self._performing = False
        self._set_timer()
        self._wake()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Run(entry):
                self._run(entry)
            case Transmit(commit):
                self._spawn(commit)
            case Tell(ticket):
                ticket.tell()
            case Report(report):
                _LOG.debug("commit %s", report)
                self._call(self._commit_callbacks, report)
            case Fail(failure):
                self._fail(failure)

    def _run(self, entry: Entry) -> None:
        error: Exception | None = None
        self._in_handler = True
        try:
            self._handlers.run(entry)
        except Exception as raised:
            error = raised
        finally:
            self._in_handler = False
        self._todo.extend(self._core.ran(entry, error, self._now_ms()))

    def _spawn(self, commit: Commit) -> None:
        task = asyncio.get_running_loop().create_task(self._transmit(commit))
        self._tasks.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("a runtime is broken, and may wait for ever", exc_info=error)

    async def _transmit(self, commit: Commit) -> None:
        number = commit.local_seq
        try:
            answer = await self._runner.run(commit_call(self.space, commit))
        except CallError as error:
            effects = self._core.refused(number, error, self._now_ms())
        except Exception as error:  # a fault of ours: an event that waits for ever is worse
            failure = CallError(f"expected to send a commit, found {error!r}")
            failure.__cause__ = error
            effects = self._core.refused(number, failure, self._now_ms())
        else:
            effects = self._core.accepted(number, answer.seq, answer.ts, self._now_ms())
        self._perform(effects)

    def _fail(self, failure: Failure) -> None:
        if not self._error_callbacks:
            _LOG.error("%s failed: %s", failure.source, failure.error)
        self._call(self._error_callbacks, failure)

    def _call(self, callbacks: Iterable[Callable[[Any], object]], given: object) -> None:
        for callback in list(callbacks):
            try:
                callback(given)
            except Exception:
                _LOG.exception("a callback of a runtime raised")

    def _set_timer(self) -> None:
        due_ms = self._core.next_due_ms
        if due_ms == self._timer_ms or self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = due_ms
        if due_ms is not None:
            delay_ms = max(0.0, due_ms - self._now_ms())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._ring)

    def _ring(self) -> None:
        """The timer of the loop went off; whether it is time is up to the clock we were given."""
        self._timer = self._timer_ms = None
        now_ms = self._now_ms()
        due_ms = self._core.next_due_ms
        if due_ms is not None and due_ms > now_ms:
            self._timer_ms = due_ms
            delay_ms = max(TIMER_MS_MIN, due_ms - now_ms)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._ring)
            return
        self._perform(self._core.tick(now_ms))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._closed:
                raise ClientClosed("expected an open runtime, found it closed")
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = condition
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)

    def _wake(self) -> None:
        for waiter, condition in list(self._waiters.items()):
            if not waiter.done() and (self._closed or condition()):
                waiter.set_result(None)
