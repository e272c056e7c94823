"""Delivery to watchers at 1,000 durable writes a second: the topic server, Redis and NATS"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bench import servers
from bench.load import connect, pin, post
from bench.report import Report

WRITES_A_SECOND = 1_000
SECONDS = 3.0
WATCHERS = (1, 100, 1_000)
WRITERS = 32
TIMED_MAX = 25
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


class Scene(NamedTuple):
    """What to write, how an answer ends, and what a watcher says when it got something."""

    writers: list[socket.socket]
    write: Callable[[int, int], bytes]  # number of the write, number of the writer
    is_answer: Callable[[bytes], bool]
    watchers: list[socket.socket]
    on_data: Callable[[bytes], bytes | None] = lambda _data: None
    all_timed: bool = False


class Drive:
    """Writes at an even pace; notes when each write was answered and when each watcher had it.

    A writer has one write in flight, and there are enough of them to keep the pace. Of very many
    watchers some are timed and the others only read, or the load would be the limit.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.total = int(WRITES_A_SECOND * SECONDS)
        self.sent_ns: list[int] = []
        self.answered_ns: dict[int, int] = {}
        self.seen: list[tuple[int, int]] = []
        self.free = deque(range(len(scene.writers)))
        self.busy: dict[int, tuple[int, int]] = {}  # descriptor -> (writer, write)
        step = 1 if scene.all_timed else max(1, len(scene.watchers) // TIMED_MAX)
        self.timed = {watcher.fileno() for watcher in scene.watchers[::step]}
        self.by_fd = {watcher.fileno(): watcher for watcher in scene.watchers}
        self.aside = bytearray(1 << 18)
        self.poll = select.epoll()
        for each in (*scene.watchers, *scene.writers):
            each.setblocking(False)
            self.poll.register(each, select.EPOLLIN)

    def run(self) -> Delays:
        expected = self.total * len(self.timed)
        began = time.perf_counter()
        until = began + SECONDS + 15
        while len(self.seen) < expected or len(self.answered_ns) < self.total:
            now = time.perf_counter()
            if now > until:
                raise RuntimeError(f"expected {expected} deliveries, found {len(self.seen)}")
            due = min(self.total, int((now - began) * WRITES_A_SECOND) + 1)
            while len(self.sent_ns) < due and self.free:
                self._send(self.free.popleft())
            for fd, _ in self.poll.poll(0.0005):
                self._take(fd)
        for each in (*self.scene.watchers, *self.scene.writers):
            each.close()
        return self._delays()

    def _send(self, writer: int) -> None:
        number = len(self.sent_ns)
        connection = self.scene.writers[writer]
        self.busy[connection.fileno()] = (writer, number)
        self.sent_ns.append(time.perf_counter_ns())
        connection.send(self.scene.write(number, writer))

    def _take(self, fd: int) -> None:
        now_ns = time.perf_counter_ns()
        if fd not in self.by_fd:
            writer, number = self.busy[fd]
            if self.scene.is_answer(self.scene.writers[writer].recv(1 << 16)):
                self.answered_ns[number] = now_ns
                self.free.append(writer)
        elif fd in self.timed:
            self._note(self.by_fd[fd], now_ns)
        else:
            self.by_fd[fd].recv_into(self.aside)

    def _note(self, watcher: socket.socket, now_ns: int) -> None:
        data = watcher.recv(1 << 18)
        if not data:
            raise ConnectionError("expected records, found the connection closed")
        at = 0
        while (at := data.find(MARK, at)) >= 0:
            at += len(MARK)
            self.seen.append((int(data[at : at + 12]) - 10**11, now_ns))
        reply = self.scene.on_data(data)
        if reply:
            watcher.send(reply)

    def _delays(self) -> Delays:
        whole = sorted((at_ns - self.sent_ns[number]) / 1e6 for number, at_ns in self.seen)
        after = sorted(
            max(0, at_ns - self.answered_ns[number]) / 1e6 for number, at_ns in self.seen
        )
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
        scene = Scene(
            connect(port, WRITERS),
            lambda number, _: post("/v0/topics/t", b'{"records":[{"data":%b}]}' % payload(number)),
            lambda data: data.endswith(b"}"),
            watchers,
        )
        return Drive(scene).run()


def ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        answer += connection.recv(1 << 16)
    return answer


def redis(count: int) -> Delays:
    read = (
        b"*6\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$1\r\n0\r\n$7\r\nSTREAMS\r\n$1\r\ns\r\n$%d\r\n%b\r\n"
    )

    def write(number: int, _writer: int) -> bytes:
        data = payload(number)
        head = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nd\r\n"
        return head + b"$%d\r\n%b\r\n" % (len(data), data)

    def again(data: bytes) -> bytes | None:
        ids = [line for line in data.split(b"\r\n") if b"-" in line and line[:1].isdigit()]
        return read % (len(ids[-1]), ids[-1]) if ids else None

    with servers.redis() as port:
        watchers = connect(port, count)
        for watcher in watchers:
            watcher.sendall(read % (1, b"$"))
        scene = Scene(
            connect(port, WRITERS),
            write,
            lambda data: data.endswith(b"\r\n"),
            watchers,
            again,
            all_timed=True,
        )
        return Drive(scene).run()


def nats(count: int) -> Delays:
    with servers.nats() as port:
        watchers = [servers.nats_connect(port, b"bench") for _ in range(count)]
        scene = Scene(
            [servers.nats_connect(port, b"answers%d" % number) for number in range(WRITERS)],
            lambda number, writer: (
                b"PUB bench answers%d %d\r\n%b\r\n"
                % (writer, len(payload(number)), payload(number))
            ),
            lambda data: data.endswith(b"}\r\n"),
            watchers,
        )
        return Drive(scene).run()
