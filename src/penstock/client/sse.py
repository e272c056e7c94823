"""Server-sent events: bytes in, split anywhere, and whole frames out.

>>> parser = FrameParser()
>>> parser.feed(b"retry: 2000\\n\\nid: 7\\nevent: rec")
[]
>>> parser.feed(b'ord\\ndata: {"a":1}\\n\\n: hb\\n\\n')
[Frame(event='record', data=b'{"a":1}', id='7')]
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.errors import NotPenstock
from penstock.kernel.units import MIB


class Frame(NamedTuple):
    """One event. `id` is empty if the frame has none."""

    event: str
    data: bytes
    id: str


class FrameParser:
    """Splits a stream into frames; skips comments and the server's retry hint.

    `frame_bytes_max` limits the size of a frame. A frame that the end of the stream cuts off is
    never returned.
    """

    __slots__ = ("_data", "_event", "_id", "_limit", "_pieces", "_size", "works")

    def __init__(self, frame_bytes_max: int = 64 * MIB) -> None:
        self._limit = frame_bytes_max
        self._pieces: list[bytes] = []
        self._data: list[bytes] = []
        self._event = ""
        self._id = ""
        self._size = 0
        self.works = False
        """Whether a heartbeat or a non-error event has arrived; the retry hint does not count."""

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes; returns the frames that they complete."""
        frames: list[Frame] = []
        if b"\n" in data:
            lines = b"".join((*self._pieces, data)).split(b"\n")
            self._pieces = [lines.pop()]
            for line in lines:
                self._line(line[:-1] if line.endswith(b"\r") else line, frames)
        else:
            self._pieces.append(data)  # joined once, when the line ends
        if self._size + sum(map(len, self._pieces)) > self._limit:
            raise NotPenstock(
                f"expected a frame of at most {self._limit} bytes, found a longer one"
            )
        return frames

    def _line(self, line: bytes, frames: list[Frame]) -> None:
        if not line:
            if self._data:
                self.works = self.works or self._event != "error"
                frames.append(Frame(self._event, b"\n".join(self._data), self._id))
            self._data, self._event, self._id, self._size = [], "", "", 0
            return
        self._size += len(line)
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not name:
            self.works = True
        elif name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            self._id = value.decode(errors="replace")
