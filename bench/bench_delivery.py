"""Delivery to watchers at 1,000 durable writes a second: the topic server, Redis and NATS"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median_low
from typing import NamedTuple

from bench import servers
from bench.load import connect, pin, post
from bench.peers import MissingError, take_turns
from bench.report import Report

WRITES_A_SECOND = 1_000
SECONDS = 3.0
ROUNDS = 3
WATCHERS = (1, 100, 1_000)
OURS = "penstock"
WRITERS = 32
TIMED_MAX = 25
ASIDE_S = 0.01
MARK = b'"sent_ns":'
TINY = {"SECONDS": 0.1, "ROUNDS": 1, "WATCHERS": (10,)}


class Delays(NamedTuple):
    """From sending a write until a watcher has the record, and the same from its answer on.

    The answer says that the write is committed, and may come after the record.
    """

    p50_ms: float
    p99_ms: float
    after_commit_p50_ms: float
    after_commit_p99_ms: float
    write_p50_ms: float
    write_p99_ms: float


def run(report: Report) -> None:
    pin(1)
    for watchers in WATCHERS:
        ways = {name: partial(measure, watchers) for name, measure in MEASURED.items()}
        found = take_turns(ROUNDS, {OURS: ways.pop(OURS)}, ways)
        ours = middle(found.pop(OURS))
        tell_ours(report, watchers, ours)
        for peer, delays in found.items():
            tell_peer(report, f"{peer}, {watchers} watchers", middle(delays), ours)


def middle(delays: list[Delays]) -> Delays:
    """Of several runs, what half of them were within, number by number."""
    return Delays(*map(median_low, zip(*delays, strict=True)))


def tell_ours(report: Report, watchers: int, delays: Delays) -> None:
    name = f"{OURS}, {watchers} watchers"
    goals = {100: (1, 5), 1_000: (None, 10)}.get(watchers, (None, None))
    pairs = (
        ("half within", delays.p50_ms, None),
        ("99 of 100 within", delays.p99_ms, None),
        ("half within, after the commit", delays.after_commit_p50_ms, goals[0]),
        ("99 of 100 within, after the commit", delays.after_commit_p99_ms, goals[1]),
        ("half of the writes answered within", delays.write_p50_ms, None),
        ("99 of 100 writes answered within", delays.write_p99_ms, None),
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
        report.row(f"{name}: {what}", theirs, "ms", ratio=theirs / mine, against=OURS)


class Scene(NamedTuple):
    """What to write, how an answer ends, and what a watcher says when it got something."""

    writers: list[socket.socket]
    write: Callable[[int, int], bytes]  # number of the write, number of the writer
    is_answer: Callable[[bytes], bool]
    watchers: list[socket.socket]
    on_data: Callable[[bytes], bytes | None] | None = None


class Drive:
    """Writes at an even pace; notes when each write was answered and when each watcher had it.

    A writer has one write in flight, and there are enough of them to keep the pace. The load must
    not be the limit. So it never sleeps, and of very many watchers some are timed, at the moment
    their bytes are there, while the others are only read, each once in `ASIDE_S`. Where a watcher
    has to ask again, all are timed: one that has not asked is not served.
    """

    def __init__(self, scene: Scene, seconds: float | None = None) -> None:
        self.scene = scene
        self.seconds = seconds or SECONDS
        self.total = int(WRITES_A_SECOND * self.seconds)
        self.sent_ns: list[int] = []
        self.answered_ns: dict[int, int] = {}
        self.seen: list[tuple[int, int]] = []
        self.free = deque(range(len(scene.writers)))
        self.busy: dict[int, tuple[int, int]] = {}  # descriptor -> (writer, write)
        step = 1 if scene.on_data else max(1, len(scene.watchers) // TIMED_MAX)
        timed = scene.watchers[::step]
        self.timed = {watcher.fileno(): watcher for watcher in timed}
        self.others = [each for each in scene.watchers if each.fileno() not in self.timed]
        self.others_read = 0
        self.poll = select.epoll()
        for each in (*scene.watchers, *scene.writers):
            each.setblocking(False)
        for each in (*timed, *scene.writers):
            self.poll.register(each, select.EPOLLIN)

    def run(self) -> Delays:
        expected = self.total * len(self.timed)
        began = time.perf_counter()
        until = began + self.seconds + 15
        while len(self.seen) < expected or len(self.answered_ns) < self.total:
            now = time.perf_counter()
            if now > until:
                raise MissingError(
                    f"too slow: expected {expected} deliveries and {self.total} answers, "
                    f"found {len(self.seen)} and {len(self.answered_ns)}"
                )
            due = min(self.total, int((now - began) * WRITES_A_SECOND) + 1)
            while len(self.sent_ns) < due and self.free:
                self._send(self.free.popleft())
            ready = self.poll.poll(0)
            now_ns = time.perf_counter_ns()
            for fd, _ in ready:
                self._take(fd, now_ns)
            if not ready:
                self._read_others(now - began)
        for each in (*self.scene.watchers, *self.scene.writers):
            each.close()
        return self._delays()

    def _send(self, writer: int) -> None:
        number = len(self.sent_ns)
        connection = self.scene.writers[writer]
        self.busy[connection.fileno()] = (writer, number)
        self.sent_ns.append(time.perf_counter_ns())
        connection.send(self.scene.write(number, writer))

    def _take(self, fd: int, now_ns: int) -> None:
        watcher = self.timed.get(fd)
        if watcher is not None:
            self._note(watcher, now_ns)
            return
        writer, number = self.busy[fd]
        if self.scene.is_answer(self.scene.writers[writer].recv(1 << 16)):
            self.answered_ns[number] = now_ns
            self.free.append(writer)

    def _note(self, watcher: socket.socket, now_ns: int) -> None:
        data = self._receive(watcher)
        at = 0
        while (at := data.find(MARK, at)) >= 0:
            at += len(MARK)
            self.seen.append((int(data[at : at + 12]) - 10**11, now_ns))

    def _read_others(self, spent_s: float) -> None:
        """Read a few of those that are not timed, as many as are due."""
        due = min(int(spent_s / ASIDE_S * len(self.others)) - self.others_read, 8)
        for _ in range(due):
            with suppress(BlockingIOError):
                self._receive(self.others[self.others_read % len(self.others)])
            self.others_read += 1

    def _receive(self, watcher: socket.socket) -> bytes:
        data = watcher.recv(1 << 18)
        if not data:
            raise ConnectionError("expected records, found the connection closed")
        reply = self.scene.on_data(data) if self.scene.on_data else None
        if reply:
            watcher.send(reply)
        return data

    def _delays(self) -> Delays:
        whole = sorted((at_ns - self.sent_ns[number]) / 1e6 for number, at_ns in self.seen)
        after = sorted(
            max(0, at_ns - self.answered_ns[number]) / 1e6 for number, at_ns in self.seen
        )
        writes = sorted(
            (at - self.sent_ns[number]) / 1e6 for number, at in self.answered_ns.items()
        )
        return Delays(*(edge for found in (whole, after, writes) for edge in edges(found)))


def edges(found: list[float]) -> tuple[float, float]:
    """What half and what 99 of 100 are within."""
    return found[len(found) // 2], found[len(found) * 99 // 100]


def payload(number: int) -> bytes:
    return b'{%b%012d,"kwh":1.25}' % (MARK, number + 10**11)


def penstock(count: int, seconds: float | None = None, *, compiled: bool = False) -> Delays:
    if compiled and not servers.is_compiled():
        raise MissingError("there is no compiled build here (make compiled)")
    settings = {"PYTHONPATH": str(servers.COMPILED)} if compiled else {}
    with servers.penstock(**settings) as port:
        return Drive(over_http(port, watching(port, count)), seconds).run()


def watching(port: int, count: int) -> list[socket.socket]:
    """So many watchers of the topic `t`, each at its end."""
    setup = connect(port, 1)[0]
    ask(setup, post("/v0/topics/t", b'{"durability":"fsync"}').replace(b"POST", b"PUT", 1))
    watchers = []
    for _ in range(count):
        answer = ask(setup, post("/v0/watch", b'{"topics":{"t":{"tail":true}}}'))
        wid = json.loads(answer.partition(b"\r\n\r\n")[2])["wid"]
        watcher = connect(port, 1)[0]
        watcher.sendall(
            b"GET /v0/watch/%b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            % wid.encode()
        )
        watchers.append(watcher)
    for watcher in watchers:
        received = b""
        while b"caught-up" not in received:
            received += watcher.recv(1 << 16)
    setup.close()
    return watchers


def over_http(port: int, watchers: list[socket.socket]) -> Scene:
    return Scene(
        connect(port, WRITERS),
        lambda number, _: post("/v0/topics/t", b'{"records":[{"data":%b}]}' % payload(number)),
        lambda data: data.endswith(b"}"),
        watchers,
    )


def bare(count: int, seconds: float | None = None, *, synced: bool = False) -> Delays:
    """What a loop in Python can do at all on this machine: no engine, no cursors."""
    with servers.bare_push(synced=synced) as port:
        watchers = connect(port, count)
        for watcher in watchers:
            watcher.sendall(b"GET /v0/topics/t HTTP/1.1\r\n\r\n")
        for watcher in watchers:
            watcher.recv(1 << 16)
        return Drive(over_http(port, watchers), seconds).run()


def ask(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer or not answer.endswith(b"}"):
        answer += connection.recv(1 << 16)
    return answer


def redis(count: int, seconds: float | None = None) -> Delays:
    read = (
        b"*6\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$1\r\n0\r\n$7\r\nSTREAMS\r\n$1\r\ns\r\n$%d\r\n%b\r\n"
    )

    def write(number: int, _writer: int) -> bytes:
        data = payload(number)
        head = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nd\r\n"
        return head + b"$%d\r\n%b\r\n" % (len(data), data)

    def again(data: bytes) -> bytes | None:
        end = data.rfind(b"\r\n*2\r\n$1\r\nd\r\n")
        last = data[data.rfind(b"\n", 0, end) + 1 : end]
        return read % (len(last), last) if end >= 0 else None

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
        )
        return Drive(scene, seconds).run()


def nats(count: int) -> Delays:
    with servers.nats() as port:
        watchers = [servers.nats_connect(port, b"bench") for _ in range(count)]
        scene = Scene(
            [servers.nats_connect(port, b"answers%d" % number) for number in range(WRITERS)],
            lambda number, writer: (
                b"PUB bench answers%d %d\r\n%b\r\n"
                % (writer, len(payload(number)), payload(number))
            ),
            lambda data: b"}\r\n" in data,  # a PING may follow
            watchers,
        )
        return Drive(scene).run()


MEASURED: dict[str, Callable[[int], Delays]] = {
    OURS: penstock,
    "a bare loop that writes to each watcher and syncs nothing": bare,
    "Redis XREAD BLOCK": redis,
    "NATS": nats,
}
