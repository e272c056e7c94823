"""Gzip, both ways: answers for clients that accept it, and request bodies.

>>> accepts_gzip("br, gzip;q=0.5"), accepts_gzip("gzip;q=0"), accepts_gzip("*"), accepts_gzip("")
(True, False, True, False)

Request bodies are inflated step by step and never beyond the limit.
"""

from __future__ import annotations

import zlib
from typing import Final

from penstock.kernel.units import KIB, MIB, format_bytes
from penstock.protocol.errors import InvalidRequest, PayloadTooLarge

GZIP_ABOVE_BYTES: Final = 1 * KIB
"""Answers up to this size are not compressed."""
COMPRESS_IN_THREAD_ABOVE_BYTES: Final = 128 * KIB

GZIP_WINDOW: Final = 31  # a gzip header and trailer, largest window
_FAST: Final = 1


def compress(body: bytes) -> bytes:
    """Compress a body with gzip, for speed rather than size."""
    return zlib.compress(body, _FAST, GZIP_WINDOW)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip; `q=0` forbids it."""
    if not accept_encoding:
        return False
    qualities = dict(_quality(item) for item in accept_encoding.lower().split(","))
    return qualities.get("gzip", qualities.get("x-gzip", qualities.get("*", 0.0))) > 0.0


def _quality(item: str) -> tuple[str, float]:
    coding, _, parameter = item.partition(";")
    name, _, value = parameter.partition("=")
    if name.strip() != "q":
        return coding.strip(), 1.0
    try:
        return coding.strip(), float(value)
    except ValueError:
        return coding.strip(), 0.0


STEP_BYTES: Final = 1 * MIB
"""The output limit of one step, so that one body does not block the event loop."""
MEMBERS_MAX: Final = 1_024

_SLICE_BYTES: Final = 64 * KIB


class Inflation:
    """Inflates one body; call `step` until it returns the whole body."""

    def __init__(self, body: bytes, body_bytes_max: int) -> None:
        self.size = 0
        self._body = memoryview(body)
        self._place = 0
        self._bytes_max = body_bytes_max
        self._inflator = zlib.decompressobj(GZIP_WINDOW)
        self._members = 1
        self._parts: list[bytes] = []

    def step(self) -> bytes | None:
        """Inflate a little more; returns the whole body when done, else None."""
        # One slice at a time, because zlib copies the unconsumed input.
        piece = self._body[self._place : self._place + _SLICE_BYTES]
        try:
            part = self._inflator.decompress(piece, STEP_BYTES)
        except zlib.error as error:
            raise InvalidRequest(f"the body is not valid gzip: {error}") from None
        if self.size + len(part) > self._bytes_max:
            limit = format_bytes(self._bytes_max)
            raise PayloadTooLarge(f"the inflated body is larger than {limit}")
        self._parts.append(part)
        self.size += len(part)
        inflator = self._inflator
        left = inflator.unused_data if inflator.eof else inflator.unconsumed_tail
        self._place += len(piece) - len(left)
        at_end = self._place == len(self._body)
        if inflator.eof and at_end:
            return b"".join(self._parts)
        if inflator.eof:
            self._next_member()
        elif at_end and len(part) < STEP_BYTES:
            raise InvalidRequest("the gzip body is cut off")
        return None

    def _next_member(self) -> None:
        # A gzip file is a sequence of members; after the last one there must be no more bytes.
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise InvalidRequest(f"the gzip body has more than {MEMBERS_MAX} members")
        self._inflator = zlib.decompressobj(GZIP_WINDOW)
