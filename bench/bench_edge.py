"""The network edge: readings from sockets to a durable topic on one core, against a bare echo"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench import servers
from bench.load import PATIENCE_S, connect, free_port, pin
from bench.report import Report
from penstock.ingest.frames import Ack, Failure, FrameReader, encode_hello, encode_message
from penstock.metering.fleet import Fleet

CONNECTIONS = 16
IN_FLIGHT = 128
READINGS = 50
SECONDS = 3.0
WARM_UP_S = 0.5
ROUNDS = 3
GOAL_PER_S = 100_000
TINY = {"CONNECTIONS": 2, "SECONDS": 0.1, "WARM_UP_S": 0.1, "ROUNDS": 1}
ECHO = "bare TCP echo of the same bytes"


class Outcome(NamedTuple):
    """Messages a second, and how long half of them and nearly all took."""

    a_second: float
    p50_ms: float
    p99_ms: float


def run(report: Report) -> None:
    pin(1)
    found: dict[str, list[Outcome]] = {}
    for _ in range(ROUNDS):  # they take turns, as the machine is shared
        for name, place in PLACES.items():
            with place() as port:
                found.setdefault(name, []).append(load(port, echoes=name == ECHO))
    best = {name: max(outcomes) for name, outcomes in found.items()}
    limit = best[ECHO]
    report.row(ECHO, limit.a_second * READINGS, "readings/s")
    for name, outcome in best.items():
        if name != ECHO:
            readings = outcome.a_second * READINGS
            report.row(name, readings, "readings/s", ratio=outcome.a_second / limit.a_second,
                       against=ECHO, goal=f"at least {GOAL_PER_S:,}",
                       met=readings >= GOAL_PER_S)  # fmt: skip
    for name, outcome in best.items():
        report.row(f"{name}: half are answered within", outcome.p50_ms, "ms")
        report.row(f"{name}: 99 % are answered within", outcome.p99_ms, "ms")


@contextmanager
def echo() -> Iterator[int]:
    port = free_port()
    with servers.process([sys.executable, "-m", "bench.edge_peers", "echo", str(port)], port=port):
        yield port


@contextmanager
def with_server() -> Iterator[int]:
    """Edge and topic server as two processes on the same core."""
    port = free_port()
    arguments = [sys.executable, "-m", "penstock", "ingest", "edge", "--port", str(port),
                 "--status-port", "0"]  # fmt: skip
    with servers.penstock() as topics:
        arguments += ["--url", f"http://127.0.0.1:{topics}"]
        with servers.process(arguments, port=port):
            yield port


@contextmanager
def embedded() -> Iterator[int]:
    """Edge and topic engine as one process."""
    port = free_port()
    with servers.directory() as path:
        arguments = [sys.executable, "-m", "bench.edge_peers", "embedded", str(port), str(path)]
        with servers.process(arguments, port=port):
            yield port


PLACES: dict[str, Callable[[], object]] = {
    ECHO: echo,
    "edge and topic server on one core": with_server,
    "edge with the topic engine in its process": embedded,
}


class Sender:
    """One connection with so many messages in flight."""

    def __init__(self, connection: socket.socket, number: int, *, echoes: bool) -> None:
        self.connection = connection
        self._echoes = echoes
        self._payload = Fleet(CONNECTIONS, READINGS).payload(number, 1)
        self._frame_bytes = len(encode_message(1, self._payload))
        self._reader = FrameReader(1 << 16, opening=False)
        self._next = 1
        self._echoed = 0
        self._sent_ns: dict[int, int] = {}
        self._unsent = b"" if echoes else encode_hello(f"bench-{number}", b"")
        connection.setblocking(False)

    def fill(self, now_ns: int) -> None:
        """Send until so many are in flight."""
        while len(self._sent_ns) < IN_FLIGHT:
            self._sent_ns[self._next] = now_ns
            self._unsent += encode_message(self._next, self._payload)
            self._next += 1
        if self._unsent:
            try:
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
            except BlockingIOError:
                return

    def receive(self, now_ns: int) -> list[int]:
        """Take answers; how long each message took."""
        data = self.connection.recv(1 << 20)
        if not data:
            raise ConnectionError("expected acknowledgements, found the connection closed")
        if self._echoes:
            self._echoed += len(data)
            done = self._echoed // self._frame_bytes
            self._echoed -= done * self._frame_bytes
            ids = list(self._sent_ns)[:done]
        else:
            ids = []
            for frame in self._reader.feed(data):
                assert not isinstance(frame, Failure), frame
                if isinstance(frame, Ack):
                    ids += frame.message_ids
        return [now_ns - self._sent_ns.pop(message_id) for message_id in ids]


def load(port: int, *, echoes: bool) -> Outcome:
    """Keep every connection full, and count what comes back."""
    poll = select.epoll()
    senders = {}
    for number, connection in enumerate(connect(port, CONNECTIONS)):
        senders[connection.fileno()] = Sender(connection, number, echoes=echoes)
        poll.register(connection, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    took_ns: list[int] = []
    counting_from = time.perf_counter() + WARM_UP_S
    until = counting_from + SECONDS
    now = 0.0
    while now < until or (not took_ns and now < until + PATIENCE_S):
        for fd, events in poll.poll(1.0):
            sender, now_ns = senders[fd], time.perf_counter_ns()
            if events & select.EPOLLIN:
                took = sender.receive(now_ns)
                if now >= counting_from:
                    took_ns += took
            sender.fill(now_ns)
        now = time.perf_counter()
    for sender in senders.values():
        sender.connection.close()
    took_ns.sort()
    count = len(took_ns)
    spent_s = now - counting_from
    return Outcome(
        count / spent_s, took_ns[count // 2] / 1e6, took_ns[min(count - 1, count * 99 // 100)] / 1e6
    )
