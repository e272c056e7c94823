"""Gzip request bodies, inflated step by step and never beyond the limit."""

from __future__ import annotations

import zlib
from typing import Final

from penstock.kernel.units import MIB, format_bytes
from penstock.server.message import BadRequest, PayloadTooLarge
from penstock.server.shell.coding import GZIP_WINDOW

INFLATE_STEP_BYTES: Final = 1 * MIB
"""What one step may make, so that the loop is not held up by one body."""


class Inflation:
    """Inflates one body; `step` until it returns the whole."""

    def __init__(self, body: bytes, body_bytes_max: int) -> None:
        self._rest = body
        self._bytes_max = body_bytes_max
        self._inflator = zlib.decompressobj(GZIP_WINDOW)
        self._parts: list[bytes] = []
        self.size = 0

    def step(self) -> bytes | None:
        """Inflate a little more: the whole body when it is done, else None."""
        try:
            part = self._inflator.decompress(self._rest, INFLATE_STEP_BYTES)
        except zlib.error as error:
            raise BadRequest(f"expected a gzip body, found a broken one: {error}") from None
        if self.size + len(part) > self._bytes_max:
            limit = format_bytes(self._bytes_max)
            raise PayloadTooLarge(f"expected a body of at most {limit}, found more when inflated")
        self._parts.append(part)
        self.size += len(part)
        self._rest = self._inflator.unconsumed_tail
        if self._inflator.eof:
            return self._next_member()
        if not self._rest and len(part) < INFLATE_STEP_BYTES:
            raise BadRequest("expected a gzip body, found its beginning only")
        return None

    def _next_member(self) -> bytes | None:
        # A gzip file is a row of members; what follows the last must be another or nothing.
        self._rest = self._inflator.unused_data
        if not self._rest:
            return b"".join(self._parts)
        self._inflator = zlib.decompressobj(GZIP_WINDOW)
        return None
