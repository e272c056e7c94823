"""Server-sent events read from a raw socket, by a parser that knows only the SSE standard."""

from __future__ import annotations

import http.client
import io
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

from tests.conformance.wire import DEADLINE_S, Address, Answer


class Ended(Exception):
    """The server closed the stream."""


@dataclass
class Frame:
    """One event, with its lines as they came (without line ends)."""

    lines: list[str] = field(default_factory=list)

    @property
    def is_comment(self) -> bool:
        return bool(self.lines) and all(line.startswith(":") for line in self.lines)

    def values(self, name: str) -> list[str]:
        found = []
        for line in self.lines:
            key, colon, value = line.partition(":")
            if colon and key == name:
                found.append(value.removeprefix(" "))
        return found

    @property
    def event(self) -> str | None:
        return next(iter(self.values("event")), None)

    @property
    def id(self) -> str | None:
        return next(iter(self.values("id")), None)

    @property
    def text(self) -> str:
        return "\n".join(self.values("data"))

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class EventStream:
    """A GET whose answer is read frame by frame. Use it in a `with`."""

    def __init__(
        self,
        address: Address,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        accept: str | None = "text/event-stream",
    ) -> None:
        self._socket = socket.create_connection(address, timeout=DEADLINE_S)
        self._inbox = b""
        self._chunked = False
        self._text = b""
        self._over = False
        lines = [f"GET {path} HTTP/1.1", f"Host: {address.host}:{address.port}"]
        if accept is not None:
            lines.append(f"Accept: {accept}")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        try:
            self.status, self.headers = self._head()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def answer(self) -> Answer:
        """The whole body of an answer that is no stream."""
        length = int(self.headers.get("Content-Length") or 0)
        end = time.monotonic() + DEADLINE_S
        while len(self._inbox) < length:
            self._receive(end)
        return Answer(self.status, self.headers, self._inbox[:length])

    def frame(self, deadline_s: float = DEADLINE_S) -> Frame:
        """The next frame of any kind, comments too. Raises `TimeoutError` or `Ended`."""
        end = time.monotonic() + deadline_s
        while b"\n\n" not in self._text:
            if not self._unwrap():
                self._receive(end)
        raw, self._text = self._text.split(b"\n\n", 1)
        return Frame(raw.decode().split("\n"))

    def next(self, event: str | None = None, deadline_s: float = DEADLINE_S) -> Frame:
        """The next frame with an event; it must be `event` if that is given."""
        end = time.monotonic() + deadline_s
        while True:
            frame = self.frame(max(0.0, end - time.monotonic()))
            if frame.event is not None:
                assert event is None or frame.event == event, frame.lines
                return frame

    def until(self, event: str, deadline_s: float = DEADLINE_S) -> list[Frame]:
        """All frames with an event up to and with the first of this kind."""
        end = time.monotonic() + deadline_s
        found = [self.next(None, deadline_s)]
        while found[-1].event != event:
            found.append(self.next(None, max(0.0, end - time.monotonic())))
        return found

    def records(self, count: int, deadline_s: float = DEADLINE_S) -> list[dict[str, Any]]:
        """The first `count` records of all record frames to come."""
        end = time.monotonic() + deadline_s
        found: list[dict[str, Any]] = []
        while len(found) < count:
            frame = self.next(None, max(0.0, end - time.monotonic()))
            if frame.event == "record":
                found += frame.data["records"]
        return found

    def rest(self, deadline_s: float = DEADLINE_S) -> list[Frame]:
        """All frames with an event until the server closes the stream."""
        return list(self._rest(time.monotonic() + deadline_s))

    def _rest(self, end: float) -> Iterator[Frame]:
        while True:
            try:
                frame = self.frame(max(0.0, end - time.monotonic()))
            except Ended:
                return
            if frame.event is not None:
                yield frame

    def _head(self) -> tuple[int, http.client.HTTPMessage]:
        end = time.monotonic() + DEADLINE_S
        while b"\r\n\r\n" not in self._inbox:
            self._receive(end)
        head, self._inbox = self._inbox.split(b"\r\n\r\n", 1)
        status_line, _, fields = head.partition(b"\r\n")
        headers = http.client.parse_headers(io.BytesIO(fields + b"\r\n\r\n"))
        self._chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        return int(status_line.split()[1]), headers

    def _receive(self, end: float) -> None:
        if self._over:
            raise Ended
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("nothing came within the deadline")
        self._socket.settimeout(left)
        try:
            received = self._socket.recv(65536)
        except ConnectionResetError:
            received = b""
        if not received:
            self._over = True
            raise Ended
        self._inbox += received

    def _unwrap(self) -> bool:
        """Move what has arrived into the text; whether there was anything."""
        if not self._chunked:
            moved = bool(self._inbox)
            self._text += self._inbox
            self._inbox = b""
            return moved
        size_text, found, rest = self._inbox.partition(b"\r\n")
        if not found:
            return False
        size = int(size_text.split(b";")[0], 16)
        if len(rest) < size + 2:
            return False
        if size == 0:
            self._over = True
            raise Ended
        self._text += rest[:size]
        self._inbox = rest[size + 2 :]
        return True


@dataclass
class Dispatched:
    """What an EventSource would hand to a page."""

    type: str
    data: str
    last_event_id: str


class EventSource:
    """The parser of the HTML standard, fed with bytes: lines, fields, dispatch.

    Written from the standard alone and not shared with `EventStream`, so that a frame which only
    one lenient reader understands is found.
    """

    def __init__(self) -> None:
        self.retry_ms: int | None = None
        self._pending = ""
        self._data: list[str] = []
        self._type = ""
        self._id = ""

    def feed(self, chunk: bytes) -> list[Dispatched]:
        self._pending += chunk.decode()
        found = []
        while (cut := self._line_end()) is not None:
            line, self._pending = self._pending[: cut[0]], self._pending[cut[1] :]
            event = self._line(line)
            if event is not None:
                found.append(event)
        return found

    def _line_end(self) -> tuple[int, int] | None:
        for index, char in enumerate(self._pending):
            if char == "\n":
                return index, index + 1
            if char == "\r":
                if index + 1 == len(self._pending):
                    return None
                return index, index + (2 if self._pending[index + 1] == "\n" else 1)
        return None

    def _line(self, line: str) -> Dispatched | None:
        if line == "":
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Dispatched | None:
        data, kind = "\n".join(self._data), self._type or "message"
        had_data = bool(self._data)
        self._data, self._type = [], ""
        return Dispatched(kind, data, self._id) if had_data else None
