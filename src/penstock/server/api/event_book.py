"""The last things that happened, in memory and in the topic `penstock.events`.

The topic is made by the first event worth a record, and survives a restart as any topic does; the
book begins with what it holds. A start alone makes no topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.flow.governor import Level, Rung
from penstock.kernel.errors import PenstockError
from penstock.kernel.text import Seldom
from penstock.log.executor import Phase
from penstock.protocol.server_events import (
    ABOUT_TOPICS,
    EVENTS_KEPT,
    EVENTS_TOPIC,
    EventKind,
    EventLevel,
    EventPage,
    ServerEvent,
)
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import ReadRequest
from penstock.topics.engine.engine import Engine

LOG_FAILED_MS: Final = 60_000
"""A log that takes no writes is told of once a minute."""
SNAPSHOT_MS: Final = 60_000
_LOGGER: Final = logging.getLogger("penstock.server")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(ServerEvent).decode
_RUNGS: Final[dict[Level, tuple[EventLevel, str]]] = {
    Level.STEADY: ("ok", "The pressure is gone: nothing is delayed any more."),
    Level.COALESCE: ("slow", "Under pressure: pushes are delayed a little to carry more."),
    Level.WIDEN: ("slow", "Under pressure: commits wait for more of them, too."),
    Level.DEFER: ("slow", "Under high pressure: topics of low priority wait."),
    Level.REFUSE: ("bad", "The log is behind by more than it may be: writes are refused."),
}


class EventBook:
    """Takes note of what happens. `on_event` are called with each new event."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: deque[ServerEvent] = deque(maxlen=EVENTS_KEPT)
        self._rungs = RungTeller()
        self._let_go = Seldom()
        self._failures = 0
        self._failed_ms = -LOG_FAILED_MS
        self._failed_partitions: set[int] = set()
        self._snapshots = 0
        self._snapshot_ms = -SNAPSHOT_MS
        self.on_event: list[Callable[[ServerEvent], None]] = []

    @property
    def last_id(self) -> int:
        """The id of the newest event; 0 if nothing happened yet."""
        return self._events[-1].id if self._events else 0

    async def open(self) -> None:
        """Begin with what the topic holds from before the start, then note the start."""
        engine = self._engine
        if EVENTS_TOPIC in engine.registry.topics:
            try:
                page = await engine.diff(EVENTS_TOPIC, ReadRequest(limit=EVENTS_KEPT))
                found = [_read(bytes(record.data)) for record in page.found.records]
                self._events.extend(event for event in found if event is not None)
            except PenstockError as error:
                _LOGGER.warning("earlier events cannot be read: %s", error)
        snapshotter = engine.snapshotter
        self._snapshots = 0 if snapshotter is None else snapshotter.done
        self.happened("started", "info", "The server has started.")

    def happened(
        self,
        kind: EventKind,
        level: EventLevel,
        text: str,
        *,
        name: str | None = None,
        **facts: Any,
    ) -> ServerEvent:
        """Take note of an event, and write it to the topic."""
        event = ServerEvent(
            id=self.last_id + 1,
            ts=self._engine.clock.now_ms(),
            kind=kind,
            level=level,
            text=text,
            name=name,
            facts=facts,
        )
        self._events.append(event)
        for tell in self.on_event:
            tell(event)
        if kind != "started" or EVENTS_TOPIC in self._engine.registry.topics:
            # Not at once: it may have happened in the middle of a commit.
            asyncio.get_running_loop().call_soon(self._write, event)
        return event

    def page(
        self,
        *,
        after_id: int = 0,
        limit: int = EVENTS_KEPT,
        kind: str | None = None,
        reaches: Callable[[str], bool] | None = None,
    ) -> EventPage:
        """Events after one, newest first; with `reaches`, only those about names it reaches."""
        found: list[ServerEvent] = []
        for event in reversed(self._events):
            if event.id <= after_id or len(found) >= limit:
                break
            if kind in (None, event.kind) and (reaches is None or _may_see(event, reaches)):
                found.append(event)
        return EventPage(events=found, last_id=self.last_id)

    def look(self, now_ms: int) -> None:
        """Notice what only counters tell; called once a second, at a time of its own clock."""
        engine = self._engine
        told = self._rungs.look(engine.turns.rung)
        if told is not None:
            before, now = told
            level, text = _RUNGS[now]
            facts = {"from": before.name.lower(), "to": now.name.lower()}
            pressure = round(engine.turns.rung.pressure, 3)
            self.happened("rung", level, text, pressure=pressure, **facts)
        counters = engine.journal.counters
        if counters.failures > self._failures and now_ms - self._failed_ms >= LOG_FAILED_MS:
            self._failed_ms = now_ms
            text = "The log does not take writes: they are refused; what was acknowledged is safe."
            self.happened("log_failed", "bad", text)
        self._failures = counters.failures
        self._look_at_partitions()
        self._look_at_snapshots(now_ms)

    def let_go(self, topic: str | None, kind: str) -> None:
        """A connection ended that did not read what it was sent; told at most once a second."""
        others = self._let_go.take(self._engine.clock.monotonic_ms())
        if others is None:
            return
        more = f", and {others} others before it" if others else ""
        text = f"A watcher ({kind}) that did not read what it was sent is gone{more}."
        self.happened("watcher_let_go", "slow", text, name=topic, others=others)

    def _look_at_snapshots(self, now_ms: int) -> None:
        """Told once a minute: the event itself is in the log, and so adds to the next snapshot."""
        snapshotter = self._engine.snapshotter
        made = 0 if snapshotter is None else snapshotter.done - self._snapshots
        if made and now_ms - self._snapshot_ms >= SNAPSHOT_MS:
            self._snapshots += made
            self._snapshot_ms = now_ms
            text = "A snapshot was made; the log before it is freed."
            self.happened("snapshot_made", "info", text, made=made)

    def _look_at_partitions(self) -> None:
        for status in self._engine.partitions():
            if status.phase is Phase.FAILED and status.partition not in self._failed_partitions:
                self._failed_partitions.add(status.partition)
                text = f"Partition {status.partition} is damaged and out of service; others serve."
                self.happened("partition_failed", "bad", text, partition=status.partition)

    def _write(self, event: ServerEvent) -> None:
        body = {"records": [{"data": event, "tag": event.kind}]}
        write = parse_write(_encode(body), self._engine.limits)
        self._engine.write(EVENTS_TOPIC, write, _written)


class RungTeller:
    """Which crossings of the ladder are worth an event: up at once, down after a while. Pure.

    Under load the rung changes ten times a second; a list of that would say nothing.

    >>> teller, calm = RungTeller(), Rung(Level.STEADY, 0.1, 0.0, 0.5, False, False, 0)
    >>> teller.look(calm._replace(level=Level.WIDEN))
    (<Level.STEADY: 0>, <Level.WIDEN: 2>)
    >>> [teller.look(calm) for _ in range(RungTeller.CALM_LOOKS)][-2:]
    [None, (<Level.WIDEN: 2>, <Level.STEADY: 0>)]
    """

    CALM_LOOKS: Final = 5

    def __init__(self) -> None:
        self._told = Level.STEADY
        self._since: list[Level] = []  # the lower rungs seen since

    def look(self, rung: Rung) -> tuple[Level, Level] | None:
        """The rung told before and the one to tell now; None if there is nothing to tell."""
        before, level = self._told, rung.level
        if level > before:
            self._told, self._since = level, []
            return before, level
        self._since = [*self._since, level] if level < before else []
        if len(self._since) < self.CALM_LOOKS:
            return None
        self._told, self._since = max(self._since), []
        return before, self._told


def _may_see(event: ServerEvent, reaches: Callable[[str], bool]) -> bool:
    if event.name is None:
        return True
    return event.kind in ABOUT_TOPICS and reaches(event.name)


def _read(data: bytes) -> ServerEvent | None:
    """An event of the topic; None for what another program wrote there."""
    try:
        return _decode(data)
    except msgspec.DecodeError:
        return None


def _written(outcome: object) -> None:
    """The book has the event, whether the topic took it or not."""
    if isinstance(outcome, Exception):
        _LOGGER.debug("an event was not written to %s: %s", EVENTS_TOPIC, outcome)
