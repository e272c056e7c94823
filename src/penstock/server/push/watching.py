"""What a watcher requests, its session, and the events it gets from each page; no sockets here.

A session keeps a cursor for each of its topics; it outlives a connection, until it was unused for a
while. `Follower.take` turns a page of a topic into the events to send and moves the cursor; SSE and
WebSocket encode the same events differently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock.protocol.errors import InvalidRequest, Throttled
from penstock.protocol.limits import TopicLimits
from penstock.protocol.requests import WatchBody, WatchPlace, node_names
from penstock.protocol.values import check_text
from penstock.protocol.watchers import NAME_BYTES_MAX, NAME_HEADER
from penstock.server.api.auth import Grant
from penstock.server.push import sse
from penstock.topics.core.predicate import Predicate, parse_predicate
from penstock.topics.core.read import ReadRequest
from penstock.topics.engine.watch import PageShape, SharedPage

BATCH_BYTES: Final = 262_144
HEARTBEAT_MS: Final = 15_000
HEARTBEAT_MS_MAX: Final = 60_000


class StartPlace(NamedTuple):
    """Where a watcher begins in a topic: after a seq, or at the head."""

    from_seq: int = 0
    tail: bool = False
    epoch: int | None = None
    tag: Predicate | None = None


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A watcher's request. Topics that begin with a prefix join whenever they are created."""

    topics: dict[str, StartPlace] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    tag: Predicate | None = None
    nodes: frozenset[str] = frozenset()
    limit: int = 256
    batch_bytes_max: int = BATCH_BYTES
    heartbeat_ms: int = HEARTBEAT_MS
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    name: str | None = None


class WatchDefaults(NamedTuple):
    """Defaults for omitted fields; SSE and WebSocket differ."""

    limit: int
    batch_bytes: int
    heartbeat_ms_min: int = 1_000
    topics_max: int = 256


def watch_request(body: WatchBody, limits: TopicLimits, defaults: WatchDefaults) -> WatchRequest:
    """What to watch, with defaults and limits."""
    topics = {name: _place(place) for name, place in (body.topics or {}).items()}
    prefixes = tuple(dict.fromkeys(body.prefixes or ()))
    if not (topics or prefixes):
        raise InvalidRequest("there is nothing to watch: name a topic or a prefix")
    if len(topics) > defaults.topics_max:
        raise InvalidRequest(
            f"{len(topics)} topics are too many for one watch: name at most {defaults.topics_max}"
        )
    size = defaults.batch_bytes if body.max_batch_bytes is None else body.max_batch_bytes
    heartbeat_ms = HEARTBEAT_MS if body.heartbeat_ms is None else body.heartbeat_ms
    return WatchRequest(
        topics,
        prefixes,
        None if body.tag is None else parse_predicate(body.tag),
        node_names(body.node),
        min(body.limit or defaults.limit, limits.read_records_max),
        min(size or limits.read_bytes, limits.read_bytes_max),
        min(max(heartbeat_ms, defaults.heartbeat_ms_min), HEARTBEAT_MS_MAX),
        body.include_tags is True,
        body.include_meta is not False,
        body.include_data is not False,
        check_name(body.name),
    )


def check_name(name: str | None) -> str | None:
    """The name that a client gives itself, or `InvalidRequest`; None if it gives none."""
    if name is not None:
        check_text("name", name, NAME_BYTES_MAX)
    return name or None


def named_by(headers: Mapping[str, str]) -> str | None:
    """The name in a client's headers, decoded as UTF-8."""
    name = headers.get(NAME_HEADER.lower())
    if name is not None:
        with suppress(UnicodeDecodeError, UnicodeEncodeError):
            name = name.encode("latin-1").decode()
    return check_name(name)


def _place(place: WatchPlace | None) -> StartPlace:
    if place is None:
        return StartPlace()
    tag = None if place.tag is None else parse_predicate(place.tag)
    return StartPlace(place.from_seq or 0, place.tail is True, place.epoch, tag)


class PushEvent(NamedTuple):
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
    shape: PageShape
    epoch: int | None = None
    first_reason: str | None = None
    fresh: bool = True
    told_caught_up: bool = False
    since_ms: int = 0
    """Since when it watches."""

    def take(self, page: SharedPage) -> list[PushEvent]:
        """The events of a page, shared by all watchers at this cursor; moves the cursor."""
        diff = page.diff
        events: list[PushEvent] = []
        tombstone = diff.tombstone
        if tombstone is not None:
            reason = self.first_reason if self.fresh else None
            self.cursor = tombstone.gap_to
            if tombstone.reason == "recreated":  # it is read from its start, before the gap's end
                self.cursor = min(self.cursor, diff.earliest_seq - 1)
            data = sse.tombstone_data(self.topic, tombstone, diff.epoch, reason)
            events.append(PushEvent("tombstone", data, self.cursor))
        self.fresh = False
        self.epoch = diff.epoch
        if diff.found.records:
            data = _record_data(self.topic, self.cursor, page)
            events.append(PushEvent("record", data, diff.next_from_seq))
        self.cursor = diff.next_from_seq
        if events:
            self.told_caught_up = False
        if diff.caught_up and not self.told_caught_up:
            self.told_caught_up = True
            data = sse.caught_up_data(self.topic, diff)
            events.append(PushEvent("caught-up", data, self.cursor))
        return events


def shape_of(watch: WatchRequest, tag: Predicate | None) -> PageShape:
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
    return PageShape.of(request, include_data=watch.include_data)


def _record_data(topic: str, from_seq: int, page: SharedPage) -> bytes:
    """The data of a record event, made once for a page."""
    data = page.frames.get("record")
    if data is None:
        data = sse.record_data(topic, page.records, from_seq, page.diff)
        page.frames["record"] = data
    return data


SESSION_TTL_MS: Final = 300_000
NO_EPOCH: Final = 0
"""An epoch that no topic has."""
_COLLECT_MS: Final = 1_000
"""Minimum interval between scans of all sessions, while there is room for more."""


@dataclass(slots=True)
class WatcherSession:
    """A watch: its request, its owner, and the cursor of every topic.

    `epochs` tells which incarnation of a topic its cursor belongs to.
    """

    wid: str
    request: WatchRequest
    grant: Grant | None
    cursors: dict[str, int]
    epochs: dict[str, int]
    used_ms: int
    lives: dict[str, int] = field(default_factory=dict)
    """The epochs of topics that were recreated during the session."""
    streams: int = 0
    step_out: Callable[[], None] | None = None
    """Updates the cursors, while a shared watch keeps them."""

    def resume(self, places: dict[str, int], lives: dict[str, int]) -> None:
        """Go back to the client's position; never forward, and only in known topics.

        A position in an earlier incarnation of a topic is ignored: the client does not know this
        one yet.
        """
        for name, seq in places.items():
            cursor = self.cursors.get(name)
            if cursor is None:
                continue
            if name in self.lives and lives.get(name) != self.lives[name]:
                self.cursors[name] = 0
                self.epochs[name] = lives.get(name, NO_EPOCH)
                del self.lives[name]
            elif seq < cursor:
                self.cursors[name] = seq

    def enter(self, topic: str, epoch: int) -> None:
        """The cursor of a topic now belongs to this incarnation of it."""
        if self.epochs.get(topic, epoch) != epoch:
            self.lives[topic] = epoch
        self.epochs[topic] = epoch


class WatcherSessions:
    """Every watch session of the server."""

    def __init__(
        self, new_id: Callable[[], str], *, sessions_max: int = 0, ttl_ms: int = SESSION_TTL_MS
    ) -> None:
        self._new_id = new_id
        self._sessions_max = sessions_max
        self.ttl_ms = ttl_ms
        self._sessions: dict[str, WatcherSession] = {}
        self._collected_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def check_room(self, now_ms: int) -> None:
        """Refuse another session if the limit is reached."""
        is_full = self._sessions_max and len(self._sessions) >= self._sessions_max
        if is_full or now_ms - self._collected_ms >= _COLLECT_MS:
            self.collect(now_ms)
        if self._sessions_max and len(self._sessions) >= self._sessions_max:
            raise Throttled(
                f"all {self._sessions_max} watch sessions of the server are in use",
                limit="max_watch_sessions",
                max=self._sessions_max,
            )

    def add(self, request: WatchRequest, grant: Grant | None, now_ms: int) -> WatcherSession:
        """Begin a session. The caller, which knows the topics, sets its cursors."""
        session = WatcherSession(self._new_id(), request, grant, {}, {}, now_ms)
        self._sessions[session.wid] = session
        return session

    def find(self, wid: str, now_ms: int) -> WatcherSession | None:
        """A session that has not expired."""
        session = self._sessions.get(wid)
        if session is not None and self._is_over(session, now_ms):
            del self._sessions[wid]
            return None
        return session

    def remove(self, wid: str) -> None:
        """End a session."""
        self._sessions.pop(wid, None)

    def collect(self, now_ms: int) -> None:
        """Remove sessions without a stream that were unused for a while."""
        self._collected_ms = now_ms
        sessions = self._sessions.items()
        for wid in [wid for wid, session in sessions if self._is_over(session, now_ms)]:
            del self._sessions[wid]

    def _is_over(self, session: WatcherSession, now_ms: int) -> bool:
        return not session.streams and now_ms - session.used_ms > self.ttl_ms
