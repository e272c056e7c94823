"""One request of an HTTP/1.1 connection and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.kernel.errors import Busy, Rejected, Unavailable
from penstock.kernel.units import KIB
from penstock.protocol.errors import CallError
from penstock.server.http.compression import (
    COMPRESS_IN_THREAD_ABOVE_BYTES,
    GZIP_ABOVE_BYTES,
    compress,
)
from penstock.server.http.head import Terms
from penstock.server.http.message import (
    EVENT_STREAM,
    JSON,
    AnswerHeads,
    Headers,
    Request,
    error_body,
    has_body,
    header_lines,
)
from penstock.server.http.service import INTERNAL_ERROR
from penstock.server.http.stream import SocketStream

if TYPE_CHECKING:
    from penstock.server.http.http1 import Http1Connection
    from penstock.server.http.websocket import WebSocketConnection

HOT: Final = 0
"""Not answered; an answer needs only a status, a type and a length."""
OPEN: Final = 1
"""Not answered."""
ANSWERED: Final = 2
GONE: Final = 3

COME_BACK: Final = ((b"Retry-After", b"1"),)
"""The Retry-After header of refusals that a client may retry."""
LARGE_BYTES: Final = 256 * KIB
"""Larger bodies are not copied to follow their head."""
_LENGTHS: Final = tuple(b"%d\r\n\r\n" % size for size in range(GZIP_ABOVE_BYTES + 1))
"""The end of a head, cached for every length of a small body."""


class Http1Exchange(msgspec.Struct, eq=False):
    """A request in its connection's `line`; answers are sent in the order of the requests."""

    connection: Http1Connection
    request: Request
    terms: Terms
    state: int
    on_gone: Callable[[], None] | None = None
    answer: bytes | None = None
    """The whole answer, while earlier requests are unanswered."""
    live: SocketStream | None = None
    """The stream that is the answer's body."""
    ends: bool = False
    """Whether the connection ends with this answer."""

    @property
    def is_head(self) -> bool:
        """Whether the client wants only the head of the answer."""
        return self.terms.is_head

    @property
    def is_gone(self) -> bool:
        """Whether the peer disconnected before the answer."""
        return self.state == GONE

    @property
    def may_be_gone(self) -> bool:
        """Whether the peer disconnected, or sends no more, which may be the same."""
        return self.state == GONE or self.connection.half_closed

    @property
    def peer(self) -> str:
        """The address of the peer, without its port."""
        return self.connection.peer

    def reply_json(self, body: bytes) -> None:
        """Answer 200 with JSON."""
        if self.state == HOT and len(body) <= GZIP_ABOVE_BYTES:
            connection = self.connection
            self.state = ANSWERED
            connection.answered(
                self, b"".join((connection.service.answers.json, _LENGTHS[len(body)], body))
            )
        else:
            self.reply(200, body)

    def expect_again(self, handle: Callable[[Http1Exchange], None]) -> None:
        """Handle the next requests of this connection with the same head by this."""
        self.connection.expect(self, handle)

    def reply(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body."""
        if self._closed():
            return
        lines = header_lines((*headers, *self.terms.sender.cors))
        first = self.connection.service.answers.head(status, content_type) + lines
        self.state = ANSWERED
        if len(body) <= GZIP_ABOVE_BYTES or not has_body(status):
            self._send(first, body, status=status)
            return
        first += b"Vary: Accept-Encoding\r\n"
        if not self.terms.accepts_gzip or b"content-encoding:" in lines.lower():
            self._send(first, body, status=status)
        elif len(body) <= COMPRESS_IN_THREAD_ABOVE_BYTES:
            self._send(first + b"Content-Encoding: gzip\r\n", compress(body), status=status)
        else:
            self._compress(first + b"Content-Encoding: gzip\r\n", body, status)

    def stream(self, content_type: bytes = EVENT_STREAM, headers: Headers = ()) -> SocketStream:
        """Answer 200 with a chunked body; over HTTP/1.0, one that ends with the connection."""
        connection, terms = self.connection, self.terms
        service = connection.service
        is_last = connection.last or not connection.line or connection.line[-1] is not self
        self.ends = is_last or not terms.keep_alive or terms.old
        lines = header_lines((*headers, *terms.sender.cors))
        first = service.answers.head(200, content_type) + lines
        if not terms.old:
            first += b"Transfer-Encoding: chunked\r\n"
        if self.ends:
            first += b"Connection: close\r\n"
        live = SocketStream(
            service, first + b"\r\n", connection.stream_ended, is_chunked=not terms.old
        )
        if self._closed():
            service.loop.call_soon(live.lost)
            return live
        self.state = ANSWERED
        self.live = live
        if terms.is_head:
            live.refuse_body()
        connection.stream_waits(self)
        return live

    def upgrade(self, subprotocol: str | None = None) -> WebSocketConnection:
        """Go on as a WebSocket."""
        if self._closed():
            raise Rejected("the client has disconnected")
        websocket = self.connection.upgrade(self, subprotocol)
        self.state = ANSWERED
        return websocket

    def fail(self) -> None:
        """The application failed: answer 500 unless an answer was given."""
        if self.state < ANSWERED:
            self.reply(500, INTERNAL_ERROR)

    def _closed(self) -> bool:
        if self.state == ANSWERED:
            raise Rejected("the request is answered already")
        return self.state == GONE

    def _compress(self, first: bytes, body: bytes, status: int) -> None:
        # The answer keeps its place in `line` while a thread compresses it.
        loop = self.connection.service.loop
        done = loop.run_in_executor(None, compress, body)
        done.add_done_callback(lambda made: self._send(first, made.result(), status=status))

    def _send(self, first: bytes, body: bytes, *, status: int) -> None:
        if self.state == GONE:
            return
        # Later requests in `line` have begun, and must be answered too.
        is_last = self.connection.last and self.connection.line[-1] is self
        self.ends = is_last or not self.terms.keep_alive
        if has_body(status):
            first += b"Content-Length: %d\r\n" % len(body)
        if self.ends:
            first += b"Connection: close\r\n"
        elif not self.terms.hot:
            first += b"Connection: keep-alive\r\n"
        if self.terms.is_head or not has_body(status):
            body = b""
        if len(body) > LARGE_BYTES:
            self.connection.answered_in_parts(self, first + b"\r\n", body)
        else:
            self.connection.answered(self, first + b"\r\n" + body)


def refusal(answers: AnswerHeads, refused: CallError, *, ends: bool) -> bytes:
    """The whole answer to a request that is not passed on."""
    body = error_body(refused.code, refused.message, refused.detail)
    first = answers.head(refused.status, JSON) + header_lines(refused.headers)
    if isinstance(refused, Busy | Unavailable):
        first += header_lines(COME_BACK)
    if ends:
        first += b"Connection: close\r\n"
    return first + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
