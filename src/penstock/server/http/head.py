"""A request's head: its line, target and headers, parsed once and remembered by their bytes.

>>> split_target(b"/v0/topics/a%3Ab?limit=1")
('/v0/topics/a:b', 'limit=1')
>>> split_target(b"/v0/topics/%ff")
('/v0/topics/%ff', '')
>>> split_target(b"http://example.org?limit=1")
('/', 'limit=1')

A client on a kept-alive connection sends the same headers again and again, and many clients send
the same lines, so both are looked up before they are parsed. Same bytes, same meaning: nothing of
a head depends on the connection. `bench/bench_http.py` shows what it is worth.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_to_bytes

import httptools
import msgspec

from penstock.kernel.units import KIB, format_bytes
from penstock.protocol.errors import (
    CallError,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedMediaType,
)
from penstock.server.http.compression import accepts_gzip
from penstock.server.http.message import USUAL, Sender, TransportLimits
from penstock.server.http.origins import Origins

_PLAIN: Final = re.compile(rb"(/[A-Za-z0-9._~:@/-]*)(?:\?([!-\"$-~]*))?")
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SLASH: Final = re.compile(rb"%2f", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)


def split_target(target: bytes) -> tuple[str, str]:
    """The decoded path and the raw query of an origin-form, absolute-form or `*` target."""
    plain = _PLAIN.fullmatch(target)
    if plain is not None:
        return plain[1].decode(), (plain[2] or b"").decode()
    if b"#" in target:
        raise InvalidRequest("the target has a fragment: leave out '#' and what follows")
    path, _, query = _origin_form(target).partition(b"?")
    return _decode_path(path), _decode(query, "query")


def target_authority(target: bytes) -> bytes:
    """The host and port of an absolute-form target; nothing of any other.

    >>> target_authority(b"http://example.org:80/v0"), target_authority(b"/v0")
    (b'example.org:80', b'')
    """
    absolute = _ABSOLUTE.match(target)
    return absolute[1] if absolute is not None else b""


def _origin_form(target: bytes) -> bytes:
    if target.startswith(b"/") or target == b"*":
        return target
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        raise InvalidRequest("the target is neither a path nor a URL: send one such as /v0/topics")
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _decode_path(path: bytes) -> str:
    """A path without its percent-escapes; unchanged if they are malformed or not UTF-8.

    No topic has such a name; the handler refuses it.
    """
    raw = _decode(path, "path")
    if "%" not in raw or _BAD_ESCAPE.search(path):
        return raw
    # An escaped slash stays escaped: it is part of a name, not a separator.
    try:
        return unquote_to_bytes(_SLASH.sub(b"%252F", path)).decode()
    except UnicodeDecodeError:
        return raw


def _decode(text: bytes, what: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the {what} is not UTF-8") from None


CHUNKED: Final = -1
"""`Terms.length` of a body with unknown length."""

_REMEMBERED_MAX: Final = 2_048
_REMEMBERED_BYTES_MAX: Final = 1 * KIB
_LINE: Final = re.compile(rb"([A-Z]{1,32}) ([!-~]+) HTTP/1\.([01])")
_SINGLE: Final = frozenset({"host", "content-length", "transfer-encoding"})
Overlaps = Callable[[str, str], bool]
"""Whether requests with this method and path need not wait for each other's answers."""


def nothing_overlaps(_method: str, _path: str) -> bool:
    """Every request waits for those before it."""
    return False


class Line(msgspec.Struct, gc=False, eq=False):
    """The parsed request line."""

    method: str
    path: str
    query: str
    is_head: bool
    old: bool
    """Whether it is HTTP/1.0."""
    overlaps: bool = False
    """Whether it may begin while earlier requests that may overlap too are unanswered."""
    authority: bytes = b""
    """The host in the target, which overrides the Host header."""


class Terms(msgspec.Struct, gc=False, eq=False, frozen=True, kw_only=True):
    """A request's headers, and what they mean for its body and its answer."""

    headers: dict[str, str]
    length: int
    """Bytes of the body, or `CHUNKED`."""
    keep_alive: bool
    gzip_body: bool
    accepts_gzip: bool
    wants_upgrade: bool
    expects_continue: bool
    is_head: bool = False
    old: bool = False
    """Whether it is HTTP/1.0."""
    hot: bool = False
    """Whether it is a plain HTTP/1.1 request, whose answer needs only a status, type and length."""
    sender: Sender = USUAL
    """What the headers say about the sender."""
    family: str = ""
    """The headers without the body's length: one shared object for heads that differ only in it."""


REFUSED_TERMS: Final = Terms(
    headers={},
    length=0,
    keep_alive=True,
    gzip_body=False,
    accepts_gzip=False,
    wants_upgrade=False,
    expects_continue=False,
)
"""The terms of a request that could not be parsed."""


class Heads:
    """Parses request lines and headers, with a bounded cache of each, keyed by their bytes."""

    def __init__(
        self,
        limits: TransportLimits,
        overlaps: Overlaps = nothing_overlaps,
        origins: Origins | None = None,
    ) -> None:
        self._overlaps = overlaps
        self._origins = origins or Origins()
        self._headers_max = limits.headers_max
        self._body_bytes_max = limits.body_bytes_max
        self.lines: dict[bytes, Line] = {}
        """Lines of HTTP/1.1 requests other than HEAD."""
        self.terms: dict[bytes, Terms] = {}
        """Headers of HTTP/1.1 requests, from the byte after the line to the blank line's end."""

    def parse(self, raw: bytes) -> tuple[Line, Terms]:
        """Parse a complete head, including the blank line; raises a `CallError`."""
        end = raw.find(b"\r\n")
        line = self.lines.get(raw[:end])
        if line is None:
            line = self._read_line(raw[:end])
        terms = self.terms.get(raw[end + 2 :]) if not line.authority else None
        if terms is None:
            terms = self._read_terms(raw[end + 2 :], line.authority)
        if not line.old and not line.is_head:
            if not terms.hot:
                _check_host(terms)
            return line, terms
        return line, _adapt(line, terms)

    def mean(self, fields: list[tuple[bytes, bytes]]) -> Terms:
        """Interpret headers; raises a `CallError`."""
        headers = join_headers(fields, self._headers_max)
        sender = self._origins.sender(headers)
        try:
            terms = _meaning(headers, sender)
        except CallError as refused:
            refused.headers = (*refused.headers, *sender.cors)
            raise
        if terms.hot and terms.length > self._body_bytes_max:
            return msgspec.structs.replace(terms, hot=False)
        return terms

    def check_length(self, terms: Terms) -> None:
        """Refuse a body whose declared length is over the limit."""
        if terms.length > self._body_bytes_max:
            limit = format_bytes(self._body_bytes_max)
            raise PayloadTooLarge(
                f"the body has {terms.length} bytes; at most {limit} are accepted"
            )

    def _read_line(self, raw: bytes) -> Line:
        match = _LINE.fullmatch(raw)
        if match is None:
            raise InvalidRequest(
                "malformed request line: send one such as GET /v0/topics HTTP/1.1, "
                "or the preface of HTTP/2"
            )
        method, target, minor = match.groups()
        path, query = split_target(target)
        named = target_authority(target)
        is_head = method == b"HEAD"
        name = "GET" if is_head else method.decode()
        line = Line(name, path, query, is_head, minor == b"0", self._overlaps(name, path), named)
        if not (is_head or line.old or named) and len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(self.lines) >= _REMEMBERED_MAX:
                self.lines.clear()
            self.lines[raw] = line
        return line

    def _read_terms(self, raw: bytes, named: bytes = b"") -> Terms:
        fields = _fields(raw)
        if named:
            others = [field for field in fields if field[0].lower() != b"host"]
            return self.mean([*others, (b"host", named)])
        terms = self.mean(fields)
        if len(raw) <= _REMEMBERED_BYTES_MAX and not terms.wants_upgrade:
            if len(self.terms) >= _REMEMBERED_MAX:
                self.terms.clear()
            self.terms[raw] = terms
        return terms


class _Fields:
    """The callbacks of httptools for headers."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.complete = True


def _fields(raw: bytes) -> list[tuple[bytes, bytes]]:
    """Headers as sent; httptools refuses ambiguous or malformed ones."""
    found = _Fields()
    try:
        httptools.HttpRequestParser(found).feed_data(b"POST / HTTP/1.1\r\n" + raw)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError as error:
        raise InvalidRequest(f"malformed HTTP request: {error}") from None
    if not found.complete:
        raise InvalidRequest("malformed HTTP request: its headers do not end")
    return found.headers


def _meaning(headers: dict[str, str], sender: Sender) -> Terms:
    options: tuple[str, ...] = ()
    if "connection" in headers:
        options = tuple(each.strip() for each in headers["connection"].lower().split(","))
    keep_alive = "close" not in options
    wants_upgrade = "upgrade" in options and "upgrade" in headers
    return Terms(
        headers=headers,
        length=_body_length(headers),
        keep_alive=keep_alive,
        gzip_body=is_gzip(headers),
        accepts_gzip=accepts_gzip(headers.get("accept-encoding", "")),
        wants_upgrade=wants_upgrade,
        expects_continue=headers.get("expect", "").lower() == "100-continue",
        hot=keep_alive and "host" in headers and not wants_upgrade and sender is USUAL,
        sender=sender,
        family="\n".join(f"{k}:{v}" for k, v in headers.items() if k != "content-length"),
    )


def _adapt(line: Line, terms: Terms) -> Terms:
    """The terms of a HEAD request or an HTTP/1.0 one."""
    if not line.old:
        _check_host(terms)
    elif terms.length == CHUNKED:
        raise InvalidRequest("HTTP/1.0 has no Transfer-Encoding: send Content-Length")
    asked = "keep-alive" in terms.headers.get("connection", "").lower()
    return msgspec.structs.replace(
        terms,
        keep_alive=terms.keep_alive and (asked or not line.old),
        wants_upgrade=terms.wants_upgrade and not line.old,
        expects_continue=terms.expects_continue and not line.old,
        is_head=line.is_head,
        old=line.old,
        hot=False,
    )


def _check_host(terms: Terms) -> None:
    if "host" not in terms.headers:
        raise InvalidRequest("the Host header is missing")


def join_headers(fields: list[tuple[bytes, bytes]], headers_max: int) -> dict[str, str]:
    """Headers by lower-case name, repeated ones joined; refuses repeats that are not allowed."""
    if len(fields) > headers_max:
        raise InvalidRequest(f"{len(fields)} headers are too many: send at most {headers_max}")
    headers: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1").strip(" \t")
        if name not in headers:
            headers[name] = value
        elif name in _SINGLE:
            raise InvalidRequest(f"there are several {name} headers: send one")
        else:
            headers[name] += ("; " if name == "cookie" else ", ") + value
    return headers


def is_gzip(headers: dict[str, str]) -> bool:
    """Whether the body is gzip; raises `UnsupportedMediaType` for any other encoding."""
    coding = headers.get("content-encoding", "").lower()
    if coding in ("", "identity"):
        return False
    if coding not in ("gzip", "x-gzip"):
        raise UnsupportedMediaType(f"Content-Encoding must be gzip, or absent, not {coding!r}")
    return True


def _body_length(headers: dict[str, str]) -> int:
    coding = headers.get("transfer-encoding")
    if coding is None:
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise InvalidRequest(f"Content-Length must be digits, not {length!r}")
        return int(length)
    if coding.lower() != "chunked" or "content-length" in headers:
        raise InvalidRequest(f"Transfer-Encoding must be chunked alone, not {coding!r}")
    return CHUNKED
