"""State shared by all connections: application, limits, memory, counters, a tick per second.

Connections have no timers. They note the tick at which something happened, and every second the
service calls `sweep` on each of them to check its timeouts.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.protocol.errors import CallError
from penstock.server.http.budget import BodyBudget
from penstock.server.http.head import Heads, Overlaps, nothing_overlaps
from penstock.server.http.message import (
    AnswerHeads,
    Application,
    Exchange,
    Sender,
    TransportLimits,
    error_body,
)
from penstock.server.http.origins import Origins

TICK_S: Final = 1.0
CheckHead = Callable[[str, dict[str, str], Sender], CallError | None]
"""Why a request with this method, headers and sender is refused before its body is read."""


def nothing_refused(_method: str, _headers: dict[str, str], _sender: Sender) -> None:
    """Every body is read."""


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The address at the other end of a connection, without its port; empty if it has none."""
    found = transport.get_extra_info("peername")
    return str(found[0]) if isinstance(found, tuple) and found else ""


log = logging.getLogger("penstock.server")


@dataclass(slots=True)
class Counters:
    """The transport's counters since it started."""

    connections_total: int = 0
    connections_refused: int = 0
    requests_total: int = 0
    refusals_total: int = 0
    failures_total: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    streams_open: int = 0
    websockets_open: int = 0


class ServedConnection(Protocol):
    """A connection of any protocol, as the service sees it."""

    def sweep(self, now_s: float) -> None:
        """Close if something took too long."""

    def drain(self) -> None:
        """Close as soon as no answer is due."""

    def abort(self) -> None:
        """Close now."""


class Service:
    """The state that connections share. Everything happens on the loop's thread."""

    def __init__(
        self,
        application: Application,
        limits: TransportLimits,
        loop: asyncio.AbstractEventLoop,
        *,
        overlaps: Overlaps = nothing_overlaps,
        check_head: CheckHead = nothing_refused,
        origins: Origins | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.application = application
        self.limits = limits
        self.loop = loop
        origins = origins or Origins()
        self.heads = Heads(limits, overlaps, origins)
        self.check_head = check_head
        """Called before a body is read that does not arrive with its head."""
        self.answers = AnswerHeads(varies=origins.varies)
        self.budget = BodyBudget(limits.buffered_bytes_max, limits.buffered_bytes_refused)
        self.counters = Counters()
        self.connections: set[ServedConnection] = set()
        self.draining = False
        self.emptied: Callable[[], None] | None = None
        """Called when the last connection is closed."""
        self.now_s = loop.time()
        self._wall_s = wall_s
        self._timer: asyncio.TimerHandle | None = None
        self.answers.turn(wall_s())

    def start(self) -> None:
        """Start ticking."""
        self._timer = self.loop.call_later(TICK_S, self._ticked)

    def stop(self) -> None:
        """Stop ticking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tick(self) -> None:
        """Note the time and check the timeouts of every connection."""
        self.now_s = self.loop.time()
        self.answers.turn(self._wall_s())
        for connection in list(self.connections):
            connection.sweep(self.now_s)

    def drain(self) -> None:
        """Close every connection as soon as no answer is due."""
        self.draining = True
        for connection in list(self.connections):
            connection.drain()

    def add(self, connection: ServedConnection) -> None:
        """Register an open connection."""
        self.connections.add(connection)

    def replace(self, connection: ServedConnection, successor: ServedConnection) -> None:
        """A connection continues under another protocol."""
        self.connections.discard(connection)
        self.connections.add(successor)

    def discard(self, connection: ServedConnection) -> None:
        """Remove a closed connection."""
        self.connections.discard(connection)
        if not self.connections and self.emptied is not None:
            self.emptied()

    def hand_over(self, exchange: Exchange) -> bool:
        """Pass a request to the application; False if that failed."""
        self.counters.requests_total += 1
        try:
            self.application(exchange)
        except Exception:
            self.failed("the application failed on %s", exchange.request.path)
            return False
        return True

    def call(self, callback: Callable[[], None] | None) -> None:
        """Call back into the application; exceptions are logged and not propagated."""
        if callback is None:
            return
        try:
            callback()
        except Exception:
            self.failed("a callback of the application failed")

    def failed(self, text: str, *parts: object) -> None:
        """Log and count the application's exception that is being handled."""
        self.counters.failures_total += 1
        log.error(text, *parts, exc_info=sys.exc_info())

    def _ticked(self) -> None:
        self._timer = self.loop.call_later(TICK_S, self._ticked)
        self.tick()


INTERNAL_ERROR: Final = error_body("internal", "the server failed to answer this request")
