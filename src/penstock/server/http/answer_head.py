"""Heads of answers: cached for each status and type, with the date of the current second.

>>> heads = AnswerHeads()
>>> heads.turn(0.0)
>>> heads.head(204, b"text/plain").decode()
'HTTP/1.1 204 No Content\\r\\nDate: Thu, 01 Jan 1970 00:00:00 GMT\\r\\n'
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.server.http.message import JSON, Headers

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
            raise Rejected(
                f"expected a header without control characters, found {name!r}: {value!r}"
            )


def _reason(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b"Unknown"
