"""Lengths of HTTP/2 frames, looked at as soon as they come.

The h2 library refuses a frame that is too long only when it has all of it. That would be up to
16 MiB for each connection, so the guard follows the frames and tells from their first bytes. It
also tells how many bytes a few frames are, as very many may come in one read.

>>> guard = FrameGuard(16_384, skip=0)
>>> frame = bytes([0, 0, 2, 0, 0, 0, 0, 0, 1]) + b"ab"
>>> guard.portion(frame * 3, frames_max=2), guard.portion(frame + bytes([1, 0]), frames_max=2)
(22, 13)
>>> guard.portion(bytes([0]), frames_max=2) is None
True
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

    def portion(self, data: bytes, frames_max: int) -> int | None:
        """How many bytes belong to so many frames at the most; None if one of them is too long."""
        place = frames = 0
        while True:
            place += self._skip
            if place >= len(data):
                self._skip = place - len(data)
                return len(data)
            self._skip = 0
            if frames == frames_max:
                return place
            digits = data[place : place + 3 - len(self._length)]
            self._length += digits
            place += len(digits)
            if len(self._length) < 3:
                return len(data)
            length = int.from_bytes(self._length, "big")
            if length > self._frame_bytes_max:
                return None
            self._length = b""
            self._skip = _FRAME_HEAD_BYTES - 3 + length
            frames += 1
