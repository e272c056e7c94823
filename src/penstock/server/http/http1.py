"""An HTTP/1.1 connection: bytes to requests, answers to bytes, in the same order.

A read that is exactly one known request takes a fast path through `data_received`; everything else
goes through a buffer, one step at a time, and stops at the limits. A request begins when all
requests before it are answered, unless it and they may overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import CallError, InvalidRequest
from penstock.server.http.body import Body
from penstock.server.http.budget import Stall
from penstock.server.http.head import REFUSED_TERMS, Line, Terms
from penstock.server.http.http1_exchange import ANSWERED, GONE, HOT, OPEN, Http1Exchange, refusal
from penstock.server.http.message import USUAL, Request
from penstock.server.http.service import TICK_S, Service, peer_of
from penstock.server.http.stream import SocketStream
from penstock.server.http.websocket import WebSocketConnection, accept_head

HEAD: Final = "head"
BODY: Final = "body"
INFLATING: Final = "inflating"
STOPPED: Final = "stopped"
"""No more requests are read: the connection ends with an answer, sent or still due."""

STREAMING: Final = "streaming"
"""The answer is a stream: input is buffered meanwhile, and parsed when the stream ends."""

STEPS_A_TURN: Final = 16
"""How many heads and bodies of one connection are read before other connections get a turn."""

BLANK_LINES_MAX: Final = 16
"""A request may follow fewer blank lines than this."""

_BLANK_LINE: Final = b"\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_REFUSED_LINE: Final = Line("GET", "", "", is_head=False, old=False)
_REFUSED_REQUEST: Final = Request("GET", "", "", {}, b"")


class Http1Connection(asyncio.Protocol):
    """One connection. `line` holds the unanswered requests, oldest first."""

    # Without slots, each connection would have a dictionary, which is large and slow.
    __slots__ = (
        "_advancing", "_again", "_application", "_began_s", "_body", "_budget", "_buffer",
        "_counters", "_half_closed", "_handle_again", "_in_order", "_lines", "_linger_until_s",
        "_lingers", "_live", "_overlaps", "_pipelined_max", "_reading", "_rests", "_same_head",
        "_same_line", "_same_size", "_same_terms", "_scanned", "_sender", "_simple", "_stage",
        "_stall", "_terms", "_touched_s", "_transport", "_upgrading", "_writes_paused", "last",
        "line", "service",
    )  # fmt: skip

    def __init__(self, service: Service) -> None:
        self.service = service
        self._application = service.application
        self._budget = service.budget
        self._counters = service.counters
        self._lines = service.heads.lines
        self._terms = service.heads.terms
        self._pipelined_max = service.limits.pipelined_max
        # The head of the connection's last request; the next one is usually the same.
        self._same_head = b""
        self._same_size = -1
        self._same_line = _REFUSED_LINE
        self._same_terms = REFUSED_TERMS
        self._again: Http1Exchange | None = None
        """An answered exchange with that head, reused by `_handle_again`."""
        self._handle_again: Callable[[Http1Exchange], None] = self._application
        self.line: list[Http1Exchange] = []  # short, and an empty deque takes 700 bytes
        self.last = False
        """Whether the next answer ends the connection, because the service is draining."""
        self._transport = cast(asyncio.Transport, None)
        self._stage = HEAD
        self._simple = True
        """Nothing is buffered, paused or half read: a read may take the fast path."""
        self._buffer = bytearray()
        self._scanned = 0
        self._body: Body | None = None
        """The body of the request being read, until the request is passed on."""
        self._sender = USUAL
        """The sender of the request being read."""
        self._upgrading: Http1Exchange | None = None
        self._live: SocketStream | None = None
        self._overlaps = False
        """Whether the newest request, and so every request in `line`, may overlap."""
        self._in_order = True
        """Nothing in the buffer waits for answers to earlier requests."""
        self._advancing = False
        self._rests = False
        """A read was large: the rest is left to later iterations of the event loop."""
        self._reading = True
        self._writes_paused = False
        self._half_closed = False
        """The peer sends no more; it gets the answers that are due."""
        self._touched_s = service.now_s
        self._began_s = service.now_s
        """When the first byte of the incomplete head arrived."""
        self._lingers = False
        self._linger_until_s: float | None = None
        self._stall = Stall()

    @property
    def peer(self) -> str:
        """The address of the peer, without its port."""
        return peer_of(self._transport)

    # called by the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.service.limits.write_buffer_bytes_max)

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        self._counters.bytes_in += len(data)
        self._touched_s = self.service.now_s
        if self._simple and len(self.line) < self._pipelined_max:
            if len(data) == self._same_size and data.startswith(self._same_head):
                if self._again is not None and not self.line:
                    self._hand_again(self._again, data[len(self._same_head) :])
                    return
                if self._may_begin(self._same_line):
                    self._hand_over(self._same_line, self._same_terms, data[len(self._same_head) :])
                    return
            elif self._take_single(data):
                return
        if self._stage is STOPPED:
            return
        self._buffer += data
        if self._stage is STREAMING:
            self._bound_buffer()
        else:
            self._advance()

    def _bound_buffer(self) -> None:
        """Buffer a few requests for after the stream; a peer that sends more gets no answers."""
        if len(self._buffer) > self.service.limits.head_bytes_max:
            self._stop_reading_requests()

    @property
    def half_closed(self) -> bool:
        """Whether the peer sends no more: it waits for its answers, or is gone."""
        return self._half_closed

    def eof_received(self) -> bool:
        """The peer sends no more. What it has sent is answered before the connection ends.

        A disconnect looks the same. So a stream ends at once, and so does a request that waits for
        data: the peer may be gone.
        """
        is_due = bool(self.line) or self._stage is INFLATING or self._rests
        waits = any(each.live is not None or each.on_gone is not None for each in self.line)
        is_over = self._live is not None or self._linger_until_s is not None
        if not is_due or waits or is_over or not self._transport.can_write_eof():
            return False
        self._half_closed = True
        self._simple = False
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost, and with it every request in `line`."""
        self._stage = STOPPED
        self._simple = False
        self._end_body()
        self._drop_line()
        if self._live is not None:
            self._live.lost()
        # Break the reference cycles, so that the garbage collector need not find them.
        self._again = self._live = None
        self._handle_again = self._application
        self.service.discard(self)

    def pause_writing(self) -> None:
        """The peer does not read its answers: stop reading its requests (back-pressure)."""
        self._writes_paused = True
        self._touched_s = self.service.now_s
        self._settle()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._writes_paused = False
        self._stall.lasted_s(0, self.service.now_s)
        self._began_s = self.service.now_s  # of what was not read meanwhile
        if self._live is not None:
            self._live.resume_writing()
        else:
            self._advance()

    # called by the service and the budget --------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """Close if something took too long."""
        limits = self.service.limits
        if self._linger_until_s is not None:
            if now_s >= self._linger_until_s:
                self._transport.abort()
        elif self._live is not None and not self._transport.is_closing():
            if self._writes_paused and self._live.stalled_s(now_s) > limits.stream_stall_s:
                self._transport.abort()
        elif self._transport.is_closing() or self._writes_paused:
            buffered = self._transport.get_write_buffer_size()
            if self._stall.lasted_s(buffered, now_s) > limits.write_stall_s:
                self._transport.abort()
        else:
            self._sweep_requests(now_s, now_s - self._touched_s)

    def _sweep_requests(self, now_s: float, waited_s: float) -> None:
        limits = self.service.limits
        if self._stage is BODY and self._body is not None:
            self._sweep_body(self._body, now_s)
        elif self._stage is HEAD and self._scanned:  # else what is buffered was not looked at yet
            if not self._may_advance():
                self._began_s = now_s  # the wait was for answers; the peer is not slow
            elif now_s - self._began_s > limits.head_s:
                self._refuse(
                    InvalidRequest(
                        f"the head of the request was not complete within {limits.head_s} s"
                    )
                )
        elif not self.line and waited_s > limits.idle_s:
            self._transport.close()

    def drain(self) -> None:
        """Close now if idle, else after the answers that are due."""
        self.last = True
        self._simple = False
        for exchange in self.line:
            if exchange.state == HOT:
                exchange.state = OPEN
        if not self.line and self._stage is HEAD and not self._buffer:
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def resume_body(self) -> None:
        """There is memory for more of the body."""
        body = self._body
        if body is not None:
            body.waits = False
            if body.is_inflating:
                self.service.loop.call_soon(self._inflate)
        self._settle()

    # called by the exchanges ---------------------------------------------------------------------

    def answered(self, exchange: Http1Exchange, answer: bytes) -> None:
        """Send an answer, or keep it until earlier requests are answered."""
        line = self.line
        if self._simple and len(line) == 1:
            line.clear()
            request = exchange.request
            self._budget.give(len(request.body), request.body)
            request.body = b""  # the exchange may be kept for reuse
            self._counters.bytes_out += len(answer)
            self._touched_s = self.service.now_s
            self._transport.write(answer)
        else:
            exchange.answer = answer
            self._flush()

    def answered_in_parts(self, exchange: Http1Exchange, head: bytes, body: bytes) -> None:
        """Like `answered`, but without copying a large body that can be sent at once."""
        if self._simple and len(self.line) == 1:
            self._counters.bytes_out += len(head)
            self._transport.write(head)
            self.answered(exchange, body)
        else:
            self.answered(exchange, head + body)

    def stream_waits(self, exchange: Http1Exchange) -> None:
        """A stream is now the answer; later requests wait for its end, or are never read."""
        if exchange.ends:
            self._stop_reading_requests()
        else:
            self._stage = STREAMING
            self._simple = False
        self._flush()

    def stream_ended(self) -> None:
        """The body of a stream is complete: continue with the buffered input, or close."""
        self._live = None
        if self._stage is not STREAMING or self.last:
            self._close()
            return
        self._stage = HEAD
        self._touched_s = self.service.now_s
        self._transport.set_write_buffer_limits(high=self.service.limits.write_buffer_bytes_max)
        # Deferred: the application may be in the middle of a call when it ends a stream.
        self.service.loop.call_soon(self._go_on)

    def upgrade(self, exchange: Http1Exchange, subprotocol: str | None) -> WebSocketConnection:
        """Hand the connection over to a WebSocket."""
        answer = accept_head(
            exchange.request, exchange.terms, subprotocol, self.service.answers.date
        )
        if self._half_closed:
            raise Rejected("a WebSocket cannot be opened by a client that sends no more")
        if self.line[0] is not exchange or self._upgrading is not exchange:
            raise Rejected("a WebSocket cannot be opened while earlier requests are unanswered")
        self.line.clear()
        self._give_back(exchange.request.body)
        self._simple = False
        self._stage = STOPPED
        self._upgrading = None
        early, self._buffer = bytes(self._buffer), bytearray()
        websocket = WebSocketConnection(self.service)
        self.service.replace(self, websocket)
        self._transport.set_protocol(websocket)
        self._read(True)
        websocket.begin(self._transport, answer, early)
        return websocket

    def _give_back(self, body: bytes) -> None:
        self._budget.give(len(body), body)

    # requests ------------------------------------------------------------------------------------

    def _hand_over(self, line: Line, terms: Terms, body: bytes) -> None:
        exchange = Http1Exchange(
            self,
            Request(line.method, line.path, line.query, terms.headers, body, terms.sender),
            terms,
            HOT if terms.hot and not self.last else OPEN,
        )
        self.line.append(exchange)
        self._overlaps = line.overlaps
        self._budget.used += len(body)
        self._counters.requests_total += 1
        if terms.wants_upgrade:
            self._upgrading = exchange
        try:
            self._application(exchange)
        except Exception:
            self.service.failed("the application failed on %s", line.path)
            exchange.fail()

    def expect(self, exchange: Http1Exchange, handle: Callable[[Http1Exchange], None]) -> None:
        """The application has a fast path for requests with this head."""
        request, line = exchange.request, self._same_line
        is_same = request.method == line.method and request.path == line.path
        is_same = is_same and request.query == line.query
        if is_same and exchange.terms.family == self._same_terms.family and exchange.terms.hot:
            self._again, self._handle_again = exchange, handle

    def _hand_again(self, exchange: Http1Exchange, body: bytes) -> None:
        """Like `_hand_over`, but reuses the exchange of an answered request with the same head."""
        exchange.request.body = body
        exchange.state = HOT
        exchange.answer = None
        self.line.append(exchange)
        self._overlaps = self._same_line.overlaps
        self._budget.used += len(body)
        self._counters.requests_total += 1
        try:
            self._handle_again(exchange)
        except Exception:
            self.service.failed("the application failed on %s", exchange.request.path)
            exchange.fail()

    def _take_single(self, data: bytes) -> bool:
        """Pass on a read that is exactly one plain request, and remember its head."""
        first = data.find(b"\r\n")
        end = data.find(_BLANK_LINE, first) + 4
        line = self._lines.get(data[:first])
        terms = self._terms.get(data[first + 2 : end])
        if line is None or terms is None:
            line, terms = self._learn(data, end)
        if not terms.hot or terms.gzip_body or end + terms.length != len(data):
            return False
        if not self._may_begin(line):
            return False
        again = self._again
        if line is not self._same_line or terms.family != self._same_terms.family:
            again = self._again = None
        self._same_head = data[:end]
        self._same_size = len(data)
        self._same_line = line
        self._same_terms = terms
        if again is not None and not self.line:
            again.terms = terms
            self._hand_again(again, data[end:])
        else:
            self._hand_over(line, terms, data[end:])
        return True

    def _learn(self, data: bytes, end: int) -> tuple[Line, Terms]:
        """Parse a complete, unknown head; a refused one takes the general path."""
        if 4 <= end <= self.service.limits.head_bytes_max and data[:1].isupper():
            with suppress(CallError):
                return self.service.heads.parse(data[:end])
        return _REFUSED_LINE, REFUSED_TERMS

    def _advance(self) -> None:
        """Read requests off the buffer as far as its bytes and the limits allow."""
        if self._advancing:
            return
        self._advancing = True
        self._simple = False
        try:
            for _ in range(STEPS_A_TURN):
                if not (self._may_advance() and self._step()):
                    break
            else:
                self._rests = True
                self.service.loop.call_soon(self._go_on)
        except CallError as refused:
            self._refuse(refused)
        finally:
            self._advancing = False
        self._settle()

    def _go_on(self) -> None:
        """Continue after other connections had their turn."""
        self._rests = False
        if not self._transport.is_closing():
            self._advance()

    def _may_advance(self) -> bool:
        return (
            (self._stage is HEAD or self._stage is BODY)
            and self._in_order
            and self._upgrading is None
            and not self._rests
            and not self._writes_paused
            and len(self.line) < self.service.limits.pipelined_max
        )

    def _may_begin(self, line: Line) -> bool:
        """Whether a request need not wait for the answers before it."""
        return not self.line or (self._overlaps and line.overlaps)

    def _step(self) -> bool:
        return self._step_head() if self._stage is HEAD else self._step_body()

    def _step_head(self) -> bool:
        """Read one head, if it is complete."""
        self._sender = USUAL
        buffer = self._buffer
        if buffer and not buffer[:1].isupper() and buffer[:1] != b"\r":
            raise InvalidRequest("malformed HTTP request line")
        for _ in range(BLANK_LINES_MAX):
            if not buffer.startswith(b"\r\n"):
                break
            del buffer[:2]
        else:
            raise InvalidRequest("there are too many empty lines before the request")
        if not self._scanned:
            self._began_s = self.service.now_s
        end = buffer.find(_BLANK_LINE, max(0, self._scanned - 3)) + 4
        self._scanned = len(buffer)
        if (len(buffer) if end < 4 else end) > self.service.limits.head_bytes_max:
            most = self.service.limits.head_bytes_max
            raise InvalidRequest(f"the head of the request is longer than {most} bytes")
        if end < 4:
            return False
        line, terms = self.service.heads.parse(bytes(buffer[:end]))
        if not self._may_begin(line):
            self._in_order = False
            self._scanned = 0
            return False
        del buffer[:end]
        self._scanned = 0
        self._begin(line, terms)
        return True

    def _begin(self, line: Line, terms: Terms) -> None:
        self._sender = terms.sender
        if not terms.length:
            self._accept(line, terms, b"")
            return
        self.service.heads.check_length(terms)
        refused = self.service.check_head(line.method, terms.headers, terms.sender)
        if refused is not None:
            raise refused
        self._stage = BODY
        self._body = Body(line, terms, self.service, self)
        if terms.expects_continue and len(self._buffer) < max(terms.length, 1):
            self._body.owes_continue = True
            self._send_continue()

    def _step_body(self) -> bool:
        """Move bytes from the buffer to the body; pass the request on when it is complete."""
        body = cast(Body, self._body)
        whole = body.take(self._buffer)
        if whole and body.terms.gzip_body and body.size:
            self._stage = INFLATING
            body.begin_inflating()
            self._inflate()
        elif whole:
            self._accept(body.line, body.terms, body.content())
        return whole or (body.has_more and not body.waits)

    def _accept(self, line: Line, terms: Terms, content: bytes) -> None:
        self._stage = HEAD
        if self._body is not None:
            self._end_body(content)
        if not terms.keep_alive:
            self._stop_reading_requests()
        self._hand_over(line, terms, content)

    def _inflate(self) -> None:
        """Inflate a little; a large body takes several iterations of the event loop."""
        body = self._body
        if body is None or not body.is_inflating:
            return
        terms = body.terms
        try:
            content = body.inflate()
        except CallError as refused:
            self._end_body()
            self._stage = HEAD
            # The answer has a body, which a client would read as the next answer after a HEAD.
            self._refuse(refused, ends=terms.is_head or not terms.keep_alive)
            self._advance()
            return
        if content is not None:
            self._accept(body.line, terms, content)
            self._advance()
        elif not body.waits:
            self.service.loop.call_soon(self._inflate)

    def _refuse(self, refused: CallError, *, ends: bool = True) -> None:
        """Answer a request that is not passed on, in its turn."""
        self.service.counters.refusals_total += 1
        exchange = Http1Exchange(self, _REFUSED_REQUEST, REFUSED_TERMS, ANSWERED)
        exchange.ends = ends = ends or self.last
        if self._sender is not USUAL:
            refused.headers = (*refused.headers, *self._sender.cors)
        exchange.answer = refusal(self.service.answers, refused, ends=ends)
        if ends:
            self._lingers = True
            self._end_body()
            self._stop_reading_requests()
        self.line.append(exchange)
        self._flush()

    def _stop_reading_requests(self) -> None:
        self._stage = STOPPED
        self._simple = False
        self._buffer.clear()

    def _end_body(self, content: bytes | None = None) -> None:
        """Reset the incoming body: it is complete, or abandoned."""
        body, self._body = self._body, None
        if body is not None:
            body.end(content)

    def _sweep_body(self, body: Body, now_s: float) -> None:
        if body.waits or not self._may_advance():
            # The wait was for memory; the peer is not slow.
            self._touched_s = now_s
            body.pace.excuse(TICK_S)
            return
        refused = body.too_slow(now_s, self.service.limits)
        if refused is not None:
            self._refuse(refused)

    # answers -------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send every answer whose turn it is."""
        parts: list[bytes] = []
        line = self.line
        ended: Http1Exchange | None = None
        while line and ended is None and line[0].state == ANSWERED:
            exchange = line[0]
            if exchange.answer is not None:
                parts.append(exchange.answer)
            elif exchange.live is None:
                break  # a thread is compressing it
            del line[0]
            self._give_back(exchange.request.body)
            exchange.request.body = b""
            if exchange is self._upgrading:
                self._upgrading = None
            if exchange.ends or exchange.live is not None:
                ended = exchange
        if not line:
            self._in_order = True
        if parts:
            self._write(b"".join(parts))
        if ended is not None:
            self._end(ended)
        elif parts:
            self._send_continue()
            self._after_answers()

    def _after_answers(self) -> None:
        if self._advancing:
            return
        if self.last and not self.line and self._stage is HEAD and not self._buffer:
            self._close()  # the last answer was built before it was known to be the last
        elif self._buffer and self._stage is not STOPPED and self._in_order:
            # Deferred: the application may be in the middle of a call when it answers.
            self.service.loop.call_soon(self._advance)
        else:
            self._settle()

    def _end(self, exchange: Http1Exchange) -> None:
        """End with this answer: begin its stream, or close the connection."""
        if exchange.ends:
            self._stop_reading_requests()
            self._drop_line()
        self._live = exchange.live
        if self._live is not None:
            self._read(True)
            self._live.begin(self._transport)
            if self._half_closed:
                self._transport.close()
        else:
            self._close()

    def _close(self) -> None:
        self._stage = STOPPED
        self._simple = False
        if not self._lingers or not self._transport.can_write_eof():
            self._transport.close()
        elif not self._transport.is_closing():
            # Closing a socket with unread input resets the connection, and the peer might never see
            # the answer. So half-close it, and discard further input.
            self._linger_until_s = self.service.now_s + self.service.limits.linger_s
            self._transport.write_eof()
            self._read(True)

    def _drop_line(self) -> None:
        while self.line:
            exchange = self.line.pop(0)
            self._give_back(exchange.request.body)
            was_open = exchange.state < ANSWERED
            exchange.state = GONE
            if exchange.live is not None:
                exchange.live.lost()
            elif was_open:
                self.service.call(exchange.on_gone)

    def _write(self, data: bytes) -> None:
        self.service.counters.bytes_out += len(data)
        self._touched_s = self.service.now_s
        self._transport.write(data)

    def _send_continue(self) -> None:
        body = self._body
        if body is not None and body.owes_continue and not self.line:
            body.owes_continue = False
            self._write(_CONTINUE)

    # reading -------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Decide whether to continue reading, and whether reads may take the fast path."""
        may_advance = self._may_advance()
        body_waits = self._body is not None and self._body.waits
        if self._half_closed:
            if may_advance and not body_waits and not self.line:
                self._close()  # what is left is half a request
            return
        self._simple = may_advance and self._stage is HEAD and not self._buffer and not self.last
        listens = self._stage is STOPPED or self._stage is STREAMING
        self._read(listens or (may_advance and not body_waits))

    def _read(self, wanted: bool) -> None:
        if wanted == self._reading or self._half_closed or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
