"""What the server learns of its parts and its tables, as events: lost, back, failed, changed.

The tellers are pure: they take what is known now and return what is worth an event. `News` looks
once a second at the parts, and every other second at the refreshes of tables, off the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import ValidationError, convert

from penstock.kernel.errors import PenstockError
from penstock.kernel.text import shortened
from penstock.kernel.units import format_ms
from penstock.protocol.part_answers import LostWorker, PartState
from penstock.protocol.server_events import EventKind, EventLevel
from penstock.server.overview.parts import SERVER, parts_of

if TYPE_CHECKING:
    from penstock.server.api.call import Context
    from penstock.tables.core.history import RefreshRecord

REFRESHES_EVERY: Final = 2
"""Every so many looks, the refreshes of tables are looked at, too."""
REFRESHES_LOOKED: Final = 100
FAILED_MS: Final = 60_000
"""A table that keeps failing is told of once a minute."""
_AWAY: Final = "away"
_LOGGER: Final = logging.getLogger("penstock.server")


class Happening(NamedTuple):
    """Something worth an event."""

    kind: EventKind
    level: EventLevel
    text: str
    name: str
    facts: dict[str, Any]


class _Seen(NamedTuple):
    state: str
    tariffs: dict[str, Any] | None


class PartTeller:
    """Which parts were lost or came back, and which tariffs they work with. Pure.

    A part that is away when it is first looked at is not told of: it was lost before.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._tariffs: dict[str, Any] | None = None  # last told of
        self._lost_ms: dict[str, int] = {}  # by coordinator: when it last lost a worker
        self._missing: dict[str, int] = {}  # workers that were lost, and their processes

    def look(self, parts: Iterable[PartState]) -> list[Happening]:
        """What happened since the last look."""
        found: list[Happening] = []
        parts = list(parts)
        self._forget({part.part for part in parts})
        for part in parts:
            if part.kind == SERVER:
                continue
            now = _Seen(part.state, part.facts.get("tariffs"))
            before = self._seen.get(part.part)
            self._seen[part.part] = now
            if before is not None:
                found += self._changes(part, before, now)
            found += self._losses(part)
        return found

    def _forget(self, present: set[str]) -> None:
        """Keep nothing of parts that are listed no more."""
        for known in (self._seen, self._lost_ms, self._missing):
            for gone in known.keys() - present:
                del known[gone]

    def _losses(self, part: PartState) -> Iterable[Happening]:
        """Workers that died, as their coordinator tells, and those that took their places."""
        lost = _lost_workers(part)
        known_ms = self._lost_ms.setdefault(part.part, max((each.at for each in lost), default=0))
        for each in lost:
            if each.at > known_ms:
                self._lost_ms[part.part], self._missing[each.part] = each.at, each.pid
                did = "" if each.unit is None else f" while it refreshed {each.unit}"
                text = f"{each.part} ended{did}, process {each.pid}: another takes its place."
                yield Happening("part_lost", "bad", text, each.part, {"pid": each.pid})
        if part.facts.get("ready") and self._missing.get(part.part, part.pid) != part.pid:
            del self._missing[part.part]
            text = f"{part.part} works again, as process {part.pid}."
            yield Happening("part_back", "ok", text, part.part, {"pid": part.pid})

    def _changes(self, part: PartState, before: _Seen, now: _Seen) -> Iterable[Happening]:
        name, facts = part.part, {"node": part.node}
        if now.state == _AWAY and before.state != _AWAY:
            text = f"{name} does not report any more: it has ended, or cannot reach the server."
            yield Happening("part_lost", "bad", text, name, facts)
        if before.state == _AWAY and now.state not in (_AWAY, "ended"):
            yield Happening("part_back", "ok", f"{name} reports again.", name, facts)
        tariffs = now.tariffs
        if tariffs is not None and tariffs not in (before.tariffs, self._tariffs):
            self._tariffs = tariffs
            space, seq = str(tariffs.get("space", "")), tariffs.get("seq")
            text = f"{name} works with the tariffs at seq {seq} of {space} now."
            yield Happening("tariff_changed", "info", text, space, {"part": name, "seq": seq})


def _lost_workers(part: PartState) -> list[LostWorker]:
    try:
        return convert(part.facts.get("lost", []), list[LostWorker])
    except ValidationError:  # a part of another version says it differently
        return []


class RefreshTeller:
    """Which refreshes failed, of those that ended after a time. Pure."""

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._told: set[tuple[int, str]] = set()  # of those that ended at this very time
        self._failing: dict[str, int] = {}  # tables, and when each was last told of

    def look(self, records: Sequence[RefreshRecord]) -> list[Happening]:
        """What failed since the last look; `records` are the newest first."""
        new = [each for each in reversed(records) if self._is_new(each)]
        for record in new:
            if record.finished_at_ms > self._since_ms:
                self._since_ms, self._told = record.finished_at_ms, set()
            self._told.add((record.job_id, record.table))
        return [told for record in new for told in self._tell(record)]

    def _is_new(self, record: RefreshRecord) -> bool:
        if record.finished_at_ms != self._since_ms:
            return record.finished_at_ms > self._since_ms
        return (record.job_id, record.table) not in self._told

    def _tell(self, record: RefreshRecord) -> Iterable[Happening]:
        table, at_ms = record.table, record.finished_at_ms
        if record.outcome.value != "failed":
            if record.outcome.value == "succeeded":
                self._failing.pop(table, None)
            return
        last_ms = self._failing.get(table)
        if last_ms is not None and at_ms - last_ms < FAILED_MS:
            return
        lately = {each: ms for each, ms in self._failing.items() if at_ms - ms < FAILED_MS}
        self._failing = {**lately, table: at_ms}
        took = format_ms(record.took_ms)
        reason = shortened(record.reason_text) or "no reason is known"
        text = f"The refresh of {table} failed after {took}: {reason}"
        facts = {"job": record.job_id, "reason": record.reason.value}
        yield Happening("refresh_failed", "bad", text, table, facts)


class News:
    """Looks at parts and tables, and notes what happened in the book of events."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._parts = PartTeller()
        self._refreshes = RefreshTeller(context.engine.clock.now_ms())
        self._looks = 0
        self._is_looking = False

    def look(self, _now_ms: int) -> None:
        """Called once a second."""
        context = self._context
        if not context.engine.ready or context.draining:
            return
        parts = parts_of(context)
        self._tell(self._parts.look(parts))
        self._looks += 1
        if self._looks % REFRESHES_EVERY == 0 and self._has_tables(parts) and not self._is_looking:
            self._is_looking = True
            context.spawn(self.look_at_refreshes())

    async def look_at_refreshes(self) -> None:
        """Read the newest refreshes from the catalog, in a thread of the tables."""
        desk = self._context.tables
        try:
            if desk is not None:
                read = await desk.do(lambda tables: tables.history(limit=REFRESHES_LOOKED))
                self._tell(self._refreshes.look(read))
        except PenstockError as error:
            _LOGGER.debug("refreshes cannot be looked at: %s", error)
        finally:
            self._is_looking = False

    def _has_tables(self, parts: Iterable[PartState]) -> bool:
        """Whether tables are refreshed at all: a warehouse is not opened for events alone."""
        desk = self._context.tables
        if desk is None:
            return False
        return desk.is_open or any(part.kind == "tables" for part in parts)

    def _tell(self, happened: Iterable[Happening]) -> None:
        for each in happened:
            text = self._context.hide(each.text, 503)
            self._context.events.happened(each.kind, each.level, text, name=each.name, **each.facts)
