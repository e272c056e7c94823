"""The server's own topics: their reserved names, and how such a topic is configured.

Parts of a deployment report themselves to `penstock.parts.<kind>.<node>` and take commands from
`penstock.commands.<kind>.<node>`; the server writes what happens to `penstock.events`. The first
write makes such a topic, with this configuration whatever the write says.

>>> own_config("penstock.parts.ingest.a").cap_records, own_config("meters")
(900, None)
>>> check_own("penstock.mine")
Traceback (most recent call last):
...
penstock.protocol.errors.ReservedName: 'penstock.mine' cannot be made: names that begin with ...
"""

from __future__ import annotations

from typing import Final

from penstock.flow.priority import PRIORITY_MAX
from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import ReservedName
from penstock.protocol.server_events import EVENTS_KEPT, EVENTS_TOPIC
from penstock.protocol.values import is_reserved

PARTS_PREFIX: Final = "penstock.parts."
COMMANDS_PREFIX: Final = "penstock.commands."
REPORTS_KEPT: Final = 900
"""Reports of a part that are kept: 15 minutes."""

_CONFIG: Final = TopicConfig(
    durability="ephemeral",
    cap_records=REPORTS_KEPT,
    priority=PRIORITY_MAX,
    auto_priority=False,
    idempotency_window_ms=0,
)


_EVENTS: Final = TopicConfig(cap_records=EVENTS_KEPT, durability="disk")


def own_config(name: str) -> TopicConfig | None:
    """The configuration of a topic that the server or a part writes to; None for other names."""
    if name == EVENTS_TOPIC:
        return _EVENTS
    is_part = name.startswith((PARTS_PREFIX, COMMANDS_PREFIX))
    return _CONFIG if is_part and len(name.split(".", 3)) == 4 else None


def check_own(name: str) -> None:
    """Refuse a name that is reserved, unless it is that of a topic which parts write to."""
    if is_reserved(name) and own_config(name) is None:
        raise ReservedName(name)


def check_not_own(name: str) -> None:
    """Refuse to make or configure a topic of the server itself."""
    if is_reserved(name):
        raise ReservedName(name)


def part_topic(part: str) -> str:
    """Where a part reports itself."""
    return PARTS_PREFIX + part


def commands_topic(part: str) -> str:
    """Where a part takes its commands."""
    return COMMANDS_PREFIX + part
