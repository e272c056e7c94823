"""Lengths of HTTP/2 frames, looked at as soon as they come.

The h2 library refuses a frame that is too long only when it has all of it. That would be up to
16 MiB for each connection, so the guard follows the frames and tells from their first bytes.

>>> guard = FrameGuard(16_384, skip=0)
>>> guard.allows(bytes([0, 0, 2, 0, 0, 0, 0, 0, 1]) + b"ab"), guard.allows(bytes([1, 0]))
(True, True)
>>> guard.allows(bytes([0]))
False
"""

from __future__ import annotations

from typing import Final

_FRAME_HEAD_BYTES: Final = 9


class FrameGuard:
    """Follows the frames of one connection through reads that are cut anywhere."""

    def __init__(self, frame_bytes_max: int, *, skip: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._skip = skip
        self._length = b""
        """The digits of the next frame's length that came so far."""

    def allows(self, data: bytes) -> bool:
        """Whether every frame that begins in these bytes is short enough."""
        place = 0
        while True:
            place += self._skip
            if place >= len(data):
                self._skip = place - len(data)
                return True
            self._skip = 0
            digits = data[place : place + 3 - len(self._length)]
            self._length += digits
            place += len(digits)
            if len(self._length) < 3:
                return True
            length = int.from_bytes(self._length, "big")
            if length > self._frame_bytes_max:
                return False
            self._length = b""
            self._skip = _FRAME_HEAD_BYTES - 3 + length
