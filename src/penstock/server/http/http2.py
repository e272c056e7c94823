"""An HTTP/2 connection: the h2 library keeps the protocol's state, this module enforces limits.

The h2 library refuses a frame that is too long only when it has all of it. That would be up to
16 MiB for each connection, so the guard tracks the frames and checks their headers. It also
computes the size of the next few frames, because very many may arrive in one read.

>>> guard = FrameGuard(16_384, skip=0)
>>> frame = bytes([0, 0, 2, 0, 0, 0, 0, 0, 1]) + b"ab"
>>> guard.portion(frame * 3, frames_max=2), guard.portion(frame + bytes([1, 0]), frames_max=2)
(22, 13)
>>> guard.portion(bytes([0]), frames_max=2) is None
True
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from contextlib import suppress
from typing import Final, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error, StreamClosedError
from h2.settings import SettingCodes, Settings

from penstock.protocol.errors import CallError, InvalidRequest
from penstock.server.http.budget import InPortions, Stall
from penstock.server.http.head import REFUSED_TERMS, Line, Terms, split_target
from penstock.server.http.http1_exchange import GONE
from penstock.server.http.http2_exchange import Http2Exchange
from penstock.server.http.service import TICK_S, Service, peer_of

_FRAME_HEAD_BYTES: Final = 9


class FrameGuard:
    """Tracks the frames of one connection through reads that split them anywhere."""

    def __init__(self, frame_bytes_max: int, *, skip: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._skip = skip
        self._length = b""
        """The bytes of the next frame's length received so far."""

    def portion(self, data: bytes, frames_max: int) -> int | None:
        """How many bytes the next `frames_max` frames have; None if one of them is too long."""
        place = frames = 0
        while True:
            place += self._skip
            if place >= len(data):
                self._skip = place - len(data)
                return len(data)
            self._skip = 0
            if frames == frames_max:
                return place
            digits = data[place : place + 3 - len(self._length)]
            self._length += digits
            place += len(digits)
            if len(self._length) < 3:
                return len(data)
            length = int.from_bytes(self._length, "big")
            if length > self._frame_bytes_max:
                return None
            self._length = b""
            self._skip = _FRAME_HEAD_BYTES - 3 + length
            frames += 1


FRAMES_A_TURN: Final = 16
"""How many frames of one connection are processed before other connections get a turn."""
TAKEN_BYTES_MIN: Final = 16_384
"""A peer that reads less of its answers than this within `write_stall_s` counts as stalled."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_RESETS_WITHIN_S: Final = 10.0
_BAD_VALUE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_REFUSED_LINE: Final = Line("GET", "", "", is_head=False, old=False)


class Http2Connection(InPortions):
    """One connection with up to `http2_streams_max` concurrent requests."""

    def __init__(self, service: Service) -> None:
        super().__init__(service.loop)
        self.service = service
        self._limits = service.limits
        self._h2 = _server_side(service)
        self._guard = FrameGuard(self._h2.max_inbound_frame_size, skip=len(PREFACE))
        self._exchanges: dict[int, Http2Exchange] = {}
        self._lingering: dict[int, float] = {}
        """Answered streams whose requests still arrive, and the deadlines until which they may."""
        self._unopened_bytes = 0
        self._writes_paused = False
        self._held: deque[Http2Exchange] = deque()
        """Complete requests that begin when the answers before them are on their way."""
        self._pumping = False
        self._beginning = False
        self._leaving = False
        self._resets = 0
        self._resets_since_s = service.now_s
        self._touched_s = service.now_s
        self._stall = Stall(least=TAKEN_BYTES_MIN)

    @property
    def peer(self) -> str:
        """The address of the peer, without its port."""
        return peer_of(self._transport)

    # called by the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: send the settings."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(self._limits.http2_window_bytes * 4)
        self._write()

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        self.service.counters.bytes_in += len(data)
        self._touched_s = self.service.now_s
        self._arrived(data)

    def _portion(self, data: bytes) -> int:
        """A few frames; all bytes if a frame is too long, which ends the connection."""
        size = self._guard.portion(data, FRAMES_A_TURN)
        if size is None:
            self._leave(ErrorCodes.FRAME_SIZE_ERROR)
            return len(data)
        return size

    def _take_portion(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        try:
            events = self._h2.receive_data(data)
        except H2Error:
            self._write()  # the library's GOAWAY
            self._transport.close()
            return
        for event in events:
            if not self._transport.is_closing():
                self._take(event)
        if not self._transport.is_closing():
            self.open_windows()
            self.pump()

    def _is_held(self) -> bool:
        return self._writes_paused

    def eof_received(self) -> None:
        """The peer sends no more: the connection ends."""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost, and with it every request on it."""
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.lost()
        self.service.discard(self)

    def pause_writing(self) -> None:
        """The peer does not read: stop reading from it (back-pressure)."""
        self._writes_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writes_paused = False
        if self._transport.is_closing():
            return
        self._read_on()
        self.pump()

    # called by the service -----------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close if something took too long."""
        limits = self._limits
        owed = self._owed_bytes() + self._transport.get_write_buffer_size()
        if self._stall.lasted_s(owed, now_s) > limits.write_stall_s:
            self._transport.abort()
        if self._transport.is_closing():
            return
        if self._lingering:
            self._stop_lingering(now_s)
        for exchange in list(self._exchanges.values()):
            if not exchange.complete:
                self._sweep_body(exchange, now_s)
            live = exchange.live
            if live is not None and live.stalled_s(now_s) > limits.stream_stall_s:
                self._give_up(exchange)
        if not self._exchanges and now_s - self._touched_s > limits.idle_s:
            self._leave(ErrorCodes.NO_ERROR)

    def drain(self) -> None:
        """Close when the last request is answered; refuse new ones until then.

        No early GOAWAY: a client made with the h2 library takes no answer after it.
        """
        self._leaving = True
        self._close_if_done()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    # requests ------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self._begin(event)
            case DataReceived():
                self._receive(event)
            case StreamEnded():
                self._lingering.pop(event.stream_id, None)
                self._whole(event.stream_id)
            case StreamReset():
                self._lingering.pop(event.stream_id, None)
                self._forget(event.stream_id)
                self._count_reset()
            case ConnectionTerminated():
                self._transport.close()
            case _:
                pass

    def _begin(self, event: RequestReceived) -> None:
        stream_id = event.stream_id
        if self._leaving:
            with suppress(StreamClosedError):  # cancelled in the same read
                self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        terms = REFUSED_TERMS
        try:
            line, terms = self._head(event.headers)
            if event.stream_ended is None:
                self.service.heads.check_length(terms)
                no_key = self.service.check_head(line.method, terms.headers, terms.sender)
                if no_key is not None:
                    raise no_key
        except CallError as refused:
            refused_exchange = Http2Exchange(self, stream_id, _REFUSED_LINE, terms)
            self._exchanges[stream_id] = refused_exchange
            self.refuse(stream_id, refused_exchange, refused)
            return
        self._exchanges[stream_id] = Http2Exchange(self, stream_id, line, terms)

    def _head(self, fields: list[tuple[bytes, bytes]]) -> tuple[Line, Terms]:
        pseudo = {name: value for name, value in fields if name.startswith(b":")}
        rest = [field for field in fields if not field[0].startswith(b":")]
        if any(_BAD_VALUE.search(value) for _, value in fields):
            raise InvalidRequest("a header contains control characters")
        if b":path" not in pseudo or b":method" not in pseudo:
            raise InvalidRequest("the request has no method or no path")
        if b":authority" in pseudo and all(name != b"host" for name, _ in rest):
            rest.append((b"host", pseudo[b":authority"]))
        method = pseudo[b":method"].decode("latin-1")
        is_head = method == "HEAD"
        line = Line(
            "GET" if is_head else method,
            *split_target(pseudo[b":path"]),
            is_head=is_head,
            old=False,
        )
        return line, self.service.heads.mean(rest)

    def _receive(self, event: DataReceived) -> None:
        self._unopened_bytes += event.flow_controlled_length
        exchange = self._exchanges.get(event.stream_id)
        if exchange is None or exchange.complete:
            return
        exchange.unopened_bytes += event.flow_controlled_length
        try:
            exchange.take(event.data)
        except CallError as refused:
            self.refuse(event.stream_id, exchange, refused)

    def _whole(self, stream_id: int) -> None:
        exchange = self._exchanges.get(stream_id)
        if exchange is not None:
            exchange.ended_by_peer = True
            if not exchange.complete:
                exchange.finish()

    def refuse(self, stream_id: int, exchange: Http2Exchange, refused: CallError) -> None:
        """Answer a request that is not passed on, and read no more of it."""
        self.service.counters.refusals_total += 1
        exchange.complete = True
        exchange.refuse(refused)
        self.pump()
        self._count_reset()

    def open_windows(self) -> None:
        """Let the peer send more, on the connection and on streams that may continue."""
        if self._transport.is_closing():
            return
        half = self._limits.http2_window_bytes // 2
        try:
            if self._unopened_bytes >= half:
                self._h2.increment_flow_control_window(self._unopened_bytes)
                self._unopened_bytes = 0
            for stream_id, exchange in self._exchanges.items():
                opens = exchange.unopened_bytes >= half and not exchange.complete
                if opens and not exchange.waits:
                    with suppress(StreamClosedError):  # cancelled in the same read
                        self._h2.increment_flow_control_window(exchange.unopened_bytes, stream_id)
                    exchange.unopened_bytes = 0
        except H2Error:
            self._leave(ErrorCodes.INTERNAL_ERROR)
        self._write()

    def _give_up(self, exchange: Http2Exchange) -> None:
        """End a stream whose peer does not open its window."""
        with suppress(H2Error):
            self._h2.reset_stream(exchange.stream_id, ErrorCodes.CANCEL)
        self._write()
        self._forget(exchange.stream_id)

    def _forget(self, stream_id: int) -> None:
        exchange = self._exchanges.pop(stream_id, None)
        if exchange is not None:
            exchange.lost()
        self._close_if_done()

    def _count_reset(self) -> None:
        """Limit cancellations: they are cheap for a peer and expensive for the server."""
        now_s = self.service.now_s
        if now_s - self._resets_since_s > _RESETS_WITHIN_S:
            self._resets = 0
            self._resets_since_s = now_s
        self._resets += 1
        if self._resets > self._limits.http2_resets_max:
            self._leave(ErrorCodes.ENHANCE_YOUR_CALM)

    def _sweep_body(self, exchange: Http2Exchange, now_s: float) -> None:
        if exchange.waits or self._writes_paused:
            # The wait was for memory; the peer is not slow.
            exchange.touched_s = now_s
            exchange.pace.excuse(TICK_S)
            return
        size, budget = exchange.received_bytes, self.service.budget
        refused = budget.too_slow(exchange.pace, size, now_s, self._limits)
        if refused is not None:
            self.refuse(exchange.stream_id, exchange, refused)

    # answers -------------------------------------------------------------------------------------

    def send_head(
        self, exchange: Http2Exchange, status: int, lines: list[tuple[bytes, bytes]], *, ends: bool
    ) -> None:
        """Send the head of an answer; the body follows from the exchange's outbox."""
        headers = [(b":status", b"%d" % status), *lines, (b"date", self.service.answers.date)]
        if self.service.answers.varies:
            headers.append((b"vary", b"origin"))
        try:
            self._h2.send_headers(exchange.stream_id, headers, end_stream=ends)
        except H2Error:
            self._forget(exchange.stream_id)
            return
        if ends:
            self._finished(exchange)
        self.pump()

    def begin_request(self, exchange: Http2Exchange) -> None:
        """Pass on a complete request, once the peer has taken the answers to earlier ones."""
        if self._held or self._owed_bytes() > self._limits.http2_answers_bytes_max:
            self._held.append(exchange)
        else:
            exchange.hand_over()

    def _owed_bytes(self) -> int:
        """Bytes of answers that wait for the peer's windows."""
        return sum(len(each.outbox) for each in self._exchanges.values() if each.live is None)

    def _begin_held(self) -> None:
        """Begin held requests. Ignores nested calls, which immediate answers make."""
        if self._beginning:
            return
        self._beginning = True
        try:
            while self._held and self._owed_bytes() <= self._limits.http2_answers_bytes_max:
                self._held.popleft().hand_over()
        finally:
            self._beginning = False

    def pump(self) -> None:
        """Send a frame from each outbox in turn, as far as windows and the socket allow."""
        if self._pumping or self._transport.is_closing():
            return
        self._pumping = True
        try:
            moved = True
            while moved and not self._writes_paused:
                moved = False
                for exchange in list(self._exchanges.values()):
                    moved = self._send_frame(exchange) or moved
                self._write()
        finally:
            self._pumping = False
        self._write()
        if self._held:
            self._begin_held()
        self._close_if_done()

    def _send_frame(self, exchange: Http2Exchange) -> bool:
        outbox = exchange.outbox
        if exchange.state == GONE or not (outbox or (exchange.ended and exchange.live)):
            return False
        try:
            window = self._h2.local_flow_control_window(exchange.stream_id)
            size = min(len(outbox), window, self._h2.max_outbound_frame_size)
            if outbox and size <= 0:
                return False
            ends = exchange.ended and size == len(outbox)
            self._h2.send_data(exchange.stream_id, bytes(outbox[:size]), end_stream=ends)
        except H2Error:
            self._forget(exchange.stream_id)
            return False
        del outbox[:size]
        if ends:
            self._finished(exchange)
        elif not outbox and exchange.live is not None:
            exchange.live.emptied()
        return True

    def _finished(self, exchange: Http2Exchange) -> None:
        """The answer is sent: the stream is over, and further input on it is discarded.

        The stream is reset only after a while: a peer that is reset at once may discard its answer,
        as curl does.
        """
        self._exchanges.pop(exchange.stream_id, None)
        self._touched_s = self.service.now_s
        if not exchange.ended_by_peer:
            self._lingering[exchange.stream_id] = self._touched_s + self._limits.linger_s

    def _stop_lingering(self, now_s: float) -> None:
        """Reset streams whose peers still send although their request was answered long ago."""
        for stream_id in [each for each, until_s in self._lingering.items() if now_s >= until_s]:
            del self._lingering[stream_id]
            with suppress(H2Error):
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        self._write()

    def _close_if_done(self) -> None:
        if self._leaving and not self._exchanges:
            self._leave(ErrorCodes.NO_ERROR)

    def _leave(self, code: ErrorCodes) -> None:
        """Send GOAWAY and close."""
        if self._transport.is_closing():
            return
        self._leaving = True
        self._h2.close_connection(code)
        self._write()
        self._transport.close()

    def _write(self) -> None:
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self.service.counters.bytes_out += len(data)
            self._transport.write(data)


def _server_side(service: Service) -> H2Connection:
    limits = service.limits
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    connection.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.http2_streams_max,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.http2_window_bytes,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.head_bytes_max,
        },
    )
    connection.decoder.max_header_list_size = limits.head_bytes_max
    return connection
