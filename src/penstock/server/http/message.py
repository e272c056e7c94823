"""The interface of transport and application: requests, exchanges, streams, limits, heads.

The transport (`penstock.server.http`) makes one `Exchange` for every complete request and hands it
to the application, which answers it once, now or later, on the loop's thread. The head of an answer
is cached for each status and type, with the date of the current second.

>>> error_body("not_found", "no such route")
b'{"error":{"code":"not_found","message":"no such route"}}'
>>> error_body("internal", "it failed")
b'{"error":{"code":"internal","message":"it failed","outcome":"unknown"}}'
>>> heads = AnswerHeads()
>>> heads.turn(0.0)
>>> heads.head(204, b"text/plain").decode()
'HTTP/1.1 204 No Content\\r\\nDate: Thu, 01 Jan 1970 00:00:00 GMT\\r\\n'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB
from penstock.protocol.errors import ERRORS, ForeignHost, ForeignOrigin, Outcome

Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"


class Sender(msgspec.Struct, frozen=True, gc=False, eq=False, kw_only=True):
    """What the headers of a request say about its sender; shared by equal headers."""

    foreign_host: str | None = None
    """The requested host, if the server must not answer under it."""
    foreign_page: str | None = None
    """The page that sent the request, if that page may not change anything here."""
    origin: str = ""
    """The page's origin, if it has one."""
    cors: tuple[tuple[bytes, bytes], ...] = ()
    """CORS headers of every answer, so that the page may read it."""
    is_same_origin: bool = True
    """Whether nothing says that a page of another origin sent it, not even one that is let in."""
    key_digest: bytes = b""
    """Of a request that a peer passed on: the key with which the browser signed in there."""

    def check(self, *, changes: bool) -> None:
        """Refuse a request from this sender; `changes` tells whether it would change something."""
        if self.foreign_host is not None:
            raise ForeignHost(
                f"Host is {self.foreign_host!r}, neither localhost nor a loopback address: to "
                "serve that name without API keys, add it to allowed_hosts "
                "(penstock serve --allowed-host)",
                host=self.foreign_host,
            )
        if changes and self.foreign_page is not None:
            refused = ForeignOrigin(
                f"the request comes from a page of {self.foreign_page}: to let it in, add it to "
                "allowed_origins (penstock serve --allowed-origin)"
            )
            if self.origin:
                refused.detail["origin"] = self.origin
            raise refused


USUAL: Final = Sender()
"""No page sent the request, and it names this server."""


class Request(msgspec.Struct, gc=False, eq=False):
    """One complete request.

    `path` is percent-decoded, except slashes (`%2F`), and has no query; `query` is as sent, without
    the question mark. Names in `headers` are lower-case; repeated ones are joined with a comma and
    a space. Equal heads share their headers: do not change them. `body` is inflated. A HEAD request
    is passed on as GET; the transport omits the body of its answer.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    sender: Sender = USUAL
    """What the headers say about the sender."""


def as_chunk(data: bytes) -> bytes:
    """Bytes as one chunk of a body over HTTP/1.1; no bytes would be the body's end.

    >>> as_chunk(b"event")
    b'5\\r\\nevent\\r\\n'
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


class Direct(NamedTuple):
    """The socket of a stream, to write the same bytes to very many, each time `as_chunk`.

    Use it only while not `is_closing` and nothing is `unsent`, checked before every write: a closed
    descriptor may belong to another connection by then. Count what was written.
    """

    fd: int
    is_closing: Callable[[], bool]
    unsent: Callable[[], int]
    wrote: Callable[[int], None]


class Stream(Protocol):
    """A streamed answer body. It never blocks and never compresses."""

    on_room: Callable[[], None] | None
    """Called when the buffer is empty again after a write was refused, or `has_room` was False."""
    on_gone: Callable[[], None] | None
    """Called once when the peer disconnects; not after `close`."""

    @property
    def buffered(self) -> int:
        """Bytes that the socket did not take yet."""

    def write(self, data: bytes) -> bool:
        """Send bytes, or return False and take none: the buffer is full or the peer is gone."""

    def has_room(self) -> bool:
        """Whether a write of any size is taken now; if not, `on_room` is called when it is."""

    def direct(self) -> Direct | None:
        """The socket itself; None if it must not be used directly."""

    def rest(self, data: memoryview) -> None:
        """Send the remainder of a direct write that the socket did not take."""

    def close(self) -> None:
        """End the body after the bytes written so far. Idempotent."""


class WebSocket(Protocol):
    """A WebSocket connection, from the server's side."""

    on_text: Callable[[bytes], None] | None
    on_binary: Callable[[bytes], None] | None
    on_room: Callable[[], None] | None
    on_gone: Callable[[], None] | None

    def send(self, text: bytes) -> bool:
        """Send a text message, or return False and take nothing: too many wait for the socket."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Start the closing handshake after the messages sent so far. Idempotent."""


class Exchange(Protocol):
    """One request and its answer, which must be given exactly once."""

    request: Request
    on_gone: Callable[[], None] | None
    """Called once if the peer disconnects before the answer."""

    @property
    def is_head(self) -> bool:
        """Whether the client wants only the head of the answer, so that no body need be started."""

    @property
    def is_gone(self) -> bool:
        """Whether the peer disconnected before the answer."""

    @property
    def may_be_gone(self) -> bool:
        """Whether the peer disconnected, or sends no more, which may be the same."""

    @property
    def peer(self) -> str:
        """The address of the peer, without its port; empty if it has none."""

    def reply(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body, compressed if it is large and the client accepts it."""

    def reply_json(self, body: bytes) -> None:
        """Answer 200 with JSON: the hot path."""

    def expect_again(self, handle: Callable[[Exchange], None]) -> None:
        """Handle the next requests of this connection with the same head by this.

        A hint, which may be ignored; the exchange and its request may be reused objects then.
        """

    def stream(self, content_type: bytes = EVENT_STREAM, headers: Headers = ()) -> Stream:
        """Answer 200 with a streamed body."""

    def upgrade(self, subprotocol: str | None = None) -> WebSocket:
        """Answer with a WebSocket; raises `Rejected` if the request is not an upgrade."""


Application = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """Limits on everything that a peer can make the transport hold or wait for."""

    body_bytes_max: int = 64 * MIB
    """A request's body, after inflation."""
    buffered_bytes_max: int = 256 * MIB
    """Request bodies of all connections. Above it, incomplete bodies are read one at a time."""
    buffered_bytes_refused: int = 512 * MIB
    """Above this, bodies are refused."""
    head_bytes_max: int = 128 * KIB
    """Enough for the event id of a watch with the most topics and the longest names."""
    headers_max: int = 100
    head_s: float = 10.0
    """From the first byte of a request's head to its last."""
    body_stall_s: float = 30.0
    """Without a byte of an incomplete body."""
    body_rate_min: int = 1 * KIB
    """Bytes per second of a body, on average, once `body_stall_s` have passed."""
    idle_s: float = 75.0
    """A connection without a request."""
    write_stall_s: float = 60.0
    """A peer that reads nothing of an answer."""
    stream_stall_s: float = 300.0
    """A peer that reads nothing of a stream or a WebSocket with unsent data."""
    linger_s: float = 3.0
    """How long input is discarded after a refusal, so that the peer can read it."""
    connections_max: int = 20_000
    pipelined_max: int = 64
    """Unanswered requests of one HTTP/1.1 connection."""
    write_buffer_bytes_max: int = 256 * KIB
    """Unread answers of a peer, before its requests are no longer read."""
    stream_buffer_bytes_max: int = 1 * MIB
    """Unsent bytes of a stream, before it counts as lagging."""
    websocket_message_bytes_max: int = 1 * MIB
    websocket_queue_max: int = 4
    """Unsent messages."""
    http2_streams_max: int = 128
    http2_window_bytes: int = 256 * KIB
    http2_answers_bytes_max: int = 16 * MIB
    """Answers held back by a peer's windows, before its next requests wait for them."""
    http2_resets_max: int = 200
    """Streams that one connection may cancel within ten seconds."""

    def __post_init__(self) -> None:
        for field in fields(self):
            found = getattr(self, field.name)
            if found <= 0:
                raise Rejected(f"{field.name} must be above 0, not {found}", found=found)


class Answer(NamedTuple):
    """A whole answer: a status and a body."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


UNKNOWN_CODES: Final = frozenset(
    code for code, kind in ERRORS.items() if kind.outcome is Outcome.UNKNOWN
)


def error_body(code: str, message: str, detail: dict[str, Any] | None = None) -> bytes:
    """The envelope of an error, as compact JSON.

    It says so if the outcome is unknown; otherwise nothing was changed, which is the usual case.
    """
    error: dict[str, Any] = {"code": code, "message": message}
    if code in UNKNOWN_CODES:
        error["outcome"] = Outcome.UNKNOWN.value
    if detail:
        error["detail"] = detail
    return msgspec.json.encode({"error": error})


_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_KNOWN_MAX: Final = 256


class AnswerHeads:
    """The beginning of every answer: status line, type and date."""

    def __init__(self, *, varies: bool = False) -> None:
        self.varies = varies
        """Whether answers depend on the Origin of the request."""
        self._known: dict[tuple[int, bytes], bytes] = {}
        self.date = b""
        self.json = b""
        """Status 200 with JSON, up to the digits of the length."""

    def turn(self, wall_s: float) -> None:
        """Start a new second: drop the cached heads, whose date is outdated."""
        self.date = formatdate(wall_s, usegmt=True).encode()
        self._known.clear()
        self.json = self.head(200, JSON) + b"Content-Length: "

    def head(self, status: int, content_type: bytes) -> bytes:
        """Status line, type (unless the status has no body) and date."""
        head = self._known.get((status, content_type))
        if head is None:
            check_headers([(b"content-type", content_type)])
            head = b"HTTP/1.1 %d %b\r\n" % (status, _reason(status))
            if has_body(status):
                head += b"Content-Type: %b\r\n" % content_type
            head += b"Date: %b\r\n" % self.date
            if self.varies:
                head += b"Vary: Origin\r\n"
            if len(self._known) < _KNOWN_MAX:
                self._known[status, content_type] = head
        return head


def has_body(status: int) -> bool:
    """Whether answers with a status carry a body and its length."""
    return status not in (204, 304)


def header_lines(headers: Headers) -> bytes:
    """Headers as lines; raises `Rejected` if a header contains a line break."""
    check_headers(headers)
    return b"".join(b"%b: %b\r\n" % header for header in headers)


def check_headers(headers: Headers) -> None:
    """Raise `Rejected` unless each name is a token and each value has no control characters."""
    for name, value in headers:
        if not _NAME.fullmatch(name) or _BAD_VALUE.search(value):
            raise Rejected(f"a header contains control characters: {name!r}: {value!r}")


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Unknown"
