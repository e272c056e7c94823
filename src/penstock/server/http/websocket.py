"""A WebSocket on an upgraded HTTP/1.1 connection: incoming messages, a short outgoing queue."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.utils import accept_key

from penstock.kernel.errors import Rejected
from penstock.server.http.budget import InPortions, Stall
from penstock.server.http.head import Terms
from penstock.server.http.message import Request, check_headers
from penstock.server.http.service import Service
from penstock.server.http.stream import SocketWriter

BYTES_A_TURN: Final = 4_096
"""How many bytes of one peer are processed before others get a turn: they may be many frames."""
_INVALID_TEXT: Final = 1007
_FAILED: Final = 1011
_DATA: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
# The library logs every connection; the service counts and logs what matters.
_QUIET: Final = logging.getLogger("penstock.server.websocket")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


class WebSocketConnection(InPortions):
    """One WebSocket. The library handles frames, this class the socket and the limits."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.loop)
        self.on_text: Callable[[bytes], None] | None = None
        self.on_binary: Callable[[bytes], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.on_gone: Callable[[], None] | None = None
        self._service = service
        self._limits = service.limits
        self._frames = ServerProtocol(
            state=OPEN, max_size=service.limits.websocket_message_bytes_max, logger=_QUIET
        )
        self._writer = cast(SocketWriter, None)
        self._queue: deque[bytes] = deque()
        self._message = bytearray()
        self._is_text = True
        self._lagged = False
        self._closed = False
        """Whether the application closed it, or was notified that it is gone."""
        self._paused = False
        self._closing_s: float | None = None
        self._stall = Stall()
        service.counters.websockets_open += 1

    def send(self, text: bytes) -> bool:
        """Send a text message, or take nothing and return False."""
        if self._closed or self._frames.state is not OPEN:
            return False
        if self._queue or self._writer.buffered:
            if len(self._queue) >= self._limits.websocket_queue_max:
                self._lagged = True
                return False
            self._queue.append(text)
            return True
        self._frames.send_text(text)
        self._write_frames()
        return True

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Start the closing handshake."""
        if self._closed:
            return
        self._closed = True
        if self._frames.state is OPEN:
            self._flush_queue(everything=True)
            self._frames.send_close(code, reason)
            self._write_frames()

    # called by the transport and the service -----------------------------------------------------

    def begin(self, transport: asyncio.Transport, answer: bytes, early: bytes) -> None:
        """Answer the upgrade and process what the peer sent early."""
        self._transport = transport
        self._writer = SocketWriter(transport)
        self._service.counters.bytes_out += len(answer)
        transport.write(answer)
        if early:
            # The application has not set its callbacks yet.
            self._service.loop.call_soon(self.data_received, early)

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        self._service.counters.bytes_in += len(data)
        self._arrived(data)

    def _portion(self, data: bytes) -> int:
        return min(len(data), BYTES_A_TURN)

    def _take_portion(self, data: bytes) -> None:
        self._frames.receive_data(data)
        for event in self._frames.events_received():
            self._take(cast(Frame, event))
        self._write_frames()

    def _is_held(self) -> bool:
        return self._paused

    def eof_received(self) -> None:
        """The peer sends no more: the connection ends."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        self._service.counters.websockets_open -= 1
        self._queue.clear()
        self._service.discard(self)
        on_gone = self.on_gone
        # Break the reference cycle with the listener.
        self.on_text = self.on_binary = self.on_room = self.on_gone = None
        if not self._closed:
            self._closed = True
            self._service.call(on_gone)

    def pause_writing(self) -> None:
        """The socket does not take everything; see `SocketWriter`."""

    def resume_writing(self) -> None:
        """The socket took everything: send what is queued."""
        self._stall.lasted_s(0, self._service.now_s)
        self._flush_queue(everything=False)
        if self._paused and not self._writer.buffered:
            self._paused = False
            self._read_on()
        if self._lagged and not self._queue and not self._closed:
            self._lagged = False
            self._service.call(self.on_room)

    def sweep(self, now_s: float) -> None:
        """Close if the closing handshake takes too long, or the peer reads nothing for too long."""
        if self._transport.is_closing() or self._frames.state is not OPEN:
            self._closing_s = self._closing_s or now_s
            if now_s - self._closing_s > self._limits.linger_s:
                self._transport.abort()
        elif self._stall.lasted_s(self._writer.buffered, now_s) > self._limits.stream_stall_s:
            self._transport.abort()

    def drain(self) -> None:
        """Does nothing: the application closes its WebSockets itself."""

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    # frames --------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in _DATA or self._closed or self._frames.state is not OPEN:
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._message += frame.data
        if frame.fin:
            message, self._message = bytes(self._message), bytearray()
            self._deliver(message)

    def _deliver(self, message: bytes) -> None:
        if self._is_text:
            try:
                message.decode()
            except UnicodeDecodeError:
                self._frames.fail(_INVALID_TEXT, "the text is not UTF-8")
                return
        callback = self.on_text if self._is_text else self.on_binary
        if callback is None:
            return
        try:
            callback(message)
        except Exception:
            self._service.failed("the application failed on a WebSocket message")
            if self._frames.state is OPEN:
                self._frames.fail(_FAILED, "the server failed")

    def _flush_queue(self, *, everything: bool) -> None:
        while self._queue and self._frames.state is OPEN:
            if self._writer.buffered and not everything:
                return
            self._frames.send_text(self._queue.popleft())
            self._write_frames()

    def _write_frames(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                self._service.counters.bytes_out += len(data)
                self._writer.write(data)
            else:
                self._transport.close()
                return
        if not self._paused and self._writer.buffered > self._limits.write_buffer_bytes_max:
            # A peer that sends pings and does not read the pongs is not read either
            # (back-pressure).
            self._paused = True
            self._transport.pause_reading()


def accept_head(request: Request, terms: Terms, subprotocol: str | None, date: bytes) -> bytes:
    """The head that upgrades a connection to a WebSocket; raises `Rejected` if not allowed."""
    headers = terms.headers
    if request.method != "GET" or terms.is_head or not terms.wants_upgrade:
        raise Rejected("this route is for WebSockets: send GET with Connection: Upgrade")
    if headers["upgrade"].lower() != "websocket":
        raise Rejected(f"Upgrade must be websocket, not {headers['upgrade']!r}")
    if headers.get("sec-websocket-version") != "13":
        found = headers.get("sec-websocket-version")
        raise Rejected(f"Sec-WebSocket-Version must be 13, not {found!r}")
    key = headers.get("sec-websocket-key", "")
    if not _is_key(key):
        raise Rejected("Sec-WebSocket-Key must be 16 bytes in base64")
    lines = [
        (b"Date", date),
        (b"Upgrade", b"websocket"),
        (b"Connection", b"Upgrade"),
        (b"Sec-WebSocket-Accept", accept_key(key).encode()),
    ]
    if subprotocol is not None:
        lines.append((b"Sec-WebSocket-Protocol", subprotocol.encode()))
    check_headers(lines)
    return b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n" % b"".join(
        b"%b: %b\r\n" % line for line in lines
    )


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key.encode("latin-1"), validate=True)) == 16
    except binascii.Error:
        return False
