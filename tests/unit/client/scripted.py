"""A server that says exactly what a test tells it to, byte by byte, on real sockets."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from penstock.client import ClientSettings, RetryPolicy
from penstock.flow.backoff import Backoff

CUT = object()
"""Close the connection here."""
RESET = object()
"""Close the connection here so that the peer sees a reset."""
HANG = object()
"""Say nothing more until the test is over."""

DEADLINE_S = 30.0


class Seen(NamedTuple):
    """A request as the server got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Seen], Iterable[Any]]


def answered(status: int, body: Any, *headers: str) -> list[bytes]:
    """A whole answer with a JSON body."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status} X",
        "Content-Type: application/json",
        f"Content-Length: {len(text)}",
        *headers,
    ]
    return ["\r\n".join([*lines, "", ""]).encode() + text]


def failed(status: int, code: str, *headers: str, **detail: Any) -> list[bytes]:
    """A whole answer with an error."""
    error = {"code": code, "message": f"it is {code}"} | ({"detail": detail} if detail else {})
    return answered(status, {"error": error}, *headers)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def frame(event: str, data: Any, frame_id: str = "x") -> bytes:
    text = json.dumps(data, separators=(",", ":"))
    return f"id: {frame_id}\nevent: {event}\ndata: {text}\n\n".encode()


class ScriptedServer:
    """Answers each request with what `answer` gives for it; keeps what it has seen."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.seen: list[Seen] = []
        self.connections = 0
        self._over = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                number = self.connections
                with self._lock:
                    self._open.add(connection)
                threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as stream:
            while (seen := _read_request(stream, number)) is not None:
                self.seen.append(seen)
                for action in self._answer(seen):
                    if not self._act(connection, action):
                        return
        with self._lock:
            self._open.discard(connection)

    def _act(self, connection: socket.socket, action: Any) -> bool:
        if action is HANG:
            self._over.wait(DEADLINE_S)
            return False
        if action is RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if action is CUT or action is RESET:
            if action is CUT:
                connection.shutdown(socket.SHUT_RDWR)
            else:
                connection.close()
            return False
        connection.sendall(action)
        return True


def _read_request(stream: Any, number: int) -> Seen | None:
    line = stream.readline()
    if not line:
        return None
    method, target, _ = line.decode().split(" ")
    headers = {}
    while (line := stream.readline().decode().rstrip("\r\n")) != "":
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    body = stream.read(int(headers.get("content-length", 0)))
    return Seen(method, target, headers, body, number)


@contextmanager
def scripted(answer: Answer) -> Iterator[ScriptedServer]:
    server = ScriptedServer(answer)
    try:
        yield server
    finally:
        server.close()


def in_turn(*answers: Iterable[Any]) -> Answer:
    """Give these answers, one for each request; the last one for ever."""
    given = list(answers)

    def answer(_: Seen) -> Iterable[Any]:
        return given.pop(0) if len(given) > 1 else given[0]

    return answer


def quick(url: str, *, tries_max: int | None = None, **changes: Any) -> ClientSettings:
    """Settings that try again soon and wait as long as a busy machine needs.

    A call that shall fail is ended by `tries_max`: a short limit of time would end it before the
    server has seen it when the machine is busy.
    """
    given: dict[str, Any] = {
        "retry": RetryPolicy(base_ms=1, cap_ms=2, jitter=0.0, tries_max=tries_max),
        "reconnect": Backoff(base_ms=1, cap_ms=2, jitter=0.0, window_ms=DEADLINE_S * 1_000),
        "timeout_s": DEADLINE_S,
        "read_timeout_s": DEADLINE_S,
    }
    return ClientSettings(url, **(given | changes))


WRITTEN = {
    "topic": "a", "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "count": 1,
    "created": True, "deduped": False, "performance": {"server_total_ms": 0.1},
}  # fmt: skip
