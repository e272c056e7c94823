# Generated from ../aio/runtime.py by tools/unasync.py: edit that, then `make generate`.
"""The runtime: committed writes to a space that converge or fail loudly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.client.errors import TimedOut
from penstock.client.runtime.driver import Handler, LaneOf, RuntimeDriver
from penstock.client.runtime.effects import CommitReport, RuntimeFailure
from penstock.client.runtime.events import Committed, Intent, Ticket
from penstock.client.runtime.hosts import EXIT_S, Host, Server
from penstock.client.runtime.status import RuntimeStatus
from penstock.client.runtime.transaction import Transaction
from penstock.client.settings import DEFAULT_URL, CommitBackpressure, RuntimeLimits
from penstock.client.transports.blocking import Signal
from penstock.kernel.clock import Clock

H = TypeVar("H", bound=Handler)
D = TypeVar("D", bound=Callable[[Transaction], None])


class Handle:
    """The handle of one event. `result` is its `Committed`, or raises the event's error."""

    __slots__ = ("_host", "_ticket", "_told")

    def __init__(self, ticket: Ticket, host: Host) -> None:
        """Called where the runtime runs, because outcomes are reported there."""
        self._ticket = ticket
        self._host = host
        self._told = Signal()
        ticket.when_done(self._told.tell)

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
        """The outcome if the event was committed."""
        return self._ticket.committed

    @property
    def error(self) -> Exception | None:
        """The outcome if the event failed."""
        return self._ticket.error

    @property
    def children(self) -> list[Handle]:
        """The events that its handler sent, in its last run. Read it while the runtime is open."""
        return self._host.call(
            lambda: [Handle(ticket, self._host) for ticket in self._ticket.children]
        )

    def result(self, timeout_s: float | None = None) -> Committed:
        """Wait for the outcome: returns the commit, or raises the event's error."""
        self._told.changed(0, inf if timeout_s is None else timeout_s)
        ticket = self._ticket
        if ticket.committed is not None:
            return ticket.committed
        if ticket.error is not None:
            raise ticket.error
        raise TimedOut(f"event {self.id!r} had no outcome within {timeout_s} s")

    def __repr__(self) -> str:
        found = self._ticket.committed or self._ticket.error or "pending"
        return f"{type(self).__name__}({self._ticket.type!r}, {self.id!r}, {found!r})"


class Runtime:
    """Committed writes to one space: they converge or fail loudly.

    Handlers are registered by type; `send` queues an event and returns at once. The handler reads
    and writes through a transaction; its writes are visible locally at once and are committed in
    the background. On a conflict they are rolled back and the same event runs again, in its place,
    on fresh state. Use it as `with`: leaving waits until every event has its outcome.

    Handlers and callbacks run in the runtime's own thread, one at a time, and so need no
    locks; they must not call the runtime. Any other thread may use it. It belongs to its
    process: after a fork, make another.
    """

    def __init__(
        self,
        server: Server = DEFAULT_URL,
        space: str = "main",
        *,
        api_key: str | None = None,
        policy: CommitBackpressure | None = None,
        limits: RuntimeLimits | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._driver = RuntimeDriver(
            server,
            space,
            api_key=api_key,
            policy=policy,
            limits=limits,
            clock=clock,
            random=random,
        )
        self._host = Host(f"penstock runtime {space}")
        self._host.at_exit(partial(self.settled, EXIT_S), partial(self.close, drain=False))

    # Set-up

    @property
    def space(self) -> str:
        """The space it commits to."""
        return self._driver.space

    @property
    def session(self) -> str:
        """The session under which this runtime commits, unique to it."""
        return self._driver.session

    def on(self, type: str, *, lane: LaneOf = None) -> Callable[[H], H]:  # noqa: A002
        """Decorate the function that handles a type of event: `handler(tx, event)`.

        Events of one lane take effect strictly in the order they were sent; lanes do not wait for
        each other. `lane` is a name, or a function of the event's data.
        """

        def register(handler: H) -> H:
            self.register(type, handler, lane=lane)
            return handler

        return register

    def register(self, type: str, handler: Handler, *, lane: LaneOf = None) -> None:  # noqa: A002
        """Like `on`, without a decorator."""
        self._host.call(lambda: self._driver.register(type, handler, lane))

    def derive(self, name: str) -> Callable[[D], D]:
        """Decorate a function of the state, `derivation(tx)`, that writes its result back.

        It runs again whenever something it has read changes. Conflicts do not use up its retries.
        """

        def register(function: D) -> D:
            self._host.call(lambda: self._driver.derive(name, function))
            return function

        return register

    def on_error(
        self, callback: Callable[[RuntimeFailure], object]
    ) -> Callable[[RuntimeFailure], object]:
        """Call a function with every final failure."""
        self._host.call(lambda: self._driver.on_error(callback))
        return callback

    def on_commit(
        self, callback: Callable[[CommitReport], object]
    ) -> Callable[[CommitReport], object]:
        """Call a function with a report of every commit."""
        self._host.call(lambda: self._driver.on_commit(callback))
        return callback

    # Lifecycle

    def start(self) -> Self:
        """Start following the space; returns when the replica is complete."""
        try:
            self._host.wait(self._driver.start)
        except BaseException:
            self.close(drain=False)
            raise
        return self

    def close(self, *, drain: bool = True) -> None:
        """Wait until every event has its outcome, then end.

        Without `drain`, unfinished events fail.
        """
        self._host.close(partial(self._driver.end, drain=drain))

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
        """Queue an event. Pass an `id` if it may be sent twice: it takes effect once.

        Without `retries` the first conflict is final. In a handler, use `tx.send`.
        """
        intent = Intent(type=type, data=data, lane=lane, id=id, retries=retries)
        return self._host.call(lambda: Handle(self._driver.send(intent), self._host))

    def idle(self, timeout_s: float | None = None) -> None:
        """Wait until no handler is running, queued or backing off."""
        self._host.wait(self._driver.idle, timeout_s)

    def settled(self, timeout_s: float | None = None) -> None:
        """Wait until the runtime is idle and every commit has its outcome."""
        self._host.wait(self._driver.settled, timeout_s)

    # Reading

    def get(self, entity: str, path: str = "", default: Any = None) -> Any:
        """A document as seen locally, including unconfirmed writes."""
        return self._host.call(lambda: self._driver.get(entity, path, default))

    def confirmed(self, entity: str, default: Any = None) -> Any:
        """A document as last confirmed by the server."""
        return self._host.call(lambda: self._driver.confirmed(entity, default))

    def entities(self, prefix: str = "") -> list[str]:
        """The names of the entities, as seen locally."""
        return self._host.call(lambda: self._driver.entities(prefix))

    def until(
        self, condition: Callable[[RuntimeDriver], bool], timeout_s: float | None = None
    ) -> None:
        """Wait until a condition on the state holds: `until(lambda now: now.get("x") == 1)`."""
        self._host.wait(partial(self._driver.until, condition), timeout_s)

    def status(self) -> RuntimeStatus:
        """Lanes, pending events and their reasons, and the replica's freshness. Printable."""
        return self._host.call(self._driver.status)
