"""What passes between the transport and the application: requests, exchanges, streams, limits.

The transport (`penstock.server.http`) makes one `Exchange` for every complete request and hands it
to the application, which answers it once, now or later, on the loop's thread.

>>> error_body("not_found", "no such route")
b'{"error":{"code":"not_found","message":"no such route"}}'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from penstock.kernel.errors import Rejected
from penstock.kernel.units import KIB, MIB
from penstock.protocol.errors import ForeignHost, ForeignOrigin

Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"


class Sender(msgspec.Struct, frozen=True, gc=False, eq=False, kw_only=True):
    """What the headers of a request say of its sender; the same object for the same headers."""

    foreign_host: str | None = None
    """The host that was named, if the server must not answer to it."""
    foreign_page: str | None = None
    """The page that sent it, if that may change nothing here."""
    origin: str = ""
    """That page's origin, if it has one."""
    cors: tuple[tuple[bytes, bytes], ...] = ()
    """Headers of every answer, so that the page may read it."""

    def check(self, *, changes: bool) -> None:
        """Refuse a request, of which is known whether it would change something."""
        if self.foreign_host is not None:
            raise ForeignHost(
                f"expected Host to be localhost or an address of loopback, found "
                f"{self.foreign_host!r}: to serve that name without API keys, add it to "
                "allowed_hosts (penstock serve --allowed-host)",
                host=self.foreign_host,
            )
        if changes and self.foreign_page is not None:
            refused = ForeignOrigin(
                f"expected a request of this server's own origin, found one of "
                f"{self.foreign_page}: to let it in, add it to allowed_origins "
                "(penstock serve --allowed-origin)"
            )
            if self.origin:
                refused.detail["origin"] = self.origin
            raise refused


USUAL: Final = Sender()
"""No page sent the request, and it names this server."""


class Request(msgspec.Struct, gc=False, eq=False):
    """One complete request.

    `path` is percent-decoded, but for slashes (`%2F`), and has no query; `query` is as it was sent,
    without the question mark. Names in `headers` are lower-case, repeated ones are joined with a
    comma and a blank. Requests that look alike share their headers: do not change them. `body` is
    inflated. A HEAD request is handed on as GET; the transport keeps the body of its answer back.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    sender: Sender = USUAL
    """What the headers say of who sent it."""


def as_chunk(data: bytes) -> bytes:
    """Bytes as one chunk of a body over HTTP/1.1; no bytes would be the body's end.

    >>> as_chunk(b"event")
    b'5\\r\\nevent\\r\\n'
    """
    return b"%x\r\n%b\r\n" % (len(data), data)


class Direct(NamedTuple):
    """The socket of a stream, for those who write the same to very many, each time `as_chunk`.

    Only while it `is_closing` not and nothing is `unsent`, asked anew before every write: a number
    that was closed may belong to another connection by then. Count what was written.
    """

    fd: int
    is_closing: Callable[[], bool]
    unsent: Callable[[], int]
    wrote: Callable[[int], None]


class Stream(Protocol):
    """The body of an answer that is written bit by bit. It never blocks and never compresses."""

    on_room: Callable[[], None] | None
    """Called when the buffer is empty again after a write was not taken, or had no room."""
    on_gone: Callable[[], None] | None
    """Called once when the peer goes away; not after `close`."""

    @property
    def buffered(self) -> int:
        """Bytes that the socket did not take yet."""

    def write(self, data: bytes) -> bool:
        """Send bytes, or return False and take none: the buffer is full or the peer left."""

    def has_room(self) -> bool:
        """Whether a write of any size is taken now; if not, `on_room` is called when it is."""

    def direct(self) -> Direct | None:
        """The socket itself; None if it must not be used."""

    def rest(self, data: memoryview) -> None:
        """Send what the socket itself did not take of something."""

    def close(self) -> None:
        """End the body after what was written. Idempotent."""


class WebSocket(Protocol):
    """A WebSocket connection, from the server's side."""

    on_text: Callable[[bytes], None] | None
    on_binary: Callable[[bytes], None] | None
    on_room: Callable[[], None] | None
    on_gone: Callable[[], None] | None

    def send(self, text: bytes) -> bool:
        """Send a text message, or return False and take nothing: too many wait for the socket."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Start the closing handshake after what was sent. Idempotent."""


class Exchange(Protocol):
    """One request and its answer, which is given exactly once."""

    request: Request
    on_gone: Callable[[], None] | None
    """Called once if the peer goes before the answer."""

    @property
    def is_head(self) -> bool:
        """Whether only the head of the answer is asked for: nothing need be begun for a body."""

    @property
    def is_gone(self) -> bool:
        """Whether the peer went before the answer."""

    def reply(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Answer with a whole body, compressed if it is large and the client accepts it."""

    def reply_json(self, body: bytes) -> None:
        """Answer 200 with JSON: the hot path."""

    def expect_again(self, handle: Callable[[Exchange], None]) -> None:
        """Have the next requests of this connection with the same head handled by this.

        A hint, which may be ignored; the exchange and its request may be the same objects then.
        """

    def stream(self, content_type: bytes = EVENT_STREAM, headers: Headers = ()) -> Stream:
        """Answer 200 with a body that is written bit by bit."""

    def upgrade(self, subprotocol: str | None = None) -> WebSocket:
        """Answer with a WebSocket; raises `Rejected` if the request does not ask for one."""


Application = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """A limit on everything that a peer can make the transport hold or wait for."""

    body_bytes_max: int = 64 * MIB
    """A request's body, after inflation."""
    buffered_bytes_max: int = 256 * MIB
    """Request bodies of all connections. Above it, unfinished bodies are read one at a time."""
    buffered_bytes_refused: int = 512 * MIB
    """Above this they are refused."""
    head_bytes_max: int = 128 * KIB
    """Enough for the id of an event of a watch with as many topics of as long names as may be."""
    headers_max: int = 100
    head_s: float = 10.0
    """From the first byte of a request's head to its last."""
    body_stall_s: float = 30.0
    """Without a byte of a body that is not complete."""
    body_rate_min: int = 1 * KIB
    """Bytes of a body a second, on average, once `body_stall_s` have passed."""
    idle_s: float = 75.0
    """A connection without a request."""
    write_stall_s: float = 60.0
    """A peer that takes nothing of an answer."""
    stream_stall_s: float = 300.0
    """A peer that takes nothing of a stream or a WebSocket for which something waits."""
    linger_s: float = 3.0
    """How long input is thrown away after a refusal, so that the peer can read it."""
    connections_max: int = 20_000
    pipelined_max: int = 64
    """Unanswered requests of one HTTP/1.1 connection."""
    write_buffer_bytes_max: int = 256 * KIB
    """Answers that a peer does not read, before its requests are not read either."""
    stream_buffer_bytes_max: int = 1 * MIB
    """Bytes of a stream that the socket did not take, before it is lagged."""
    websocket_message_bytes_max: int = 1 * MIB
    websocket_queue_max: int = 4
    """Messages that the socket did not take."""
    http2_streams_max: int = 128
    http2_window_bytes: int = 256 * KIB
    http2_answers_bytes_max: int = 16 * MIB
    """Answers that a peer's windows hold back, before its next requests wait for them."""
    http2_resets_max: int = 200
    """Streams that one connection may cancel within ten seconds."""

    def __post_init__(self) -> None:
        for field in fields(self):
            found = getattr(self, field.name)
            if found <= 0:
                raise Rejected(f"expected {field.name} above 0, found {found}", found=found)


class Answer(NamedTuple):
    """A whole answer: a status and a body."""

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


def error_body(code: str, message: str, detail: dict[str, Any] | None = None) -> bytes:
    """The envelope of an error, as compact JSON."""
    error: dict[str, Any] = {"code": code, "message": message}
    if detail:
        error["detail"] = detail
    return msgspec.json.encode({"error": error})
