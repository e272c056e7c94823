"""The status of a runtime, for people."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.client.runtime.core import RuntimeCore
from penstock.client.runtime.lanes import Entry, EntryState, Lane

EVENTS_SHOWN: Final = 8
"""How many events of a lane are listed individually."""


class EventStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished event."""

    id: str
    type: str
    state: str
    conflicts: int = 0
    coalesced: int = 0
    """Further events that were merged into this one."""
    wait_ms: float | None = None
    """How long until it runs again, while it is backing off."""
    reason: str | None = None
    """Why it is waiting."""


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with work in it."""

    lane: str
    pending: int
    events: list[EventStatus]
    """The first of them, in order."""


class RuntimeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All unfinished events, and how fresh the replica is."""

    space: str
    session: str
    live: bool
    """Whether the replica has had its first listing."""
    replica_seq: int
    entities: int
    layers: int
    """Own commits that are visible here and not in the replica yet."""
    pending: int
    committing: int
    lanes: list[LaneStatus]

    def __str__(self) -> str:
        replica = f"replica at {self.replica_seq}" if self.live else "no replica yet"
        head = f"space {self.space}: {replica}, {self.entities} entities, {self.layers} layers"
        lines = [f"{head}, {self.pending} pending, {self.committing} committing"]
        for lane in self.lanes:
            lines.append(f"  lane {lane.lane or '(main)'}: {lane.pending} pending")
            for event in lane.events:
                wait = f", again in {event.wait_ms:.1f} ms" if event.wait_ms is not None else ""
                why = f": {event.reason}" if event.reason else ""
                lines.append(f"    {event.type} {event.id}: {event.state}{wait}{why}")
        return "\n".join(lines)


def status_of(core: RuntimeCore, space: str, now_ms: float) -> RuntimeStatus:
    """The current status."""
    return RuntimeStatus(
        space=space,
        session=core.session,
        live=core.replica.live,
        replica_seq=core.replica.seq,
        entities=len(core.replica),
        layers=sum(1 for _ in core.view.layers()),
        pending=sum(1 for _ in core.lanes.entries()),
        committing=core.committing,
        lanes=[_lane(lane, now_ms) for lane in core.lanes],
    )


def _lane(lane: Lane, now_ms: float) -> LaneStatus:
    return LaneStatus(
        lane=lane.key if not lane.kind else f"{lane.kind} {lane.key}",
        pending=len(lane.entries),
        events=[_event(entry, now_ms) for entry in lane.entries[:EVENTS_SHOWN]],
    )


def _event(entry: Entry, now_ms: float) -> EventStatus:
    parked = entry.state is EntryState.PARKED
    away = entry.state is EntryState.FLYING and entry.resend_ms is not None
    return EventStatus(
        id=entry.event.id,
        type=entry.event.type,
        state="waiting for the server" if away else entry.state.value,
        conflicts=entry.conflicts,
        coalesced=len(entry.more),
        wait_ms=max(0.0, entry.not_before_ms - now_ms) if parked else None,
        reason=str(entry.last_error) if (parked or away) and entry.last_error else None,
    )
