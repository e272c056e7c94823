"""A closed loop of requests from this process: many connections, one request in flight on each."""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE_S = 30.0
"""How much longer a load lasts of which nothing was answered yet, as on a busy machine."""
IsWhole = Callable[[bytes], bool]


class Outcome(NamedTuple):
    """What one load came to: answers a second, and how long each took."""

    a_second: float
    p50_ms: float
    p99_ms: float


def closed_loop(
    connections: Sequence[socket.socket],
    request_of: Callable[[int], bytes],
    is_whole: IsWhole,
    *,
    seconds: float,
    warm_up_s: float = 0.3,
) -> Outcome:
    """Send the next request on a connection as soon as the last one was answered."""
    poll = select.epoll()
    by_fd = {}
    for number, connection in enumerate(connections):
        by_fd[connection.fileno()] = (connection, request_of(number), [0, b""])
        poll.register(connection, select.EPOLLIN)
    for connection, request, state in by_fd.values():
        state[0] = time.perf_counter_ns()
        connection.sendall(request)
    took_ns: list[int] = []
    began = time.perf_counter()
    counting_from = began + warm_up_s
    until = counting_from + seconds
    now = began
    while now < until or (not took_ns and now < until + PATIENCE_S):
        for fd, _ in poll.poll(1.0):
            connection, request, state = by_fd[fd]
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionError("expected an answer, found the connection closed")
            if state[1]:
                data = state[1] + data
            if not is_whole(data):
                state[1] = data
                continue
            state[1] = b""
            now_ns = time.perf_counter_ns()
            if now >= counting_from:
                took_ns.append(now_ns - state[0])
            state[0] = now_ns
            connection.sendall(request)
        now = time.perf_counter()
    spent = now - counting_from
    for connection in connections:
        connection.close()
    return outcome_of(took_ns, spent)


def outcome_of(took_ns: list[int], spent_s: float) -> Outcome:
    """What answers that took so long come to."""
    if not took_ns:
        raise TimeoutError(f"nothing was answered for {spent_s:.0f} s")
    took_ns.sort()
    count = len(took_ns)
    p99_ns = took_ns[min(count - 1, count * 99 // 100)]
    return Outcome(count / spent_s, took_ns[count // 2] / 1e6, p99_ns / 1e6)


def paced(
    connections: Sequence[socket.socket],
    request_of: Callable[[int], bytes],
    is_whole: IsWhole,
    *,
    a_second: float,
    seconds: float,
) -> Outcome:
    """Send requests at an even pace, in steps of a millisecond: the servers need the cores too.

    Each took from when it was its turn until it was answered, also if all connections were busy.
    """
    poll = select.epoll()
    by_fd = {each.fileno(): (each, number) for number, each in enumerate(connections)}
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    free, total = list(by_fd), max(1, int(a_second * seconds))
    turns: deque[float] = deque()
    begun_s: dict[int, float] = {}
    received = dict.fromkeys(by_fd, b"")
    took_ms: list[float] = []
    came = 0
    began = time.perf_counter()
    while len(took_ms) < total:
        now = time.perf_counter()
        if now > began + seconds + PATIENCE_S:
            raise TimeoutError(f"expected {total} answers, found {len(took_ms)}")
        due = min(total, int((now - began) * a_second) + 1)
        turns.extend([now] * (due - came))
        came = max(came, due)
        while free and turns:
            fd = free.pop()
            connection, number = by_fd[fd]
            begun_s[fd] = turns.popleft()
            connection.sendall(request_of(number))
        for fd, _ in poll.poll(0.001):
            data = received[fd] + by_fd[fd][0].recv(1 << 16)
            received[fd] = b"" if is_whole(data) else data
            if not received[fd]:
                took_ms.append((time.perf_counter() - begun_s[fd]) * 1e3)
                free.append(fd)
    spent = time.perf_counter() - began
    for connection in connections:
        connection.close()
    took_ms.sort()
    return Outcome(total / spent, took_ms[total // 2], took_ms[min(total - 1, total * 99 // 100)])


def connect(port: int, count: int) -> list[socket.socket]:
    """So many connections to a port of this machine."""
    found = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.append(connection)
    return found


def http_is_whole(data: bytes) -> bool:
    """Whether an HTTP answer is all there; anything but a 200 or a 201 is an error."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
        raise ValueError(f"expected a good answer, found {data[:300]!r}")
    if b"\r\ntransfer-encoding: chunked" in head.lower():
        return body.endswith(b"0\r\n\r\n")
    at = head.lower().index(b"content-length:")
    return len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])


def post(target: str, body: bytes) -> bytes:
    """A request as a usual client sends it."""
    return (
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (target.encode(), len(body), body)
    )


def pin(core: int) -> None:
    """Stay on one core: 0 for a server, 1 for the load, where there are two."""
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})


def wait_for_port(
    port: int, *, seconds: float = 20.0, is_alive: Callable[[], bool] = lambda: True
) -> None:
    """Return once a server listens; an OSError if it ends or does not come."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until or not is_alive():
                raise
            select.select([], [], [], 0.05)


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def scratch() -> Path:
    """Where servers under test keep their files: on the disk of the repository, not in memory."""
    path = Path(__file__).resolve().parent.parent / "build" / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path
