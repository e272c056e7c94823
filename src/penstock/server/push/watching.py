"""What a watcher requests, and the events it gets from each page; no sockets here.

A session keeps a cursor for each of its topics. `Follower.take` turns a page of a topic into the
events to send and moves the cursor; SSE and WebSocket encode the same events differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import TopicLimits
from penstock.protocol.values import parse_bool, parse_choice, parse_u64
from penstock.server.push import sse
from penstock.topics.core.predicate import Predicate, parse_predicate
from penstock.topics.core.read import ReadRequest, parse_nodes
from penstock.topics.engine.watch import Page, Shape

BATCH_BYTES: Final = 262_144
HEARTBEAT_MS: Final = 15_000
HEARTBEAT_MS_MAX: Final = 60_000
PREFIXES_MAX: Final = 16
NAME_MAX: Final = 255
"""The maximum length of a topic name, and so of a useful prefix."""
_CONSISTENCIES: Final = ("eventual", "strong")


class Place(NamedTuple):
    """Where a watcher begins in a topic: after a seq, or at the head."""

    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None
    tag: Predicate | None = None


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A watcher's request. Topics that begin with a prefix join whenever they are created."""

    topics: dict[str, Place] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    tag: Predicate | None = None
    nodes: frozenset[str] = frozenset()
    limit: int = 256
    batch_bytes_max: int = BATCH_BYTES
    heartbeat_ms: int = HEARTBEAT_MS
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True


class WatchDefaults(NamedTuple):
    """Defaults for omitted fields; SSE and WebSocket differ."""

    limit: int
    batch_bytes: int
    heartbeat_ms_min: int = 1_000
    topics_max: int = 256


def parse_watch(
    body: Mapping[str, Any], limits: TopicLimits, defaults: WatchDefaults
) -> WatchRequest:
    """Parse a request, with defaults and clamps; a wrong type is `InvalidRequest`."""
    topics, prefixes = _parse_topics(body.get("topics")), _parse_prefixes(body.get("prefixes"))
    if not (topics or prefixes):
        raise InvalidRequest("expected at least one topic or prefix to watch, found none")
    if len(topics) > defaults.topics_max:
        raise InvalidRequest(
            f"expected at most {defaults.topics_max} topics to watch, found {len(topics)}"
        )
    limit = _number(body, "limit", defaults.limit) or defaults.limit
    size = _number(body, "max_batch_bytes", defaults.batch_bytes) or limits.read_bytes
    heartbeat_ms = _number(body, "heartbeat_ms", HEARTBEAT_MS)
    if body.get("consistency") is not None:
        parse_choice("consistency", body["consistency"], _CONSISTENCIES)
    return WatchRequest(
        topics,
        prefixes,
        _parse_tag(body),
        parse_nodes(body.get("node")),
        min(limit, limits.read_records_max),
        min(size, limits.read_bytes_max),
        min(max(heartbeat_ms, defaults.heartbeat_ms_min), HEARTBEAT_MS_MAX),
        _flag(body, "include_tags", False),
        _flag(body, "include_meta", True),
        _flag(body, "include_data", True),
    )


class Event(NamedTuple):
    """An event for a watcher. `cursor` is the topic's cursor once it is sent."""

    kind: str
    data: bytes
    cursor: int


@dataclass(slots=True)
class Follower:
    """One topic of one watcher: its cursor, and what was already sent.

    `first_reason` overrides the reason of the first tombstone.
    """

    topic: str
    cursor: int
    shape: Shape
    epoch: int | None = None
    first_reason: str | None = None
    fresh: bool = True
    told_caught_up: bool = False

    def take(self, page: Page) -> list[Event]:
        """The events of a page, shared by all watchers at this cursor; moves the cursor."""
        diff = page.diff
        events: list[Event] = []
        tombstone = diff.tombstone
        if tombstone is not None:
            reason = self.first_reason if self.fresh else None
            self.cursor = tombstone.gap_to
            if tombstone.reason == "recreated":  # it is read from its start, before the gap's end
                self.cursor = min(self.cursor, diff.earliest_seq - 1)
            data = sse.tombstone_data(self.topic, tombstone, diff.epoch, reason)
            events.append(Event("tombstone", data, self.cursor))
        self.fresh = False
        self.epoch = diff.epoch
        if diff.found.records:
            data = _record_data(self.topic, self.cursor, page)
            events.append(Event("record", data, diff.next_from_seq))
        self.cursor = diff.next_from_seq
        if events:
            self.told_caught_up = False
        if diff.caught_up and not self.told_caught_up:
            self.told_caught_up = True
            data = sse.caught_up_data(self.topic, diff)
            events.append(Event("caught-up", data, self.cursor))
        return events


def shape_of(watch: WatchRequest, tag: Predicate | None) -> Shape:
    """How a watcher wants the records of a topic; a topic's tag filter overrides the watch's."""
    request = ReadRequest(
        0,
        watch.limit,
        watch.nodes,
        watch.include_tags,
        watch.include_meta,
        0,
        watch.batch_bytes_max,
        None,
        tag or watch.tag,
    )
    return Shape.of(request, include_data=watch.include_data)


def _record_data(topic: str, from_seq: int, page: Page) -> bytes:
    """The data of a record event, made once for a page."""
    data = page.frames.get("record")
    if data is None:
        data = sse.record_data(topic, page.records, from_seq, page.diff)
        page.frames["record"] = data
    return data


def _parse_topics(value: Any) -> dict[str, Place]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected topics to be an object of names, found {value!r}")
    return {name: _parse_place(name, place) for name, place in value.items()}


def _parse_place(name: str, value: Any) -> Place:
    if value is None:
        return Place()
    if not isinstance(value, dict):
        raise InvalidRequest(f"expected the place in topic {name!r} as an object, found {value!r}")
    epoch = value.get("epoch")
    return Place(
        _number(value, "from_seq", 0),
        _flag(value, "tail", False),
        None if epoch is None else parse_u64("epoch", epoch),
        _parse_tag(value),
    )


def _parse_prefixes(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidRequest(f"expected prefixes to be an array of strings, found {value!r}")
    if len(value) > PREFIXES_MAX:
        raise InvalidRequest(f"expected at most {PREFIXES_MAX} prefixes, found {len(value)}")
    if any(len(item) > NAME_MAX for item in value):
        raise InvalidRequest(f"expected prefixes of at most {NAME_MAX} characters, found more")
    return tuple(dict.fromkeys(value))


def _parse_tag(body: Mapping[str, Any]) -> Predicate | None:
    value = body.get("tag")
    return None if value is None else parse_predicate(value)


def _number(body: Mapping[str, Any], key: str, default: int) -> int:
    value = body.get(key)
    return default if value is None else parse_u64(key, value)


def _flag(body: Mapping[str, Any], key: str, default: bool) -> bool:
    value = body.get(key)
    return default if value is None else parse_bool(key, value)
