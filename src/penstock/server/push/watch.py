"""Watch sessions and their event streams."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from penstock.kernel.errors import PenstockError
from penstock.protocol import answers, requests
from penstock.protocol.errors import (
    NoLeader,
    NotAcceptable,
    NotFound,
    Throttled,
    TopicNotFound,
    Unauthorized,
)
from penstock.protocol.routes import EVENT_STREAM, FLAG, NAMED, READ, TEXT, Param
from penstock.protocol.values import begins
from penstock.server.api.auth import query_token
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.queries import check_accepts_events
from penstock.server.http.message import Answer, Direct
from penstock.server.push import sse
from penstock.server.push.pusher import Pusher
from penstock.server.push.shared import EventBatch, WatchCursor
from penstock.server.push.watching import (
    BATCH_BYTES,
    Follower,
    PushEvent,
    StartPlace,
    WatchDefaults,
    WatcherSession,
    WatchRequest,
    named_by,
    shape_of,
    watch_request,
)
from penstock.topics.core.read import ReadRequest
from penstock.topics.engine.watch import SharedPage

TOO_OLD: Final = "from_seq_too_old"
_LOGGER: Final = logging.getLogger("penstock.server")


@ROUTES.post(
    "/v0/watch",
    answer=answers.WatchSession,
    scope=READ,
    body=requests.WatchBody,
    query=(Param("lenient", FLAG, "Leave out topics that do not exist."),),
    headers=(NAMED,),
    errors=(TopicNotFound, Throttled),
)
async def make_watch(call: Call) -> Answer:
    """Begin a watch session."""
    context = call.context
    defaults = WatchDefaults(
        context.engine.limits.read_records,
        BATCH_BYTES,
        context.heartbeat_ms_min,
        context.watch_topics_max,
    )
    request = watch_request(call.read(requests.WatchBody), context.engine.limits, defaults)
    request = replace(request, name=request.name or named_by(call.request.headers))
    places = await resolve(call, request, lenient=call.query.flag("lenient", False))
    now_ms = context.clock.monotonic_ms()
    context.sessions.check_room(now_ms)
    session = context.sessions.add(request, call.grant, now_ms)
    session.cursors = {name: place["from_seq"] for name, place in places.items()}
    session.epochs = {name: place["epoch"] for name, place in places.items()}
    return call.answer(
        wid=session.wid,
        stream_url=f"/v0/watch/{session.wid}",
        session_ttl_ms=context.sessions.ttl_ms,
        topics=places,
    )


async def resolve(call: Call, request: WatchRequest, *, lenient: bool) -> dict[str, dict[str, int]]:
    """Where each topic of a watch begins. One inaccessible topic refuses the whole watch."""
    engine = call.context.engine
    for name in request.topics:
        call.check_topic(name)
    wanted = dict(request.topics)
    for name in matching(call, request):
        if len(wanted) >= call.context.watch_topics_max:
            break  # topics without room are reported one by one, and join when there is room
        wanted.setdefault(name, StartPlace())
    places: dict[str, dict[str, int]] = {}
    for name, place in wanted.items():
        if call.context.forwarding is not None:
            call.context.forwarding.check_watched(name)
        await _catch_up(call, name, place)
        if engine.forwarder.owes(name):
            await engine.forwarder.drain(name)
        topic = engine.registry.topics.get(name)
        if topic is None:
            engine.check_not_arriving(name)
            if lenient:
                continue
            engine.writers.of(name)  # raises if the topic's partition is out of service
            raise TopicNotFound(name)
        places[name] = {
            "from_seq": topic.head_seq if place.tail else place.from_seq,
            "head_seq": topic.head_seq,
            "earliest_seq": topic.at(engine.clock.now_ms()).earliest_seq,
            "epoch": topic.told_epoch if place.epoch is None else place.epoch,
        }
        engine.recency.touch(name)
    return places


async def _catch_up(call: Call, name: str, place: StartPlace) -> None:
    """Wait until this node has what a cursor has seen on another one."""
    forwarding = call.context.forwarding
    request = ReadRequest(place.from_seq, epoch=place.epoch)
    if forwarding is not None and not await forwarding.catch_up(name, request):
        raise NoLeader(
            f"this node does not have yet what the cursor of {name!r} has seen: try again, or "
            "watch another node"
        )


def matching(call: Call, request: WatchRequest) -> list[str]:
    """The existing topics that begin with a prefix of a watch."""
    if not request.prefixes:
        return []
    topics = call.context.engine.registry.topics
    return sorted(n for n in topics if begins(n, request.prefixes) and call.reaches(n))


@ROUTES.get(
    "/v0/watch/{name}",
    named="session",
    query=(Param("token", TEXT, "The key, for browsers."),),
    headers=(
        Param("Last-Event-ID", TEXT, "`id` of the last event seen; only ever goes back."),
        NAMED,
    ),
    errors=(NotFound, NotAcceptable, Throttled),
    guard="own",
    media=EVENT_STREAM,
)
def open_watch(call: Call) -> None:
    """The event stream of a watch session."""
    check_accepts_events(call.request.headers)
    context = call.context
    session = context.sessions.find(call.name, context.clock.monotonic_ms())
    if session is None:
        raise NotFound(f"there is no watch session {call.name}: create one with POST /v0/watch")
    if session.grant is not None:
        request = call.request
        key = query_token(request.query)
        if context.auth.grant_of(request.headers, request.sender, key) != session.grant:
            raise Unauthorized("the watch session is another key's: create one with POST /v0/watch")
        call.grant = session.grant
    if call.exchange.is_head:
        call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS).close()
        return
    if context.forwarding is not None:
        for name in session.cursors:
            context.forwarding.check_watched(name)
    with context.caps.opening(call.grant):
        if session.step_out is not None:
            session.step_out()
        last_id = call.request.headers.get("last-event-id")
        if last_id:
            session.resume(*sse.parse_event_id(last_id))
        stream = WatchStream(call, session)
    stream.start()


class WatchStream(Pusher):
    """One stream of a session. Streams of one session share its cursors."""

    def __init__(self, call: Call, session: WatcherSession) -> None:
        super().__init__(call)
        self.name = self.name or session.request.name
        self._session = session
        self._request = session.request
        self._stream = call.exchange.stream(sse.CONTENT_TYPE, sse.HEADERS)
        self._stream.on_gone = self._close
        self._stream.on_room = self.on_room
        self._heartbeat_s = session.request.heartbeat_ms / 1e3
        self._loop = asyncio.get_running_loop()
        self._spoke_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.batch: EventBatch | None = None
        self.offer = self._stream.write

    def start(self) -> None:
        """Start pushing; if that fails, the stream is closed and cleaned up."""
        self._session.streams += 1
        self.context.streams[self] = self._call.session
        try:
            self._begin()
        except Exception:
            _LOGGER.exception("the stream of watch session %s could not begin", self._session.wid)
            self.abort()

    def _begin(self) -> None:
        session = self._session
        self._stream.write(sse.RETRY)
        if self._request.prefixes:
            self.take_in(matching(self._call, self._request))
            self.engine.watchers.listen_created(self._on_created)
        for name in session.cursors:
            if name not in self.followers:
                self.follow(self._follower(name))
        self._timer = self._loop.call_later(self._heartbeat_s, self._beat)
        self.begin(list(self.followers))
        self._end_if_all_gone()

    def end(self, farewell: sse.Farewell = sse.SHUTDOWN) -> None:
        """The server stops, or the session has ended."""
        if not self.is_over:
            self.step_out()
            event_id = self._event_id()
            self._stream.write(sse.frame(event_id, b"error", sse.farewell_data(farewell)))
            self._stream.close()
            self._close()

    def watches(self, topic: str) -> bool:
        """Whether the session has a topic; a shared watch may follow it."""
        return topic in self._session.cursors

    def abort(self) -> None:
        """Close; the client reconnects and resumes from its cursor."""
        self._stream.close()
        self._close()

    def send(self, follower: Follower, page: SharedPage, events: list[PushEvent]) -> int:
        """Send a page in one write. Watchers of a single topic share its bytes."""
        kinds = tuple([event.kind for event in events])
        session = self._session
        if len(session.cursors) == 1 and "tombstone" not in kinds and not session.lives:
            frames = page.frames.get(kinds)
            if frames is None:
                frames = page.frames[kinds] = self._frames(follower, events)
        else:
            frames = self._frames(follower, events)
        if not self._stream.write(frames):
            return 0
        self._spoke_s = self._loop.time()
        return len(events)

    def lost(self, follower: Follower) -> bool:
        """Report that a topic is deleted; the stream ends with the last one."""
        event_id = self._event_id()
        data = sse.deleted_data(follower.topic)
        if not self._stream.write(sse.frame(event_id, b"topic-deleted", data)):
            return False
        self._spoke_s = self._loop.time()
        self._loop.call_soon(self._end_if_all_gone)
        return True

    def arrived(self, follower: Follower) -> None:
        """Caught up: join the shared watch of the same cursor and fields."""
        session = self._session
        is_alone = session.streams == 1 and len(session.cursors) == 1 and not session.lives
        if self.batch is None and is_alone and not self._request.prefixes and not self.is_over:
            cursor = WatchCursor(follower.cursor, session.epochs[follower.topic])
            self.context.shared.join(self, follower.topic, follower.shape, cursor)
            session.step_out = self.step_out
            self.engine.watchers.leave(follower.topic, self.push)

    def direct(self) -> Direct | None:
        """The socket itself, for the shared watch."""
        return self._stream.direct()

    def rest(self, data: memoryview) -> None:
        """Send the remainder of a direct write by the shared watch."""
        self._stream.rest(data)

    def left_behind(self, cursor: WatchCursor) -> None:
        """The watcher left its batch: it is served alone from here."""
        topic = next(iter(self.followers))
        self._move_to(topic, cursor)
        self.push(topic)

    def step_out(self) -> None:
        """Leave the shared watch with its cursor: another stream needs it, or this one ends."""
        batch = self.batch
        if batch is not None:
            self._spoke_s = max(self._spoke_s, batch.spoke_s)
            self.context.shared.leave(self)
            self._move_to(batch.topic, batch.cursor)

    def _move_to(self, topic: str, cursor: WatchCursor) -> None:
        session, follower = self._session, self.followers[topic]
        session.step_out = None
        session.cursors[topic] = follower.cursor = cursor.seq
        session.epochs[topic] = follower.epoch = cursor.epoch
        follower.told_caught_up = cursor.told_caught_up
        self.engine.watchers.listen(topic, self.push)

    def load(self, follower: Follower) -> None:
        """Load the cursor that all streams of the session share."""
        cursor = self._session.cursors.setdefault(follower.topic, 0)
        if cursor != follower.cursor:
            follower.cursor = cursor
        follower.epoch = self._session.epochs.get(follower.topic)

    def store(self, follower: Follower) -> None:
        """Store the cursor that all streams of the session share."""
        self._session.cursors[follower.topic] = follower.cursor
        if follower.epoch is not None:
            self._session.enter(follower.topic, follower.epoch)

    def _event_id(self) -> bytes:
        return sse.event_id(self._session.cursors, self._session.lives)

    def _frames(self, follower: Follower, events: list[PushEvent]) -> bytes:
        session, topic = self._session, follower.topic
        cursors, lives = dict(session.cursors), session.lives
        if (
            follower.epoch is not None
            and session.epochs.get(topic, follower.epoch) != follower.epoch
        ):
            lives = {**lives, topic: follower.epoch}
        frames = []
        event_id = b""
        for event in events:
            if cursors[topic] != event.cursor or not event_id:
                cursors[topic] = event.cursor
                event_id = sse.event_id(cursors, lives)
            frames.append(sse.frame(event_id, event.kind.encode(), event.data))
        return b"".join(frames)

    def _follower(self, name: str) -> Follower:
        place = self._request.topics.get(name, StartPlace())
        return Follower(
            name,
            self._session.cursors[name],
            shape_of(self._request, place.tag),
            self._session.epochs.get(name),
            TOO_OLD,
        )

    def admit(self, topic: str) -> Follower | None:
        """Add a topic of a prefix to the session, if there is room for it."""
        session = self._session
        if topic not in session.cursors:
            if len(session.cursors) >= self.context.watch_topics_max:
                self._make_room()
            if len(session.cursors) >= self.context.watch_topics_max:
                return None
            session.cursors[topic] = 0
        return self._follower(topic)

    def left_out(self, topics: list[str]) -> None:
        """Report that there is no room for topics of a prefix."""
        data = sse.left_out_data(topics, self.context.watch_topics_max)
        self._stream.write(sse.frame(self._event_id(), b"left-out", data))

    def unreadable(self, follower: Follower, error: PenstockError) -> None:
        """Report the reason and end: the client reconnects, and may find the records repaired."""
        event_id = self._event_id()
        data = sse.unreadable_data(follower.topic, error, self.context.hide.text(error))
        self._stream.write(sse.frame(event_id, b"error", data))
        self.abort()

    def _make_room(self) -> None:
        """Remove deleted topics of a prefix; they join again when recreated."""
        session, topics, prefixes = (
            self._session,
            self.engine.registry.topics,
            self._request.prefixes,
        )
        named = {name for name in self._request.topics if not name.startswith(prefixes)}
        self.forget_gone(keep=named)
        for name in list(session.cursors):
            is_kept = name in topics or name in self.followers or name in named
            if not is_kept:
                del session.cursors[name]
                session.epochs.pop(name, None)
                session.lives.pop(name, None)

    def _on_created(self, name: str) -> None:
        if not begins(name, self._request.prefixes) or not self._call.reaches(name):
            return
        for taken in self.take_in([name]):
            self._loop.call_soon(self.push, taken)

    def _beat(self) -> None:
        if self.batch is not None:
            self._spoke_s = max(self._spoke_s, self.batch.spoke_s)
        idle_s = self._loop.time() - self._spoke_s
        if idle_s >= self._heartbeat_s:
            self._stream.write(sse.HEARTBEAT)
            self._spoke_s = self._loop.time()
            idle_s = 0.0
        self._timer = self._loop.call_later(self._heartbeat_s - idle_s, self._beat)

    def _end_if_all_gone(self) -> None:
        if not self.is_over and not self._request.prefixes and self.all_gone:
            self.abort()

    def _close(self) -> None:
        if self.is_over:
            return
        self.step_out()
        self.leave_all()
        if self._timer is not None:
            self._timer.cancel()
        self.engine.watchers.leave_created(self._on_created)
        self._session.streams -= 1
        self._session.used_ms = self.context.clock.monotonic_ms()
        self.context.streams.pop(self, None)
        self.context.caps.close_stream(self._call.grant)
