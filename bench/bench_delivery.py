"""Delivery to watchers at 1,000 durable writes a second: the topic server, Redis and NATS"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from bench import servers
from bench.load import connect, pin, post
from bench.report import Report

WRITES_A_SECOND = 1_000
SECONDS = 3.0
WATCHERS = (1, 100, 1_000)
MARK = b'"sent_ns":'


class Delays(NamedTuple):
    """From sending a write until a watcher has the record, and the same from its answer on.

    The answer says that the write is committed, and may come after the record.
    """

    p50_ms: float
    p99_ms: float
    after_commit_p50_ms: float
    after_commit_p99_ms: float


def run(report: Report) -> None:
    pin(1)
    for watchers in WATCHERS:
        ours = penstock(watchers)
        tell_ours(report, watchers, ours)
        for peer, measure in (("Redis XREAD BLOCK", redis), ("NATS", nats)):
            try:
                tell_peer(report, f"{peer}, {watchers} watchers", measure(watchers), ours)
            except (FileNotFoundError, RuntimeError) as missing:
                print(f"left out: {peer}, {watchers} watchers: {missing}")


def tell_ours(report: Report, watchers: int, delays: Delays) -> None:
    name = f"penstock, {watchers} watchers"
    goals = {100: (1, 5), 1_000: (None, 10)}.get(watchers, (None, None))
    pairs = (
        ("half within", delays.p50_ms, None),
        ("99 of 100 within", delays.p99_ms, None),
        ("half within, after the commit", delays.after_commit_p50_ms, goals[0]),
        ("99 of 100 within, after the commit", delays.after_commit_p99_ms, goals[1]),
    )
    for what, value, limit_ms in pairs:
        goal = None if limit_ms is None else f"under {limit_ms} ms"
        met = None if limit_ms is None else value < limit_ms
        report.row(f"{name}: {what}", value, "ms", goal=goal, met=met)


def tell_peer(report: Report, name: str, delays: Delays, ours: Delays) -> None:
    for what, theirs, mine in (
        ("half within", delays.p50_ms, ours.p50_ms),
        ("99 of 100 within", delays.p99_ms, ours.p99_ms),
    ):
        report.row(f"{name}: {what}", theirs, "ms", ratio=theirs / mine, against="penstock")


def drive(
    writer: socket.socket,
    write: Callable[[int], bytes],
    is_answer: Callable[[bytes], bool],
    watchers: list[socket.socket],
    on_data: Callable[[socket.socket, bytes], bytes | None],
) -> Delays:
    """Write at an even pace; note when each write was answered and when each watcher had it."""
    poll = select.epoll()
    by_fd = {watcher.fileno(): watcher for watcher in watchers}
    for watcher in watchers:
        watcher.setblocking(False)
        poll.register(watcher, select.EPOLLIN)
    poll.register(writer, select.EPOLLIN)
    total = int(WRITES_A_SECOND * SECONDS)
    answered_ns: list[int] = []
    sent_ns: list[int] = []
    seen: list[tuple[int, int]] = []
    sent = 0
    began = time.perf_counter()
    pending = b""
    until = began + SECONDS + 10
    expected = total * len(watchers)
    got = 0
    while (got < expected or len(answered_ns) < total) and time.perf_counter() < until:
        now = time.perf_counter()
        if sent == len(answered_ns) and sent < total and now >= began + sent / WRITES_A_SECOND:
            sent_ns.append(time.perf_counter_ns())
            writer.sendall(write(sent))
            sent += 1
        wait = 0.0 if sent > len(answered_ns) else max(0.0, began + sent / WRITES_A_SECOND - now)
        for fd, _ in poll.poll(min(wait, 0.01) if sent == len(answered_ns) else 0.01):
            now_ns = time.perf_counter_ns()
            if fd == writer.fileno():
                pending += writer.recv(1 << 16)
                if is_answer(pending):
                    pending = b""
                    answered_ns.append(now_ns)
                continue
            watcher = by_fd[fd]
            data = watcher.recv(1 << 18)
            if not data:
                raise ConnectionError("expected records, found the connection closed")
            at = 0
            while (at := data.find(MARK, at)) >= 0:
                at += len(MARK)
                number = int(data[at : at + 12]) - 10**11
                seen.append((number, now_ns))
                got += 1
            reply = on_data(watcher, data)
            if reply:
                watcher.sendall(reply)
    for watcher in watchers:
        watcher.close()
    writer.close()
    whole = sorted((at_ns - sent_ns[number]) / 1e6 for number, at_ns in seen)
    after = sorted(max(0, at_ns - answered_ns[number]) / 1e6 for number, at_ns in seen)
    if got < expected:
        raise RuntimeError(f"expected {expected} deliveries, found {got}")
    middle, last = len(whole) // 2, len(whole) * 99 // 100
    return Delays(whole[middle], whole[last], after[middle], after[last])


def payload(number: int) -> bytes:
    return b'{%b%012d,"kwh":1.25}' % (MARK, number + 10**11)


def penstock(count: int) -> Delays:
    with servers.penstock() as port:
        setup = connect(port, 1)[0]
        ask(setup, post("/v0/topics/t", b'{"durability":"fsync"}').replace(b"POST", b"PUT", 1))
        watchers = []
        for _ in range(count):
            answer = ask(setup, post("/v0/watch", b'{"topics":{"t":{"tail":true}}}'))
            wid = json.loads(answer.partition(b"\r\n\r\n")[2])["wid"]
            watcher = connect(port, 1)[0]
            watcher.sendall(
                b"GET /v0/watch/%b HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"
                % wid.encode()
            )
            watchers.append(watcher)
        for watcher in watchers:
            received = b""
            while b"caught-up" not in received:
                received += watcher.recv(1 << 16)
        writer = connect(port, 1)[0]
        return drive(
            writer,
            lambda number: post("/v0/topics/t", b'{"records":[{"data":%b}]}' % payload(number)),
            lambda data: data.endswith(b"}"),
            watchers,
            lambda _watcher, _data: None,
        )


def ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        answer += connection.recv(1 << 16)
    return answer


def redis(count: int) -> Delays:
    with servers.redis() as port:
        watchers = connect(port, count)
        command = b"*6\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$1\r\n0\r\n$7\r\nSTREAMS\r\n$1\r\ns\r\n$%d\r\n%b\r\n"
        for watcher in watchers:
            watcher.sendall(command % (1, b"$"))
        writer = connect(port, 1)[0]

        def again(_watcher: socket.socket, data: bytes) -> bytes | None:
            ids = [line for line in data.split(b"\r\n") if b"-" in line and line[:1].isdigit()]
            return command % (len(ids[-1]), ids[-1]) if ids else None

        return drive(
            writer,
            lambda number: (
                b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%b\r\n"
                % (len(payload(number)), payload(number))
            ),
            lambda data: data.endswith(b"\r\n"),
            watchers,
            again,
        )


def nats(count: int) -> Delays:
    with servers.nats() as port:
        watchers = [servers.nats_connect(port, b"bench") for _ in range(count)]
        writer = servers.nats_connect(port, b"answers")
        return drive(
            writer,
            lambda number: (
                b"PUB bench answers %d\r\n%b\r\n" % (len(payload(number)), payload(number))
            ),
            lambda data: data.endswith(b"}\r\n"),
            watchers,
            lambda _watcher, _data: None,
        )
