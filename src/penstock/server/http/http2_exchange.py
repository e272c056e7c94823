"""One request of an HTTP/2 connection and its answer, whole or streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.kernel.errors import Busy, Rejected, Unavailable
from penstock.kernel.units import format_bytes
from penstock.protocol.errors import CallError, PayloadTooLarge
from penstock.server.http.budget import Pace, Stall
from penstock.server.http.compression import (
    COMPRESS_IN_THREAD_ABOVE_BYTES,
    GZIP_ABOVE_BYTES,
    Inflation,
    compress,
)
from penstock.server.http.head import Line, Terms
from penstock.server.http.http1_exchange import ANSWERED, COME_BACK, GONE, OPEN
from penstock.server.http.message import (
    EVENT_STREAM,
    JSON,
    Headers,
    Request,
    check_headers,
    error_body,
    has_body,
)
from penstock.server.http.service import INTERNAL_ERROR

if TYPE_CHECKING:
    from penstock.server.http.http2 import Http2Connection
    from penstock.server.http.websocket import WebSocketConnection


class Http2Exchange:
    """A request on its own stream: its incoming body and its outgoing answer."""

    def __init__(
        self, connection: Http2Connection, stream_id: int, line: Line, terms: Terms
    ) -> None:
        service = connection.service
        self.connection = connection
        self.stream_id = stream_id
        self.terms = terms
        self.is_head = line.is_head
        self.request = Request(line.method, line.path, line.query, terms.headers, b"", terms.sender)
        self.on_gone: Callable[[], None] | None = None
        self.state = OPEN
        self.complete = False
        """Whether further input of the request is discarded."""
        self.ended_by_peer = False
        self.received_bytes = 0
        self.touched_s = service.now_s
        self.pace = Pace(service.now_s)
        self.waits = False
        """Whether there is no memory for more of its body."""
        self.unopened_bytes = 0
        """Received bytes for which the peer's window was not reopened."""
        self.outbox = bytearray()
        self.live: Http2Stream | None = None
        self.ended = False
        """Whether the answer ends with the contents of the outbox."""
        self._body = bytearray()
        self._counted_bytes = 0
        self._inflation: Inflation | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the peer disconnected before the answer."""
        return self.state == GONE

    @property
    def may_be_gone(self) -> bool:
        """Whether the peer disconnected: over HTTP/2 this is told apart from sending no more."""
        return self.state == GONE

    @property
    def peer(self) -> str:
        """The address of the peer, without its port."""
        return self.connection.peer

    # the request ---------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Add bytes to the body; raises `PayloadTooLarge`."""
        limit = self.connection.service.limits.body_bytes_max
        if len(self._body) + len(data) > limit:
            raise PayloadTooLarge(f"the body is larger than {format_bytes(limit)}")
        self._body += data
        self.received_bytes += len(data)
        self.touched_s = self.connection.service.now_s
        self._count(len(data))

    def finish(self) -> None:
        """The request is complete: inflate it if necessary and pass it on."""
        self.complete = True
        content = bytes(self._body)
        self._body.clear()
        if self.terms.gzip_body and content:
            limit = self.connection.service.limits.body_bytes_max
            self._inflation = Inflation(content, limit)
            self._inflate()
        else:
            self._is_whole(content)

    def resume_body(self) -> None:
        """There is memory for more of the body."""
        self.waits = False
        if self._inflation is not None:
            self.connection.service.loop.call_soon(self._inflate)
        else:
            self.connection.open_windows()

    def _inflate(self) -> None:
        inflation = self._inflation
        if inflation is None or self.state == GONE:
            return
        before = inflation.size
        try:
            content = inflation.step()
            self._count(inflation.size - before)
        except CallError as refused:
            self._inflation = None
            self.connection.refuse(self.stream_id, self, refused)
            return
        if content is not None:
            self._inflation = None
            self._is_whole(content)
        elif not self.waits:
            self.connection.service.loop.call_soon(self._inflate)

    def _is_whole(self, content: bytes) -> None:
        """The body is complete."""
        self.connection.service.budget.finish(self, content)
        self.waits = False
        self.request.body = content
        self.connection.begin_request(self)

    def hand_over(self) -> None:
        """Pass the request to the application, unless the peer disconnected."""
        if self.state != OPEN:
            return
        if not self.connection.service.hand_over(self) and self.state == OPEN:
            self.reply(500, INTERNAL_ERROR)

    def _count(self, size: int) -> None:
        self._counted_bytes += size
        if not self.connection.service.budget.take(self, size):
            self.waits = True

    # the answer ----------------------------------------------------------------------------------

    def expect_again(self, handle: Callable[[Http2Exchange], None]) -> None:
        """Ignored: every request has its own stream."""

    def reply_json(self, body: bytes) -> None:
        """Answer 200 with JSON."""
        self.reply(200, body)

    def reply(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body."""
        if self._closed():
            return
        headers = (*headers, *self.terms.sender.cors)
        check_headers([*headers, (b"content-type", content_type)])
        self.state = ANSWERED
        lines = [(name.lower(), value) for name, value in headers]
        if has_body(status):
            lines.append((b"content-type", content_type))
        if len(body) <= GZIP_ABOVE_BYTES or not has_body(status):
            self._send(status, lines, body)
            return
        lines.append((b"vary", b"Accept-Encoding"))
        if not self.terms.accepts_gzip or any(name == b"content-encoding" for name, _ in lines):
            self._send(status, lines, body)
            return
        lines.append((b"content-encoding", b"gzip"))
        if len(body) <= COMPRESS_IN_THREAD_ABOVE_BYTES:
            self._send(status, lines, compress(body))
        else:
            made = self.connection.service.loop.run_in_executor(None, compress, body)
            made.add_done_callback(lambda done: self._send(status, lines, done.result()))

    def refuse(self, refused: CallError) -> None:
        """Answer a request that is not passed on."""
        if self.state == OPEN:
            body = error_body(refused.code, refused.message, refused.detail)
            passes = isinstance(refused, Busy | Unavailable)
            headers = (*refused.headers, *(COME_BACK if passes else ()))
            self.reply(refused.status, body, headers=headers)

    def stream(self, content_type: bytes = EVENT_STREAM, headers: Headers = ()) -> Http2Stream:
        """Answer 200 with a streamed body."""
        headers = (*headers, *self.terms.sender.cors)
        check_headers([*headers, (b"content-type", content_type)])
        live = Http2Stream(self)
        if self._closed():
            self.connection.service.loop.call_soon(live.lost)
            return live
        self.state = ANSWERED
        self._free()
        self.connection.send_head(
            self, 200, [*((name.lower(), value) for name, value in headers),
                        (b"content-type", content_type)], ends=self.is_head
        )  # fmt: skip
        if self.is_head or self.state == GONE:
            # Only after the application could set `on_gone`: the peer may have cancelled the stream
            # in the same read, and the library processes that before it reports it.
            self.connection.service.loop.call_soon(live.lost)
        else:
            self.live = live
        return live

    def upgrade(self, subprotocol: str | None = None) -> WebSocketConnection:
        """Refuse: WebSockets are upgraded from HTTP/1.1."""
        raise Rejected("WebSockets are served over HTTP/1.1, not HTTP/2")

    def lost(self) -> None:
        """The peer cancelled the stream or disconnected."""
        was_open = self.state == OPEN
        self.state = GONE
        self._inflation = None
        self.outbox.clear()
        self._free()
        if self.live is not None:
            self.live.lost()
        elif was_open and self.complete:
            self.connection.service.call(self.on_gone)

    def _closed(self) -> bool:
        if self.state == ANSWERED:
            raise Rejected("the request is answered already")
        return self.state == GONE

    def _send(self, status: int, lines: list[tuple[bytes, bytes]], body: bytes) -> None:
        if self.state == GONE:
            return
        self._free()
        if has_body(status):
            lines.append((b"content-length", b"%d" % len(body)))
        bodyless = self.is_head or not has_body(status) or not body
        if not bodyless:
            self.outbox += body
        self.ended = True
        self.connection.send_head(self, status, lines, ends=bodyless)

    def _free(self) -> None:
        budget = self.connection.service.budget
        budget.finish(self, None)
        budget.give(self._counted_bytes, self.request.body)
        self._counted_bytes = 0


class Http2Stream:
    """The body of a streamed answer, sent as fast as the peer opens its window."""

    def __init__(self, exchange: Http2Exchange) -> None:
        self.on_room: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._exchange = exchange
        self._service = exchange.connection.service
        self._lagged = False
        self._stall = Stall()
        self._added = 0  # to the outbox, since the last check
        self._closed = False
        self._service.counters.streams_open += 1

    @property
    def buffered(self) -> int:
        """Bytes that wait for the peer's window."""
        return len(self._exchange.outbox)

    def write(self, data: bytes) -> bool:
        """Send bytes, or take none of them and return False."""
        if self._closed:
            return False
        outbox = self._exchange.outbox
        if outbox and len(outbox) + len(data) > self._service.limits.stream_buffer_bytes_max:
            self._lagged = True
            return False
        if not self._exchange.is_head:
            outbox += data
            self._added += len(data)
            self._exchange.connection.pump()
        return True

    def has_room(self) -> bool:
        """Whether a write of any size is taken now; if not, `on_room` is called when it is."""
        if self._closed:
            return False
        self._lagged = self._lagged or self.buffered > 0
        return not self._lagged

    def direct(self) -> None:
        """None: streams share a socket, so none may write to it directly."""

    def rest(self, data: memoryview) -> None:
        """Never called: `direct` returns no socket."""
        raise NotImplementedError

    def close(self) -> None:
        """End the body after the bytes written so far."""
        if self._end():
            self._exchange.ended = True
            self._exchange.connection.pump()

    def emptied(self) -> None:
        """Everything was sent."""
        self._stall.lasted_s(0, self._service.now_s)
        if self._lagged and not self._closed:
            self._lagged = False
            self._service.call(self.on_room)

    def stalled_s(self, now_s: float) -> float:
        """How long the peer has read nothing of the buffered bytes."""
        added, self._added = self._added, 0
        return self._stall.lasted_s(self.buffered, now_s, added)

    def lost(self) -> None:
        """The peer disconnected."""
        if self._end():
            self._service.call(self.on_gone)

    def _end(self) -> bool:
        if self._closed:
            return False
        self._closed = True
        self._service.counters.streams_open -= 1
        return True
