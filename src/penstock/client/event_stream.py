"""Event streams of the server: parsing their frames, and reconnecting when one is lost.

Bytes go in, split anywhere, and whole frames come out:

>>> parser = FrameParser()
>>> parser.feed(b"retry: 2000\\n\\nid: 7\\nevent: rec")
[]
>>> parser.feed(b'ord\\ndata: {"a":1}\\n\\n: hb\\n\\n')
[Frame(event='record', data=b'{"a":1}', id='7')]
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

import msgspec

from penstock.client.errors import NotPenstock
from penstock.flow.backoff import Backoff
from penstock.kernel.units import MIB
from penstock.protocol.errors import CallError, NotAQueue, ServerUnavailable, ShuttingDown


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
            raise NotPenstock(f"the server sent a frame of more than {self._limit} bytes")
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


class Reconnects:
    """Counts consecutive failures; the back-off's window begins with the first of them.

    The server's `retry:` hint is not used: it is the same for all clients, and would bring all
    clients of a restarted server back at the same moment.
    """

    __slots__ = ("_backoff", "_failures", "_random", "_since_ms", "count", "trouble")

    def __init__(self, backoff: Backoff, random: Random) -> None:
        self._backoff = backoff
        self._random = random
        self._failures = 0
        self._since_ms = 0.0
        self.count = 0
        """Failures since the start."""
        self.trouble: str | None = None
        """Why there is no stream now."""

    def opened(self) -> None:
        """A stream is open; whether it works shows when data arrives."""
        self.trouble = None

    def heard(self) -> None:
        """Data arrived, at least a heartbeat, and no error: the stream works."""
        self._failures = 0

    def failed(self, error: CallError, now_ms: float) -> float | None:
        """The delay before the next try, or None to give up."""
        if not self._failures:
            self._since_ms = now_ms
        self._failures += 1
        self.count += 1
        self.trouble = error.message
        delay_ms = self._backoff.next_ms(
            self._failures, elapsed_ms=now_ms - self._since_ms, random=self._random
        )
        if delay_ms is None:
            return None
        return max(delay_ms, float(getattr(error, "retry_after_ms", None) or 0))


class _Failure(msgspec.Struct):
    code: str | int = ""
    message: str = ""
    error: str = ""
    topic: str = ""


_FAILURE: Final = msgspec.json.Decoder(_Failure)


def stream_error(frame: Frame) -> CallError:
    """The error in an error frame; the server closes the stream after it."""
    try:
        failure = _FAILURE.decode(frame.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotPenstock(
            f"the server sent a malformed error frame: {frame.data[:80]!r}"
        ) from error
    text = failure.message or failure.error or f"the stream ended with {failure.code}"
    if failure.code == "server_shutting_down":
        return ShuttingDown(text)
    if failure.code == 409:
        return NotAQueue.told(text, {"topic": failure.topic})
    return ServerUnavailable(text)
