"""Commits to a space: uncontended ones against plain writes, 64 in flight"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from contextlib import closing

from bench import servers
from bench.load import PATIENCE_S, Outcome, closed_loop, connect, http_is_whole, pin, post
from bench.report import Report

CONNECTIONS = 64
SECONDS = 2.0
ROUNDS = 3
DOCUMENT = b'{"meter":17,"kwh":1.25,"at":"2026-01-01T00:00:00Z"}'
FIRST = 1_000_000
"""Numbers of commits begin here, so that all of them are equally long."""
RECORD = b'{"session":"s%03d","local_seq":%d,"writes":[{"entity":"e%03d","set":%b}]}'
COMMIT = (
    b'{"session":"s%03d","local_seq":%d,"reads":[{"entity":"e%03d","seq":%d}],'
    b'"writes":[{"entity":"e%03d","set":%b}]}'
)
PLAIN = "plain writes"
TINY = {"CONNECTIONS": 4, "SECONDS": 0.1, "ROUNDS": 1}
COMMITS = "commits, each to an entity of its own"


def run(report: Report) -> None:
    pin(1)
    found: dict[str, list[Outcome]] = {PLAIN: [], COMMITS: []}
    for _ in range(ROUNDS):  # they take turns, as the machine is shared
        found[PLAIN].append(plain())
        found[COMMITS].append(commits())
    best = {name: max(outcomes) for name, outcomes in found.items()}
    report.row(f"{PLAIN} of the same size", best[PLAIN].a_second, "records/s")
    ratio = best[COMMITS].a_second / best[PLAIN].a_second
    report.row(COMMITS, best[COMMITS].a_second, "commits/s", ratio=ratio, against=PLAIN,
               goal="at least 0.6×", met=ratio >= 0.6)  # fmt: skip
    for name, outcome in best.items():
        report.row(f"{name}: half are answered within", outcome.p50_ms, "ms")
        report.row(f"{name}: of a hundred, all but one within", outcome.p99_ms, "ms")


def plain() -> Outcome:
    """Writes of records that are what the commits leave, each to a topic of its connection."""
    with servers.penstock() as port:
        ask(port, *(put(f"t{number}") for number in range(CONNECTIONS)))
        return closed_loop(
            connect(port, CONNECTIONS),
            lambda number: post(
                f"/v0/topics/t{number}",
                b'{"records":[{"data":%b}]}' % (RECORD % (number, FIRST, number, DOCUMENT)),
            ),
            http_is_whole,
            seconds=SECONDS,
        )


def put(topic: str) -> bytes:
    return post(f"/v0/topics/{topic}", b'{"durability":"fsync"}').replace(b"POST", b"PUT", 1)


def commits() -> Outcome:
    """Commits that have read the entity they write, as their connection left it."""
    with servers.penstock() as port:
        ask(port, *(commit(number, FIRST, 0) for number in range(CONNECTIONS)))
        return commit_loop(connect(port, CONNECTIONS), SECONDS)


def commit(number: int, local_seq: int, basis: int) -> bytes:
    values = (number, local_seq, number, basis, number, DOCUMENT)
    return post("/v0/spaces/home/commits", COMMIT % values)


def ask(port: int, *requests: bytes) -> None:
    """Send requests one after another; each must be answered well."""
    with closing(connect(port, 1)[0]) as connection:
        for request in requests:
            connection.sendall(request)
            answer = b""
            while not (answer and http_is_whole(answer)):
                answer += connection.recv(1 << 16)


def commit_loop(connections: Sequence[socket.socket], seconds: float) -> Outcome:
    """As `closed_loop`, with a new commit each time, on the seq that the last answer told."""
    poll = select.epoll()
    states = {}
    for number, connection in enumerate(connections):
        poll.register(connection, select.EPOLLIN)
        states[connection.fileno()] = [connection, number, FIRST + 1, 0]
    for state in states.values():
        send(state, CONNECTIONS)
    took_ns: list[int] = []
    counting_from = time.perf_counter() + 0.3
    until = counting_from + seconds
    now = 0.0
    while now < until or (not took_ns and now < until + PATIENCE_S):
        for fd, _ in poll.poll(1.0):
            state = states[fd]
            data = state[0].recv(1 << 16)
            if not http_is_whole(data):
                raise ValueError(f"expected a whole answer, found {data!r}")
            now_ns = time.perf_counter_ns()
            if now >= counting_from:
                took_ns.append(now_ns - state[3])
            at = data.index(b'"seq":') + 6
            send(state, int(data[at : data.index(b",", at)]))
        now = time.perf_counter()
    spent = now - counting_from
    for connection in connections:
        connection.close()
    took_ns.sort()
    count = len(took_ns)
    p50, p99 = took_ns[count // 2], took_ns[min(count - 1, count * 99 // 100)]
    return Outcome(count / spent, p50 / 1e6, p99 / 1e6)


def send(state: list, basis: int) -> None:  # type: ignore[type-arg]
    connection, number, local_seq, _ = state
    state[2] += 1
    request = commit(number, local_seq, basis)
    state[3] = time.perf_counter_ns()
    connection.sendall(request)
