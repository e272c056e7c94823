"""Drives a runtime's core in one event loop: runs handlers, carries out effects, feeds events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from inspect import iscoroutinefunction
from random import Random
from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec

from penstock.client.aio.client import AsyncClient
from penstock.client.runtime.core import RuntimeCore
from penstock.client.runtime.effects import (
    CommitReport,
    Effect,
    Fail,
    Report,
    Run,
    RuntimeFailure,
    Tell,
    Transmit,
)
from penstock.client.runtime.events import Event, Intent, Ticket
from penstock.client.runtime.feed import Feed, feed_of
from penstock.client.runtime.hosts import AsyncServer
from penstock.client.runtime.lanes import Entry
from penstock.client.runtime.replica import Change, EntityVersion
from penstock.client.runtime.status import RuntimeStatus, status_of
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import CommitBackpressure, RuntimeLimits
from penstock.client.space_calls import commit_once
from penstock.client.transports.connecting import closed_error
from penstock.kernel.clock import Clock
from penstock.kernel.system import SystemClock
from penstock.protocol.commits import Commit
from penstock.protocol.errors import CallError, InvalidRequest, Outcome

Handler = Callable[[Transaction, Event], Any]
LaneOf = str | Callable[[Any], object] | None


class Handlers:
    """One handler for each type."""

    def __init__(self) -> None:
        self._handlers: dict[str, tuple[Handler, LaneOf]] = {}

    def add(self, kind: str, handler: Handler, lane: LaneOf) -> None:
        """Handle a type of event from now on."""
        if kind in self._handlers:
            raise InvalidRequest(f"{kind!r} has a handler already")
        if iscoroutinefunction(handler):
            raise InvalidRequest(
                f"the handler of {kind!r} is a coroutine function; make it a plain one: it only "
                "reads and writes its transaction, and may run several times"
            )
        self._handlers[kind] = (handler, lane)

    def lane_of(self, kind: str, data: Any) -> str:
        """The lane that a type's handler assigns to such data."""
        lane = self._found(kind)[1]
        if callable(lane):
            return str(lane(data))
        return lane or ""

    def check(self, kind: str) -> None:
        """Refuse a type that has no handler."""
        self._found(kind)

    def run(self, entry: Entry) -> None:
        """Run the handler of an entry on its transaction, once for each event in it."""
        transaction, event = entry.transaction, entry.event
        if transaction is None:
            raise ValueError(f"{entry!r} has no transaction to run on")
        if entry.derivation is not None:
            entry.derivation.function(transaction)
            return
        handler, _ = self._found(event.type)
        for data in (event.data, *entry.more):
            handler(
                transaction,
                msgspec.structs.replace(event, data=deepcopy(data), attempt=entry.conflicts + 1),
            )

    def _found(self, kind: str) -> tuple[Handler, LaneOf]:
        found = self._handlers.get(kind)
        if found is None:
            near = get_close_matches(kind, self._handlers, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"events of type {kind!r} have no handler{hint}")
        return found


_LOG: Final = logging.getLogger("penstock.client.runtime")
HANDLERS_A_TURN: Final = 64
"""How many handlers run before other work of the loop gets a turn."""
TIMER_MS_MIN: Final = 1.0

H = TypeVar("H", bound=Handler)
D = TypeVar("D", bound=Callable[[Transaction], None])


class RuntimeDriver:
    """A running runtime. `AsyncRuntime` and `Runtime` are its public interfaces."""

    def __init__(
        self,
        server: AsyncServer,
        space: str,
        *,
        api_key: str | None = None,
        policy: CommitBackpressure | None = None,
        limits: RuntimeLimits | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        is_shared = isinstance(server, AsyncClient)
        client = server if isinstance(server, AsyncClient) else AsyncClient(server, api_key=api_key)
        self._owned = None if is_shared else client
        self._runner = client._runner
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
        self._error_callbacks: list[Callable[[RuntimeFailure], object]] = []
        self._commit_callbacks: list[Callable[[CommitReport], object]] = []
        self._todo: deque[Effect] = deque()
        self._performing = False
        self._in_handler = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: float | None = None
        self._waiters: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._trouble: CallError | None = None
        self._closed = False

    # Set-up

    @property
    def session(self) -> str:
        """The session under which this runtime commits, unique to it."""
        return self._core.session

    def register(self, kind: str, handler: Handler, lane: LaneOf) -> None:
        """Handle a type of event."""
        self._handlers.add(kind, handler, lane)

    def derive(self, name: str, function: Callable[[Transaction], None]) -> None:
        """Keep a derivation up to date."""
        self._perform(self._core.derive(name, function, self._now_ms()))

    def on_error(self, callback: Callable[[RuntimeFailure], object]) -> None:
        """Call a function with every final failure."""
        self._error_callbacks.append(callback)

    def on_commit(self, callback: Callable[[CommitReport], object]) -> None:
        """Call a function with a report of every commit."""
        self._commit_callbacks.append(callback)

    # Lifecycle

    async def start(self) -> None:
        """Start following the space; returns when the replica is complete."""
        self._check_open()
        if self._feed is None:
            self._feed = feed_of(self._runner, self.space)
            self._feed.join(self)
        await self._until(lambda: self._core.replica.live or self._trouble is not None)
        if not self._core.replica.live and self._trouble is not None:
            raise self._trouble

    async def end(self, *, drain: bool) -> None:
        """Wait until every event has its outcome, then end.

        Without `drain`, unfinished events fail.
        """
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
            await self._feed.leave(self)
        if self._owned is not None:
            await self._owned.aclose()

    # Work

    def send(self, intent: Intent) -> Ticket:
        """Queue an event; returns its ticket."""
        self._check_open()
        if self._in_handler:
            raise InvalidRequest("a handler called runtime.send: use tx.send there")
        self._handlers.check(intent.type)
        ticket, effects = self._core.send(intent, self._now_ms())
        self._perform(effects)
        return ticket

    async def idle(self) -> None:
        """Wait until no handler is running, queued or backing off."""
        await self._until(lambda: self._core.is_idle)

    async def settled(self) -> None:
        """Wait until the runtime is idle and every commit has its outcome."""
        await self._until(lambda: self._core.is_settled)

    # Reading

    def get(self, entity: str, path: str = "", default: Any = None) -> Any:
        """A document as seen locally, including unconfirmed writes."""
        return Transaction(self._core.view, self._handlers.lane_of).get(entity, path, default)

    def confirmed(self, entity: str, default: Any = None) -> Any:
        """A document as last confirmed by the server."""
        version = self._core.replica.version(entity)
        return default if version is None else version.doc

    def entities(self, prefix: str = "") -> list[str]:
        """The names of the entities, as seen locally."""
        return sorted(name for name in self._core.view.names() if name.startswith(prefix))

    async def until(self, condition: Callable[[RuntimeDriver], bool]) -> None:
        """Wait until a condition holds."""
        await self._until(lambda: condition(self))

    def status(self) -> RuntimeStatus:
        """Lanes, pending events and their reasons, and the replica's freshness. Printable."""
        return status_of(self._core, self.space, self._now_ms())

    # Called by the feed

    def listed(self, versions: Mapping[str, EntityVersion], head: int, epoch: int | None) -> None:
        """All entities as of a commit."""
        self._trouble = None
        self._perform(self._core.listed(versions, head, epoch, self._now_ms()))

    def advanced(self, changes: Sequence[Change]) -> None:
        """The commits after that."""
        self._perform(self._core.advanced(changes, self._now_ms()))

    def troubled(self, error: CallError) -> None:
        """The space cannot be followed for a reason that may persist."""
        if self._trouble is None and self._core.replica.live:
            self._fail(RuntimeFailure(error, None, "replica"))
        self._trouble = error
        self._wake()

    # Effects

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error("runtime")

    def _now_ms(self) -> float:
        return self._clock.monotonic_ns() / 1e6

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Carry out the core's effects, in order, until there are none left."""
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
            _LOG.error("a runtime is broken and may wait for ever", exc_info=error)

    async def _transmit(self, commit: Commit) -> None:
        number = commit.local_seq
        try:
            answer = await self._runner.run(commit_once(self.space, commit))
        except CallError as error:
            effects = self._core.refused(number, error, self._now_ms())
        except Exception as error:  # our bug: an event that waits forever would be worse
            failure = CallError(f"the commit could not be sent: {error!r}")
            failure.outcome = Outcome.UNKNOWN
            failure.__cause__ = error
            effects = self._core.refused(number, failure, self._now_ms())
        else:
            effects = self._core.accepted(number, answer.seq, answer.ts, self._now_ms())
        self._perform(effects)

    def _fail(self, failure: RuntimeFailure) -> None:
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
        """The loop's timer fired; the injected clock decides whether it is time."""
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
            self._check_open()
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
