"""What happened to the server and its parts: the last events, and the topic that has them too."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import Struct

EVENTS_KEPT: Final = 1_000
"""The last things that happened."""
EVENTS_TOPIC: Final = "penstock.events"

EventKind = Literal[
    "started", "rung", "log_failed", "partition_failed", "snapshot_made", "watcher_let_go",
    "redriven", "part_lost", "part_back", "refresh_failed", "tariff_changed",
]  # fmt: skip
EventLevel = Literal["ok", "slow", "bad", "info"]
ABOUT_TOPICS: Final = frozenset({"watcher_let_go", "redriven", "tariff_changed"})
"""Kinds whose `name` is that of a topic or a space."""


class ServerEvent(Struct, frozen=True, kw_only=True):
    """Something that happened. `id` grows by one; `name` is the topic, part or table it is about.

    Also the data of the records of topic `penstock.events`.
    """

    id: int
    ts: int
    kind: str
    level: EventLevel
    text: str
    name: str | None = None
    facts: dict[str, Any] = {}


class EventPage(Struct, frozen=True, kw_only=True):
    """Events, newest first; `last_id` is that of the newest of all."""

    events: list[ServerEvent]
    last_id: int
    performance: dict[str, float] = {}
