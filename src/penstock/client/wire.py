"""HTTP/1.1 without a socket: a request becomes bytes, and bytes become answers.

>>> encode_request("GET", "/v0/health", "Host: a\\r\\n", b"")
b'GET /v0/health HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'
>>> reader = AnswerReader(answer_bytes_max=1_000)
>>> reader.feed(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nh")
>>> reader.complete
False
>>> reader.feed(b"i")
>>> reader.take()
HttpAnswer(status=200, headers={'content-length': '2'}, body=b'hi')
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Final, NamedTuple

import httptools

from penstock.client.errors import NotPenstock
from penstock.client.settings import ClientSettings
from penstock.kernel.units import KIB

_DIRECT_BYTES_MIN: Final = 256 * KIB
"""If this much of a body is still to come, it is received directly into its final buffer."""
_GZIP_LEVEL: Final = 1
"""Fast rather than small: it saves network, not disk."""


class HttpAnswer(NamedTuple):
    """A whole answer; header names in lower case, the body decompressed."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpRequest(NamedTuple):
    """A request as calls make it. `headers` are lines, each with its line end."""

    method: str
    target: str
    body: bytes = b""
    headers: str = ""


class RequestEncoder:
    """Encodes requests to one server."""

    __slots__ = ("_common", "_gzip_bytes_min", "_path")

    def __init__(self, settings: ClientSettings) -> None:
        address = settings.address
        lines = [f"Host: {address.authority}", "User-Agent: penstock-python"]
        if settings.api_key is not None:
            lines.append(f"Authorization: Bearer {settings.api_key}")
        if settings.compresses:
            lines.append("Accept-Encoding: gzip")
        self._common = "".join(f"{line}\r\n" for line in lines)
        self._path = address.path
        self._gzip_bytes_min = settings.gzip_bytes_min if settings.compresses else None

    def encode(self, request: HttpRequest) -> bytes:
        """The bytes of one request, its body compressed where that pays off."""
        method, target, body, headers = request
        if body:
            headers += "Content-Type: application/json\r\n"
            if self._gzip_bytes_min is not None and len(body) >= self._gzip_bytes_min:
                body = gzip.compress(body, _GZIP_LEVEL)
                headers += "Content-Encoding: gzip\r\n"
        return encode_request(method, self._path + target, self._common + headers, body)


def encode_request(method: str, target: str, headers: str, body: bytes) -> bytes:
    """The bytes of a request; one without a body states length 0 where required."""
    if body or method in ("POST", "PUT"):
        headers = f"{headers}Content-Length: {len(body)}\r\n"
    return f"{method} {target} HTTP/1.1\r\n{headers}\r\n".encode("latin-1") + body


class AnswerReader:
    """Reads the answers of one connection, one after the other.

    `head_complete`, then `complete`; `take` returns the whole answer, `take_body` the part received
    so far of a stream. Bytes that are not HTTP, or more than the limit, raise `NotPenstock`.
    """

    __slots__ = (
        "_chunks", "_limit", "_parser", "_room", "_started", "body_bytes", "complete",
        "head_complete", "headers", "keep_alive", "status",
    )  # fmt: skip

    def __init__(self, answer_bytes_max: int) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._limit = answer_bytes_max
        self._reset()

    def _reset(self) -> None:
        self._chunks: list[bytes] = []
        self._room: bytearray | None = None
        self._started = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body_bytes = 0
        self.keep_alive = True
        self.head_complete = False
        self.complete = False

    @property
    def started(self) -> bool:
        """Whether any byte of the answer has arrived."""
        return self._started

    def feed(self, data: bytes) -> None:
        """Process the next bytes of the connection."""
        if self.complete:
            raise NotPenstock(f"the server sent more after its answer: {data[:80]!r}")
        self._started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise NotPenstock("the server upgraded the protocol instead of answering") from None
        except httptools.HttpParserError as error:
            raise NotPenstock(f"the server does not answer in HTTP: {data[:80]!r}") from error
        if self.body_bytes > self._limit:
            raise NotPenstock(
                f"the answer is longer than {self._limit} bytes; raise answer_bytes_max"
            )

    def room(self) -> memoryview | None:
        """The buffer for the rest of a large body; None if bytes are to be fed.

        Each byte is copied once instead of three times. After this only `filled` may be called.
        """
        if self._room is None:
            length = self._length()
            if length - self.body_bytes < _DIRECT_BYTES_MIN or self.complete:
                return None
            self._room = bytearray(length)
            self._room[: self.body_bytes] = b"".join(self._chunks)
        return memoryview(self._room)[self.body_bytes :]

    def filled(self, count: int) -> None:
        """This many bytes were received into the buffer."""
        assert self._room is not None, "there was room"
        self.body_bytes += count
        if self.body_bytes == len(self._room):
            self.complete = True
            self._parser = httptools.HttpResponseParser(self)  # the old one still expects them

    def _length(self) -> int:
        """The length of the body, 0 if unknown."""
        if not self.head_complete or self._chunked:
            return 0
        length = int(self.headers.get("content-length", 0))
        if length > self._limit:
            raise NotPenstock(
                f"the answer has {length} bytes, more than answer_bytes_max ({self._limit})"
            )
        return length

    def end(self) -> None:
        """The connection ended, which completes an answer without a length."""
        headers = self.headers
        if self.head_complete and "content-length" not in headers and not self._chunked:
            self.complete = True
        self.keep_alive = False

    @property
    def _chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    def take(self) -> HttpAnswer:
        """The whole answer; the next bytes belong to the next one."""
        body: Any = self._room  # reads like bytes, and is not worth a copy
        if body is None:
            body = b"".join(self._chunks) if len(self._chunks) != 1 else self._chunks[0]
        if self.headers.get("content-encoding", "").lower() == "gzip":
            body = _inflate(body, self._limit)
        answer = HttpAnswer(self.status, self.headers, body)
        self._reset()
        return answer

    def take_body(self) -> bytes:
        """The part of the body received since the last call."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        self.body_bytes = 0
        return body

    # Called by the parser. Bytes after the answer in the same read do not belong to it.

    def on_message_begin(self) -> None:
        if self.complete:
            self.keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.complete:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()
        self.head_complete = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if self.complete:
            return
        self._chunks.append(body)
        self.body_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim answer: the real one follows
            self._reset()
            self._started = True
        else:
            self.complete = True


def _inflate(body: bytes | bytearray, limit: int) -> bytes:
    inflater: Any = zlib.decompressobj(wbits=31)
    try:
        plain: bytes = inflater.decompress(body, limit)
    except zlib.error as error:
        raise NotPenstock(f"the answer is not valid gzip: {error}") from error
    if not inflater.eof:
        raise NotPenstock(
            f"the gzip answer is cut off, or has more than answer_bytes_max ({limit}) bytes"
        )
    return plain
