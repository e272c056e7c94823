"""Push while many write: 1,200 watched topics in four bands, 1 to 400 writing connections

Each topic has a watcher, and every connection writes to a random one as soon as it is answered.
With more writers than the loop has time for, what counts is that each band is pushed soon, not only
that writes are taken. Pushing may take as much from writes as it needs and no more: the same load
without watchers, times the share of the loop that was left, is what they should come to. The last
rows are for a loop with time to spare, from sending to 100 watchers.
"""

from __future__ import annotations

import json
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from bench import bench_delivery, servers
from bench.bench_delivery import MARK, ask, edges, middle, payload
from bench.load import connect, pin, post
from bench.peers import take_turns
from bench.report import Report

CONNECTIONS = (1, 64, 400)
PRIORITIES = {"B4": 900, "B3": 600, "B2": 300, "B1": 100}
TOPICS = 1_200
SECONDS = 6.0
WARM_UP_S = 1.5
DRAIN_S = 20.0
EVENTS_A_LOOK = 32
OURS = "penstock"
BARE = "a bare loop that logs nothing"
LEFT = "what push leaves of the writes without watchers"
SYNCED = "a bare loop that syncs every group"
REDIS = "Redis XREAD BLOCK, appendfsync always"
COMPILED = "penstock, compiled"
WATCHERS = 100
LATENCY_ROUNDS = 3
LATENCY_S = 3.0
TINY = {
    "CONNECTIONS": (1, 8),
    "TOPICS": 16,
    "SECONDS": 0.2,
    "WARM_UP_S": 0.1,
    "WATCHERS": 5,
    "LATENCY_ROUNDS": 1,
    "LATENCY_S": 0.1,
}


class Pushed(NamedTuple):
    """One load: what was taken, what was served, and what each band's watchers waited."""

    writes_a_second: float
    turns_a_second: float
    push_share: float
    ack_ms: tuple[float, float]
    after_answer_ms: dict[str, tuple[float, float]]
    after_sending_ms: dict[str, tuple[float, float]]


class Served(NamedTuple):
    """What a server has pushed so far: turns, and seconds of its loop."""

    turns: int
    seconds: float


class Scene(NamedTuple):
    """Where to write and who watches: a watcher for each topic, in the order of the topics."""

    port: int
    watchers: list[socket.socket]
    served: Callable[[], Served]


def run(report: Report) -> None:
    pin(1)
    for connections in CONNECTIONS:
        with watched_topics() as scene:
            ours = Drive(scene, connections).run()
        with watched_topics(watched=False) as scene:
            alone = Drive(scene, connections).run()
        with bare_topics() as scene:
            limit = Drive(scene, connections).run()
        tell(report, f"{connections} writing", ours, limit, at_most=connections == 400)
        if connections > 1:  # a lone writer waits for the disk, not for the loop
            tell_share(report, f"{connections} writing", ours, alone, is_full=connections == 400)
    tell_latency(report)


def tell(report: Report, name: str, ours: Pushed, limit: Pushed, *, at_most: bool) -> None:
    ratio = ours.writes_a_second / limit.writes_a_second
    report.row(f"{name}: {BARE}", limit.writes_a_second, "writes/s")
    report.row(f"{name}: {OURS}", ours.writes_a_second, "writes/s", ratio=ratio, against=BARE)
    report.row(f"{name}: topics served", ours.turns_a_second, "turns/s")
    report.row(f"{name}: 99 of 100 writes answered within", ours.ack_ms[1], "ms")
    goals = {"B4": 50, "B1": 500} if at_most else {}
    for band, (half, most) in ours.after_answer_ms.items():
        goal = goals.get(band)
        report.row(f"{name}, {band}: half pushed within, after the answer", half, "ms")
        report.row(f"{name}, {band}: 99 of 100 pushed within, after the answer", most, "ms",
                   ratio=most / max(limit.after_answer_ms[band][1], 0.001), against=BARE,
                   goal=None if goal is None else f"under {goal} ms",
                   met=None if goal is None else most < goal)  # fmt: skip
        report.row(f"{name}, {band}: 99 of 100 pushed within, after sending",
                   ours.after_sending_ms[band][1], "ms")  # fmt: skip


def tell_share(report: Report, name: str, ours: Pushed, alone: Pushed, *, is_full: bool) -> None:
    """What push took of the loop, and whether writes got the rest.

    With few writers the loop is not full: each waits for the commit window, which pressure widens.
    """
    left = alone.writes_a_second * (1.0 - ours.push_share)
    ratio = ours.writes_a_second / left
    report.row(f"{name}: share of the loop that pushed", 100 * ours.push_share, "%")
    report.row(f"{name}: without watchers", alone.writes_a_second, "writes/s")
    report.row(f"{name}: writes in the time that push leaves", ours.writes_a_second, "writes/s",
               ratio=ratio, against=LEFT, goal="at least 0.9×" if is_full else None,
               met=ratio >= 0.9 if is_full else None)  # fmt: skip


def tell_latency(report: Report) -> None:
    """From sending to the watcher at an even pace that leaves the loop time to spare."""
    measured = {
        name: partial(measure, WATCHERS, LATENCY_S)
        for name, measure in (
            (OURS, bench_delivery.penstock),
            (BARE, bench_delivery.bare),
            (SYNCED, partial(bench_delivery.bare, synced=True)),
            (REDIS, bench_delivery.redis),
            (COMPILED, partial(bench_delivery.penstock, compiled=True)),
        )
    }
    found = take_turns(LATENCY_ROUNDS, {OURS: measured.pop(OURS)}, measured)
    ours = middle(found[OURS])
    pace = f"{bench_delivery.WRITES_A_SECOND:,} writes/s, {WATCHERS} watchers"
    for what, value, goal in (
        ("half within, after sending", ours.p50_ms, 1.2),
        ("99 of 100 within, after sending", ours.p99_ms, 4),
    ):
        report.row(f"{pace}: {what}", value, "ms", goal=f"under {goal} ms", met=value < goal)
    for name in (COMPILED, BARE, SYNCED, REDIS):
        if name in found:
            theirs = middle(found[name])
            report.row(f"{pace}: {name}: half within", theirs.p50_ms, "ms",
                       ratio=theirs.p50_ms / ours.p50_ms, against=OURS)  # fmt: skip
            report.row(f"{pace}: {name}: 99 of 100 within", theirs.p99_ms, "ms",
                       ratio=theirs.p99_ms / ours.p99_ms, against=OURS)  # fmt: skip


def band_of(topic: int) -> str:
    return list(PRIORITIES)[topic % len(PRIORITIES)]


class Drive:
    """Every connection writes to a random topic, again as soon as it is answered.

    All watchers are read, a few descriptors at each look, so that what is there is timed at once.
    """

    def __init__(self, scene: Scene, connections: int) -> None:
        self._scene = scene
        self._random = random.Random(connections)
        self._writers = {each.fileno(): each for each in connect(scene.port, connections)}
        self._topic_of = {each.fileno(): n for n, each in enumerate(scene.watchers)}
        self._watchers = {each.fileno(): each for each in scene.watchers}
        self._paths = [f"/v0/topics/t{number}" for number in range(TOPICS)]
        self._sent_ns: list[int] = []
        self._answered_ns: dict[int, int] = {}
        self._busy: dict[int, int] = {}  # a writer's descriptor -> its write
        self._seen: dict[int, int] = {}  # a write -> when its watcher had it
        self._topics: list[int] = []  # of each write
        self._poll = select.epoll()
        for fd in (*self._writers, *self._watchers):
            self._poll.register(fd, select.EPOLLIN)

    def run(self) -> Pushed:
        for fd in self._writers:
            self._send(fd)
        self._drive(WARM_UP_S, goes_on=True)
        first, before = len(self._sent_ns), self._scene.served()
        began = time.perf_counter()
        self._drive(SECONDS, goes_on=True)
        spent = time.perf_counter() - began
        served = self._scene.served()
        last = len(self._sent_ns)
        answered = len([n for n in range(first, last) if n in self._answered_ns])
        self._drive(DRAIN_S, goes_on=False)
        if not self._is_all_seen():
            raise RuntimeError(
                f"expected {len(self._sent_ns)} records, found {len(self._seen)} after {DRAIN_S} s"
            )
        for each in (*self._writers.values(), *self._watchers.values()):
            each.close()
        counted = range(first, last)
        return Pushed(
            answered / spent,
            (served.turns - before.turns) / spent,
            (served.seconds - before.seconds) / spent,
            edges(sorted((self._answered_ns[n] - self._sent_ns[n]) / 1e6 for n in counted)),
            self._delays(counted, self._answered_ns.__getitem__),
            self._delays(counted, self._sent_ns.__getitem__),
        )

    def _drive(self, seconds: float, *, goes_on: bool) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if not goes_on and not self._busy and self._is_all_seen():
                return
            ready = self._poll.poll(0.1, EVENTS_A_LOOK)
            now_ns = time.perf_counter_ns()
            for fd, _ in ready:
                if fd in self._watchers:
                    self._note(self._watchers[fd].recv(1 << 16), fd, now_ns)
                else:
                    self._answered(fd, now_ns, goes_on=goes_on)

    def _is_all_seen(self) -> bool:
        return not self._watchers or len(self._seen) == len(self._sent_ns)

    def _send(self, fd: int) -> None:
        number, topic = len(self._sent_ns), self._random.randrange(len(self._paths))
        self._topics.append(topic)
        self._busy[fd] = number
        self._sent_ns.append(time.perf_counter_ns())
        body = b'{"records":[{"data":%b}]}' % payload(number)
        self._writers[fd].send(post(self._paths[topic], body))

    def _answered(self, fd: int, now_ns: int, *, goes_on: bool) -> None:
        answer = self._writers[fd].recv(1 << 16)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"expected a good answer, found {answer[:300]!r}")
        self._answered_ns[self._busy.pop(fd)] = now_ns
        if goes_on:
            self._send(fd)

    def _note(self, data: bytes, fd: int, now_ns: int) -> None:
        if not data:
            raise ConnectionError("expected records, found the connection closed")
        at = 0
        while (at := data.find(MARK, at)) >= 0:
            at += len(MARK)
            self._seen[int(data[at : at + 12]) - 10**11] = now_ns

    def _delays(
        self, counted: range, since: Callable[[int], int]
    ) -> dict[str, tuple[float, float]]:
        found: dict[str, list[float]] = {band: [] for band in PRIORITIES}
        for number in counted if self._watchers else ():
            delay_ms = max(0, self._seen[number] - since(number)) / 1e6
            found[band_of(self._topics[number])].append(delay_ms)
        return {band: edges(sorted(delays or [0.0])) for band, delays in found.items()}


@contextmanager
def watched_topics(*, watched: bool = True) -> Iterator[Scene]:
    """Our server, a topic and a watcher for each number, bands in turn."""
    with servers.penstock() as port:
        setup = connect(port, 1)[0]
        watchers = []
        for number in range(TOPICS):
            config = json.dumps({"priority": PRIORITIES[band_of(number)]}).encode()
            ask(setup, post(f"/v0/topics/t{number}", config).replace(b"POST", b"PUT", 1))
            if not watched:
                continue
            watch = b'{"topics":{"t%d":{"tail":true}}}' % number
            answer = ask(setup, post("/v0/watch", watch))
            wid = json.loads(answer.partition(b"\r\n\r\n")[2])["wid"]
            watcher = connect(port, 1)[0]
            watcher.sendall(
                b"GET /v0/watch/%b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
                % wid.encode()
            )
            watchers.append(watcher)
        for watcher in watchers:
            received = b""
            while b"caught-up" not in received:
                received += watcher.recv(1 << 16)

        def served() -> Served:
            answer = ask(setup, b"GET /v0/scheduler HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            found = json.loads(answer.partition(b"\r\n\r\n")[2])
            return Served(found["served_total"], found["push_seconds_total"])

        yield Scene(port, watchers, served)


@contextmanager
def bare_topics() -> Iterator[Scene]:
    """The bare loop with as many watchers, each of a path of its own."""
    with servers.bare_push() as port:
        watchers = connect(port, TOPICS)
        for number, watcher in enumerate(watchers):
            watcher.sendall(b"GET /v0/topics/t%d HTTP/1.1\r\n\r\n" % number)
        for watcher in watchers:
            watcher.recv(1 << 16)
        yield Scene(port, watchers, lambda: Served(0, 0.0))
