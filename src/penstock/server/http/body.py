"""The body of an HTTP/1.1 request while it comes in."""

from __future__ import annotations

from penstock.kernel.units import format_bytes
from penstock.protocol.errors import PayloadTooLarge
from penstock.server.http.chunks import Chunks
from penstock.server.http.head import CHUNKED, Line, Terms
from penstock.server.http.pace import Pace
from penstock.server.http.service import Service


class Body:
    """Collects a body, of a known length or chunked; refuses it as soon as it is too large."""

    def __init__(self, line: Line, terms: Terms, service: Service) -> None:
        limits = service.limits
        self.line = line
        self.terms = terms
        self.size = 0
        self.has_more = False
        """Whether `take` left something in the buffer that it can go on with."""
        self.pace = Pace(service.now_s)
        self._left = terms.length
        self._chunks = Chunks(limits.head_bytes_max) if terms.length == CHUNKED else None
        self._bytes_max = limits.body_bytes_max
        # One array, not a list of parts: many small parts would weigh more than their bytes.
        self._content = bytearray()

    def take(self, buffer: bytearray) -> bool:
        """Move what belongs to the body off the front of a buffer; True when it is whole."""
        if self._chunks is None:
            return self._take_known(buffer)
        whole = self._chunks.take(buffer, self._content)
        if len(self._content) > self._bytes_max:
            limit = format_bytes(self._bytes_max)
            raise PayloadTooLarge(f"expected a body of at most {limit}, found more")
        self.size = len(self._content)
        self.has_more = self._chunks.has_more
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
