"""A request's head: parsed once by httptools, and remembered, because clients repeat themselves.

A client on a kept-alive connection sends the same head again and again, so a head is looked up by
its bytes before it is parsed. Same bytes, same meaning: nothing of a head depends on the
connection. `bench/bench_http.py` shows what it is worth.
"""

from __future__ import annotations

from typing import Final

import httptools
import msgspec

from penstock.kernel.units import KIB, format_bytes
from penstock.server.message import (
    BadRequest,
    PayloadTooLarge,
    TransportLimits,
    UnsupportedMediaType,
)
from penstock.server.shell.coding import accepts_gzip
from penstock.server.shell.target import split_target

CHUNKED: Final = -1
"""`Head.length` of a body whose length is not known before its end."""

_REMEMBERED_MAX: Final = 1_024
_REMEMBERED_BYTES_MAX: Final = 1 * KIB
_VERSIONS: Final = (b" HTTP/1.1", b" HTTP/1.0")
_SINGLE: Final = frozenset({"host", "content-length", "transfer-encoding"})


class Head(msgspec.Struct, gc=False, eq=False):
    """What a request's head says, as the transport needs it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int
    """Bytes of the body, or `CHUNKED`."""
    keep_alive: bool
    gzip_body: bool
    accepts_gzip: bool
    is_head: bool
    wants_upgrade: bool
    expects_continue: bool
    hot: bool
    """Whether an answer needs nothing but a status, a type and a length."""


class Heads:
    """Parses heads and remembers a bounded number of them by their bytes."""

    def __init__(self, limits: TransportLimits) -> None:
        self._headers_max = limits.headers_max
        self._body_bytes_max = limits.body_bytes_max
        self.known: dict[bytes, Head] = {}

    def parse(self, raw: bytes) -> Head:
        """The meaning of a whole head, blank line included; raises a `Refused`."""
        head = self.known.get(raw)
        if head is not None:
            return head
        head = self.mean(*_fields(raw))
        if len(raw) <= _REMEMBERED_BYTES_MAX and not head.wants_upgrade:
            if len(self.known) >= _REMEMBERED_MAX:
                self.known.clear()
            self.known[raw] = head
        return head

    def mean(
        self, method: str, version: str, target: bytes, fields: list[tuple[bytes, bytes]]
    ) -> Head:
        """The meaning of the parts of a head; raises a `Refused`."""
        head = _meaning(method, version, target, join_headers(fields, self._headers_max))
        if head.length > self._body_bytes_max:
            raise body_too_large(self._body_bytes_max)
        return head


class _Fields:
    """What httptools calls back with while it reads a head."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def _fields(raw: bytes) -> tuple[str, str, bytes, list[tuple[bytes, bytes]]]:
    found = _Fields()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise BadRequest(f"expected an HTTP request, found a bad one: {error}") from None
    line = raw.partition(b"\r\n")[0]
    if not found.complete or line.count(b" ") != 2 or not line.endswith(_VERSIONS):
        raise BadRequest("expected HTTP/1.0, HTTP/1.1 or the preface of HTTP/2")
    return parser.get_method().decode(), line[-3:].decode(), found.target, found.headers


def _meaning(method: str, version: str, target: bytes, headers: dict[str, str]) -> Head:
    path, query = split_target(target)
    if version == "1.1" and "host" not in headers:
        raise BadRequest("expected a Host header, found none")
    options = {option.strip() for option in headers.get("connection", "").lower().split(",")}
    is_head = method == "HEAD"
    keep_alive = "close" not in options and (version == "1.1" or "keep-alive" in options)
    wants_gzip = accepts_gzip(headers.get("accept-encoding", ""))
    return Head(
        method="GET" if is_head else method,
        path=path,
        query=query,
        headers=headers,
        length=_body_length(headers, version),
        keep_alive=keep_alive,
        gzip_body=is_gzip(headers),
        accepts_gzip=wants_gzip,
        is_head=is_head,
        wants_upgrade="upgrade" in options and version == "1.1" and "upgrade" in headers,
        expects_continue=headers.get("expect", "").lower() == "100-continue" and version == "1.1",
        hot=keep_alive and version == "1.1" and not is_head,
    )


def join_headers(fields: list[tuple[bytes, bytes]], headers_max: int) -> dict[str, str]:
    """Headers by lower-case name, repeated ones joined; refuses those that may not repeat."""
    if len(fields) > headers_max:
        raise BadRequest(f"expected at most {headers_max} headers, found {len(fields)}")
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1").strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE:
            raise BadRequest(f"expected one {name} header, found several")
        else:
            headers[name] += ("; " if name == "cookie" else ", ") + value
    return headers


def is_gzip(headers: dict[str, str]) -> bool:
    """Whether the body is compressed; raises `UnsupportedMediaType` if otherwise than by gzip."""
    coding = headers.get("content-encoding", "").lower()
    if coding in ("", "identity"):
        return False
    if coding not in ("gzip", "x-gzip"):
        raise UnsupportedMediaType(f"expected Content-Encoding gzip or none, found {coding!r}")
    return True


def body_too_large(body_bytes_max: int) -> PayloadTooLarge:
    """The refusal of a body over the limit."""
    return PayloadTooLarge(f"expected a body of at most {format_bytes(body_bytes_max)}, found more")


def _body_length(headers: dict[str, str], version: str) -> int:
    coding = headers.get("transfer-encoding")
    if coding is None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise BadRequest(f"expected Content-Length in digits, found {length!r}")
        return int(length)
    if version != "1.1" or coding.lower() != "chunked" or "content-length" in headers:
        raise BadRequest(f"expected Transfer-Encoding chunked alone, found {coding!r}")
    return CHUNKED
