"""A WebSocket: subscribing and publishing over one connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Collection
from functools import partial
from typing import Final

from penstock.kernel.errors import PenstockError
from penstock.protocol.errors import (
    InvalidRequest,
    RecordsUnreadable,
    ShuttingDown,
    Throttled,
    UnsupportedMessage,
)
from penstock.protocol.limits import WATCH_PREFIXES_MAX
from penstock.protocol.routes import ADMIN, NAMED, READ, WRITE
from penstock.protocol.values import begins
from penstock.server.api.answers import Flags, Numbers, Spent, written
from penstock.server.api.auth import SUBPROTOCOL, offered_protocols, protocol_token
from penstock.server.api.call import ROUTES, Call
from penstock.server.http.message import Answer, Request
from penstock.server.push import sse, ws
from penstock.server.push.pusher import Pusher
from penstock.server.push.watch import matching, resolve
from penstock.server.push.watching import (
    Follower,
    PushEvent,
    StartPlace,
    WatchDefaults,
    WatchRequest,
    shape_of,
    watch_request,
)
from penstock.topics.core.batch import parse_write
from penstock.topics.core.topic import AppendResult
from penstock.topics.engine.watch import PageShape, SharedPage

REPLIES_MAX: Final = 256
"""Unsent answers to a peer that does not read, before it is disconnected."""

_GOING_AWAY: Final = 1001
_POLICY: Final = 1008
_FAILED: Final = 1011
_LOGGER: Final = logging.getLogger("penstock.server")
_OPS: Final = {"record": b"record", "caught-up": b"caught_up", "tombstone": b"tombstone"}


@ROUTES.get("/v0/ws", statuses=(101,), headers=(NAMED,), errors=(Throttled,), guard="own", media="")
def open_ws(call: Call) -> None:
    """Subscribe and publish over a WebSocket."""
    offered = offered_protocols(call.request.headers)
    request, auth = call.request, call.context.auth
    call.grant = auth.grant_of(request.headers, request.sender, protocol_token(offered))
    with call.context.caps.opening(call.grant):
        Socket(call, SUBPROTOCOL if SUBPROTOCOL in offered else None).start()


class Socket(Pusher):
    """One WebSocket. Answers are sent in order of completion, with pushes in between."""

    kind = "websocket"

    def __init__(self, call: Call, subprotocol: str | None) -> None:
        super().__init__(call)
        self._socket = call.exchange.upgrade(subprotocol)
        self._socket.on_text = self._on_text
        self._socket.on_binary = self._on_binary
        self._socket.on_room = self._on_room
        self._socket.on_gone = self._close
        self._replies: deque[bytes] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest: asyncio.Task[None] | None = None  # the newest of them
        self._prefixed: dict[tuple[str, ...], PageShape] = {}

    def start(self) -> None:
        """Wait for messages."""
        self.context.streams[self] = self._call.session

    def end(self, farewell: sse.Farewell = sse.SHUTDOWN) -> None:
        """The server stops, or the session has ended."""
        if not self.is_over:
            self._socket.send(ws.closing(*farewell))
            if farewell is sse.SHUTDOWN:
                self._socket.close(_GOING_AWAY, "the server is shutting down")
            else:
                self._socket.close(_POLICY, farewell.text)
            self._close()

    def abort(self) -> None:
        """Close: the client must subscribe again."""
        self._socket.close(_FAILED, "the server failed")
        self._close()

    def send(self, follower: Follower, page: SharedPage, events: list[PushEvent]) -> int:
        """Send events one by one until the peer has no room."""
        for number, event in enumerate(events):
            message = page.frames.get(("ws", event.kind))
            if message is None:
                message = ws.pushed(_OPS[event.kind], event.data)
                page.frames["ws", event.kind] = message
            if self._replies or not self._socket.send(message):
                return number
        return len(events)

    def lost(self, follower: Follower) -> bool:
        """Report that a topic is deleted."""
        return self._socket.send(ws.pushed(b"topic_deleted", sse.deleted_data(follower.topic)))

    # Messages from the peer

    def _on_binary(self, _message: bytes) -> None:
        error = UnsupportedMessage("binary messages are not supported: send text")
        self._reply(ws.failed(ws.NO_ID, error))

    def _on_text(self, text: bytes) -> None:
        try:
            operation = ws.parse_message(text)
        except ws.BadMessage as bad:
            self._reply(ws.failed(bad.request_id, bad.error))
            return
        try:
            self._do(operation)
        except Exception as error:
            self._fail(operation.request_id, error)

    def _do(self, operation: ws.Operation) -> None:
        if self.context.draining:
            raise ShuttingDown
        match operation:
            case ws.PublishMessage():
                self._publish(operation)
            case ws.SubscribeMessage():
                self._call.check_scopes(READ)
                self._in_turn(operation)
            case ws.UnsubscribeMessage() if self._newest is None or self._newest.done():
                self._unsubscribe(operation)
            case ws.UnsubscribeMessage():
                self._in_turn(operation)
            case ws.PingMessage():
                self._reply(ws.pong(operation.request_id))

    def _in_turn(self, operation: ws.SubscribeMessage | ws.UnsubscribeMessage) -> None:
        """Begin or end a subscription after earlier requests to do so are complete."""
        self._newest = task = asyncio.ensure_future(self._after(self._newest, operation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _after(
        self,
        before: asyncio.Task[None] | None,
        operation: ws.SubscribeMessage | ws.UnsubscribeMessage,
    ) -> None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        if isinstance(operation, ws.SubscribeMessage):
            await self._subscribe(operation)
        else:
            self._unsubscribe(operation)

    def _publish(self, operation: ws.PublishMessage) -> None:
        self._call.check_scopes(WRITE)
        self._call.check_write(operation.topic)
        write = parse_write(operation.raw, self.engine.limits)
        if write.config is not None and operation.topic not in self.engine.registry.topics:
            if write.may_create:
                self._call.check_scopes(ADMIN)
            self._call.check_config(write.config)
        if self._is_passed_on(operation):
            return
        started_ns = self.context.clock.monotonic_ns()
        self.engine.write(operation.topic, write, partial(self._published, operation, started_ns))

    def _published(
        self, operation: ws.PublishMessage, started_ns: int, outcome: AppendResult | Exception
    ) -> None:
        if isinstance(outcome, Exception):
            self._fail(operation.request_id, outcome)
            return
        total_ms = (self.context.clock.monotonic_ns() - started_ns) / 1e6
        body = written(
            operation.topic.encode(),
            Numbers(outcome.first_seq, outcome.last_seq, outcome.head_seq, outcome.records),
            Flags(outcome.created, outcome.deduped, operation.return_seqs),
            Spent(total_ms, total_ms, self.engine.fsync_ms(operation.topic)),
        )
        self._reply(ws.acked(operation.request_id, body, return_seqs=operation.return_seqs))

    def _is_passed_on(self, operation: ws.PublishMessage) -> bool:
        """Whether another node leads the topic's partition, and answers the write."""
        forwarding = self.context.forwarding
        if forwarding is None:
            return False
        request = self._as_request(operation)
        answer = forwarding.write(self._call.exchange, operation.topic, request)
        if answer is None:
            return False
        task = asyncio.ensure_future(self._passed_on(operation, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def _as_request(self, operation: ws.PublishMessage) -> Request:
        """A write as a request of its own, with the key that the connection was opened with."""
        headers = {"content-type": "application/json"}
        key = protocol_token(offered_protocols(self._call.request.headers))
        told = self._call.request.headers.get("authorization")
        if key is not None or told is not None:
            headers["authorization"] = told or f"Bearer {key}"
        elif (cookie := self._call.request.headers.get("cookie")) is not None:
            headers["cookie"] = cookie
        query = "" if operation.return_seqs else "return_seqs=false"
        path = f"/v0/topics/{operation.topic}"
        return Request("POST", path, query, headers, operation.raw)

    async def _passed_on(self, operation: ws.PublishMessage, waiting: Awaitable[Answer]) -> None:
        try:
            answer = await waiting
        except Exception as error:
            self._fail(operation.request_id, error)
            return
        if answer.status in (200, 201):
            return_seqs = operation.return_seqs
            self._reply(ws.acked(operation.request_id, answer.body, return_seqs=return_seqs))
        else:
            self._reply(ws.refused(operation.request_id, answer.body))

    async def _subscribe(self, operation: ws.SubscribeMessage) -> None:
        limits = self.engine.limits
        try:
            defaults = WatchDefaults(
                limits.read_records_max,
                limits.read_bytes,
                topics_max=self.context.watch_topics_max,
            )
            request = watch_request(operation.body, limits, defaults)
            places = await resolve(self._call, request, lenient=operation.body.lenient is True)
            self._check_room(request, places)
            places = self._with_room(request, places)
        except Exception as error:
            self._fail(operation.request_id, error)
            return
        if self.is_over:
            return
        self.name = request.name or self.name
        self._reply(ws.subscribed(operation.request_id, places))
        begun = [*places]
        for name, place in places.items():
            self.leave(name)
            tag = request.topics.get(name, StartPlace()).tag
            shape = shape_of(request, tag)
            self.follow(Follower(name, place["from_seq"], shape, place["epoch"]))
        if request.prefixes:
            self._prefixed[request.prefixes] = shape_of(request, None)
            self.engine.watchers.listen_created(self._on_created)
            begun += self.take_in(matching(self._call, request))
        self.begin(begun)

    def _check_room(self, request: WatchRequest, places: Collection[str]) -> None:
        """Refuse what exceeds the limits of one connection."""
        most = self.context.watch_topics_max
        if len(self.followers.keys() | places) > most:
            self.forget_gone(keep=places)
        if len(self.followers.keys() | (request.topics.keys() & places)) > most:
            raise InvalidRequest(
                f"a connection may have at most {most} topics: unsubscribe from some first"
            )
        prefixes = sum(map(len, self._prefixed.keys() | {request.prefixes}))
        if prefixes > WATCH_PREFIXES_MAX:
            raise InvalidRequest(
                f"{prefixes} prefixes are too many for one connection, at most "
                f"{WATCH_PREFIXES_MAX} are allowed: unsubscribe from some first"
            )

    def _with_room(
        self, request: WatchRequest, places: dict[str, dict[str, int]]
    ) -> dict[str, dict[str, int]]:
        """The named topics, and the topics of a prefix for which there is room."""
        most = self.context.watch_topics_max
        room = most - len(self.followers.keys() | (request.topics.keys() & places))
        found = {}
        for name, place in places.items():
            is_known = name in request.topics or name in self.followers
            if is_known or room > 0:
                found[name] = place
                room -= not is_known
        return found

    def admit(self, topic: str) -> Follower | None:
        """Follow a topic of a prefix, if there is room for it."""
        if len(self.followers) >= self.context.watch_topics_max:
            self.forget_gone()
        shape = self._shape_of(topic)
        if shape is None or len(self.followers) >= self.context.watch_topics_max:
            return None
        return Follower(topic, 0, shape)

    def left_out(self, topics: list[str]) -> None:
        """Report that there is no room for topics of a prefix."""
        data = sse.left_out_data(topics, self.context.watch_topics_max)
        self._reply(ws.pushed(b"left_out", data))

    def unreadable(self, follower: Follower, error: PenstockError) -> None:
        """Report the reason; the other topics continue."""
        self.leave(follower.topic)
        code = error.code if isinstance(error, RecordsUnreadable) else "internal"
        self._reply(
            ws.closing(
                code, f"topic {follower.topic} cannot be read: {self.context.hide.text(error)}"
            )
        )

    def _shape_of(self, topic: str) -> PageShape | None:
        """How the records of a topic are wanted; None if it matches no prefix."""
        for prefixes, shape in self._prefixed.items():
            if begins(topic, prefixes) and self._call.reaches(topic):
                return shape
        return None

    def _on_created(self, name: str) -> None:
        if self._shape_of(name) is not None:
            for taken in self.take_in([name]):
                asyncio.get_running_loop().call_soon(self.push, taken)

    def _unsubscribe(self, operation: ws.UnsubscribeMessage) -> None:
        names = list(self.followers) if operation.topics is None else operation.topics
        ended = [name for name in dict.fromkeys(names) if name in self.followers]
        for name in ended:
            self.leave(name)
        if operation.topics is None:
            self._prefixed.clear()
            self._left_out.clear()
        self.made_room()
        self._reply(ws.unsubscribed(operation.request_id, ended))

    # Messages to the peer

    def _fail(self, request_id: bytes, error: Exception) -> None:
        self.context.tell("a message", error)
        self._reply(ws.failed(request_id, error, self.context.hide))

    def _reply(self, message: bytes) -> None:
        """Send an answer; it waits if the peer does not read, and is never dropped."""
        if self.is_over:
            return
        if self._replies or not self._socket.send(message):
            self._replies.append(message)
            if len(self._replies) > REPLIES_MAX:
                self._socket.close(_POLICY, "the client does not read its answers")
                self._close()

    def _on_room(self) -> None:
        while self._replies:
            if not self._socket.send(self._replies[0]):
                return
            self._replies.popleft()
        self.on_room()

    def _close(self) -> None:
        if self.is_over:
            return
        self.leave_all()
        for task in self._tasks:
            task.cancel()
        self._replies.clear()
        self.engine.watchers.leave_created(self._on_created)
        self.context.streams.pop(self, None)
        self.context.caps.close_stream(self._call.grant)
