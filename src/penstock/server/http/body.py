"""The body of an HTTP/1.1 request while it arrives. Chunks are parsed strictly.

Penstock parses chunks itself, rather than with httptools, so that it can stop at the end of a body
and look at the next request only when there is room for it.
"""

from __future__ import annotations

import re
from typing import Final, cast

from penstock.kernel.units import format_bytes
from penstock.protocol.errors import CallError, InvalidRequest, PayloadTooLarge
from penstock.server.http.budget import Pace, Waiter
from penstock.server.http.compression import Inflation
from penstock.server.http.head import CHUNKED, Line, Terms
from penstock.server.http.message import TransportLimits
from penstock.server.http.service import Service

_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
_LINE_BYTES_MAX: Final = 4_096
PARTS_AT_ONCE: Final = 192
"""How many chunk lines and pieces of chunks one call parses, for fairness."""


class Chunks:
    """Takes a chunked body off the front of a buffer; partial chunks are taken as they arrive."""

    def __init__(self, trailer_bytes_max: int) -> None:
        self._left = 0
        self._between = False
        self._trailing = False
        self._trailer_bytes_left = trailer_bytes_max
        self.has_more = False
        """Whether the buffer holds more than one call takes."""

    def take(self, buffer: bytearray, body: bytearray) -> bool:
        """Move the available part of the body from the buffer to the body; True at its end.

        If there are very many chunks, it takes only some of them and sets `has_more`.
        """
        self.has_more = False
        for _ in range(PARTS_AT_ONCE):
            if not buffer:
                return False
            if self._left:
                self._take_data(buffer, body)
            else:
                line = self._take_line(buffer)
                if line is None:
                    return False
                if self._read_line(line):
                    return True
        self.has_more = bool(buffer)
        return False

    def _take_data(self, buffer: bytearray, body: bytearray) -> None:
        part = buffer[: self._left]
        del buffer[: self._left]
        body += part
        self._left -= len(part)
        self._between = self._left == 0

    def _take_line(self, buffer: bytearray) -> bytes | None:
        end = buffer.find(b"\n", 0, _LINE_BYTES_MAX)
        if self._between and not b"\r\n".startswith(buffer[:2]):
            raise InvalidRequest("a chunk is longer than its size says")
        if end < 0:
            if len(buffer) >= _LINE_BYTES_MAX:
                raise InvalidRequest(f"the line of a chunk is longer than {_LINE_BYTES_MAX} bytes")
            return None
        if end == 0 or buffer[end - 1] != 13:
            raise InvalidRequest("a line between chunks does not end with CR LF")
        line = bytes(buffer[: end - 1])
        del buffer[: end + 1]
        return line

    def _read_line(self, line: bytes) -> bool:
        if self._between:
            self._between = False
            return False
        if self._trailing:
            return self._read_trailer(line)
        size = _SIZE_LINE.fullmatch(line)
        if size is None:
            raise InvalidRequest("the size of a chunk is not in hexadecimal digits")
        self._left = int(size[1], 16)
        self._trailing = self._left == 0
        return False

    def _read_trailer(self, line: bytes) -> bool:
        self._trailer_bytes_left -= len(line)
        if self._trailer_bytes_left < 0 or (line and not _TRAILER_LINE.fullmatch(line)):
            raise InvalidRequest("the trailers after the last chunk are malformed or too long")
        return not line


class Body:
    """A body of known length or in chunks, from its head until its request begins.

    It is refused as soon as it is too large. Its bytes, compressed and inflated, count against the
    budget of all connections; when `waits` is set, its reader must wait for `resume_body`.
    """

    __slots__ = (
        "_budget", "_bytes_max", "_chunks", "_content", "_held_bytes", "_inflation", "_left",
        "_reader", "has_more", "line", "owes_continue", "pace", "size", "terms", "waits",
    )  # fmt: skip

    def __init__(self, line: Line, terms: Terms, service: Service, reader: Waiter) -> None:
        limits = service.limits
        self.line = line
        self.terms = terms
        self.size = 0
        self.has_more = False
        """Whether `take` left bytes in the buffer that it can continue with."""
        self.waits = False
        self.owes_continue = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self.pace = Pace(service.now_s)
        self._reader = reader
        self._budget = service.budget
        self._held_bytes = 0
        self._inflation: Inflation | None = None
        self._left = terms.length
        self._chunks = Chunks(limits.head_bytes_max) if terms.length == CHUNKED else None
        self._bytes_max = limits.body_bytes_max
        # One array, not a list of parts: many small parts would need more memory than their bytes.
        self._content = bytearray()

    @property
    def is_inflating(self) -> bool:
        """Whether it has arrived and is being inflated."""
        return self._inflation is not None

    def take(self, buffer: bytearray) -> bool:
        """Move the body's bytes off the front of a buffer; True when the body has arrived."""
        before = self.size
        whole = self._take_known(buffer) if self._chunks is None else self._take_chunks(buffer)
        self.waits = not self._count(self.size - before) and not whole
        return whole

    def begin_inflating(self) -> None:
        """It has arrived and is gzip."""
        self._inflation = Inflation(self.content(), self._bytes_max)
        self._content = bytearray()

    def inflate(self) -> bytes | None:
        """Inflate a little; the whole body at its end, otherwise None."""
        inflation = self._inflation
        assert inflation is not None, "begin_inflating was called"
        before = inflation.size
        content = inflation.step()
        self.waits = not self._count(inflation.size - before) and content is None
        return content

    def end(self, content: bytes | None) -> None:
        """Release its bytes: it is complete and passed on, or abandoned."""
        self._budget.finish(self._reader, content)
        self._budget.give(self._held_bytes, None)
        self._held_bytes = 0

    def too_slow(self, now_s: float, limits: TransportLimits) -> CallError | None:
        """Why it is refused if it arrives too slowly."""
        return self._budget.too_slow(self.pace, self.size, now_s, limits)

    def _count(self, size: int) -> bool:
        self._held_bytes += size
        return self._budget.take(self._reader, size)

    def _take_chunks(self, buffer: bytearray) -> bool:
        chunks = cast(Chunks, self._chunks)
        whole = chunks.take(buffer, self._content)
        if len(self._content) > self._bytes_max:
            limit = format_bytes(self._bytes_max)
            raise PayloadTooLarge(f"the body is larger than {limit}")
        self.size = len(self._content)
        self.has_more = chunks.has_more
        return whole

    def content(self) -> bytes:
        """The whole body."""
        return bytes(self._content)

    def _take_known(self, buffer: bytearray) -> bool:
        if len(buffer) > self._left:
            self._content += buffer[: self._left]
            del buffer[: self._left]
        else:
            self._content += buffer
            buffer.clear()
        self._left -= len(self._content) - self.size
        self.size = len(self._content)
        return self._left == 0
