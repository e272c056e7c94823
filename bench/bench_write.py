"""Durable writes over HTTP: the topic server against its limit and its peers, 64 in flight"""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench import servers
from bench.load import IsWhole, Outcome, closed_loop, connect, http_is_whole, pin, post
from bench.peers import MissingError, postgres_bin, take_turns
from bench.report import Report

CONNECTIONS = 64
SECONDS = 2.0
ROUNDS = 3
RECORD = b'{"data":{"meter":17,"kwh":1.25,"at":"2026-01-01T00:00:00Z"}}'
BARE = "bare httptools with a group commit"
REDIS = "Redis Streams, appendfsync always"
NATS = "NATS JetStream, sync always"
REDIS_BATCHES = f"{REDIS}, MULTI of 100"
POSTGRES = "PostgreSQL, single-row inserts"
TINY = {"CONNECTIONS": 4, "SECONDS": 0.1, "ROUNDS": 1}

Measure = Callable[[], dict[str, Outcome]]


def run(report: Report) -> None:
    pin(1)
    others = {"the compiled build": compiled, "Redis": redis, "NATS": nats, "PostgreSQL": postgres}
    found: dict[str, list[Outcome]] = {}
    for rounds in take_turns(ROUNDS, {"bare": bare, "penstock": penstock}, others).values():
        for name, outcome in (pair for outcomes in rounds for pair in outcomes.items()):
            found.setdefault(name, []).append(outcome)
    tell(report, {name: max(outcomes) for name, outcomes in found.items()})


def tell(report: Report, best: dict[str, Outcome]) -> None:
    for count in (1, 100):
        limit, ours = best[f"{BARE}, {count} a request"], best[f"penstock, {count} a request"]
        report.row(f"{BARE}, {count} a request", limit.a_second * count, "records/s")
        ratio = ours.a_second / limit.a_second
        report.row(f"penstock, {count} a request", ours.a_second * count, "records/s", ratio=ratio,
                   against=BARE, goal="at least 0.5×", met=ratio >= 0.5)  # fmt: skip
        built = best.get(f"penstock compiled, {count} a request")
        if built is not None:
            ratio = built.a_second / limit.a_second
            report.row(f"penstock compiled, {count} a request", built.a_second * count,
                       "records/s", ratio=ratio, against=BARE, goal="at least 0.5×",
                       met=ratio >= 0.5)  # fmt: skip
    for peer, count in ((REDIS, 1), (NATS, 1), (POSTGRES, 1), (REDIS_BATCHES, 100)):
        if peer in best:
            theirs = best[peer].a_second * count
            ours_a_second = best[f"penstock, {count} a request"].a_second * count
            report.row(peer, theirs, "records/s")
            name = peer.split(",")[0] + (f", {count} a request" if count > 1 else "")
            ratio = ours_a_second / theirs
            report.row(f"penstock against {name}", ours_a_second, "records/s",
                       ratio=ratio, against=peer, goal="ahead", met=ratio > 1)  # fmt: skip
    for name, outcome in best.items():
        report.row(f"{name}: half are answered within", outcome.p50_ms, "ms")


def body(count: int) -> bytes:
    return b'{"records":[%b]}' % b",".join([RECORD] * count)


def http(port: int, count: int, seconds: float | None = None) -> Outcome:
    content = body(count)
    return closed_loop(
        connect(port, CONNECTIONS),
        lambda number: post(f"/v0/topics/t{number}", content),
        http_is_whole,
        seconds=SECONDS if seconds is None else seconds,
    )


def bare() -> dict[str, Outcome]:
    with servers.bare() as port:
        return {f"{BARE}, {count} a request": http(port, count) for count in (1, 100)}


def penstock() -> dict[str, Outcome]:
    with durable_topics() as port:
        return {f"penstock, {count} a request": http(port, count) for count in (1, 100)}


def compiled() -> dict[str, Outcome]:
    if not servers.is_compiled():
        raise MissingError("not built (`make compiled`)")
    with durable_topics(PYTHONPATH=str(servers.COMPILED)) as port:
        return {f"penstock compiled, {count} a request": http(port, count) for count in (1, 100)}


@contextmanager
def durable_topics(**settings: str) -> Iterator[int]:
    """Our server with a topic for each connection, every write of which is synced."""
    with servers.penstock(**settings) as port:
        connection = connect(port, 1)[0]
        for number in range(CONNECTIONS):
            request = post(f"/v0/topics/t{number}", b'{"durability":"fsync"}')
            connection.sendall(request.replace(b"POST", b"PUT", 1))
            answer = b""
            while not (answer and http_is_whole(answer)):
                answer += connection.recv(1 << 16)
        connection.close()
        yield port


def redis() -> dict[str, Outcome]:
    add = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%b\r\n" % (
        len(RECORD),
        RECORD,
    )
    batch = b"*1\r\n$5\r\nMULTI\r\n%b*1\r\n$4\r\nEXEC\r\n" % (add * 100)
    with servers.redis() as port:
        one = redis_load(port, add, lambda data: data.endswith(b"\r\n"))
        # OK, a QUEUED for each, then an array of 100 ids, two lines each
        many = redis_load(port, batch, lambda data: data.count(b"\r\n") >= 1 + 100 + 1 + 200)
    return {REDIS: one, REDIS_BATCHES: many}


def redis_load(port: int, command: bytes, is_whole: IsWhole) -> Outcome:
    connections = connect(port, CONNECTIONS)
    return closed_loop(connections, lambda _number: command, is_whole, seconds=SECONDS)


def nats() -> dict[str, Outcome]:
    with servers.nats() as port:
        connections: list[socket.socket] = [
            servers.nats_connect(port, b"in%d" % number) for number in range(CONNECTIONS)
        ]
        outcome = closed_loop(
            connections,
            lambda number: b"PUB bench in%d %d\r\n%b\r\n" % (number, len(RECORD), RECORD),
            lambda data: data.endswith(b"}\r\n"),
            seconds=SECONDS,
        )
    return {NATS: outcome}


def postgres() -> dict[str, Outcome]:
    """pgbench, which is a quicker client than ours; its own numbers are taken."""
    with servers.postgres() as port, tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"insert into bench (data) values ('{RECORD.decode()}');\n")
        script.flush()
        done = subprocess.run(
            [f"{postgres_bin()}/pgbench", "-n", "-h", "127.0.0.1", "-p", str(port),
             "-U", "postgres", "-c", str(CONNECTIONS), "-T", str(int(SECONDS) + 1),
             "-f", script.name, "-M", "prepared", "postgres"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    rate = re.search(r"tps = ([0-9.]+)", done.stdout)
    latency = re.search(r"latency average = ([0-9.]+)", done.stdout)
    assert rate, done.stdout
    assert latency, done.stdout
    average_ms = float(latency[1])
    return {POSTGRES: Outcome(float(rate[1]), average_ms, average_ms)}
