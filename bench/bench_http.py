"""HTTP/1.1: the transport against a bare httptools protocol that reads no headers"""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httptools
import uvloop

from bench.load import PATIENCE_S
from bench.report import Report
from penstock.server.http import Listener
from penstock.server.http.message import Exchange

CONNECTIONS = 64
SECONDS = 0.7
ROUNDS = 9
BODY = b'{"records":[{"data":{"meter":17,"kwh":1.25}}]}'
ANSWER = b'{"first_seq":1,"last_seq":1,"head_seq":1,"count":1,"deduped":false}'
HEADERS = (
    b"Host: localhost:4000\r\nUser-Agent: bench\r\nAccept: */*\r\nAuthorization: Bearer 0123\r\n"
)
BARE = "bare httptools protocol"
TINY = {"CONNECTIONS": 4, "SECONDS": 0.1, "ROUNDS": 1}
KEPT: list[object] = []
"""Servers, for as long as their process lives."""
USUAL = "transport, one head again and again"


class Rate(NamedTuple):
    """What one load came to."""

    a_second: float
    cpu_us: float
    """Processor time of the server for each request."""


def run(report: Report) -> None:
    cases = {
        BARE: (serve_bare, same),
        USUAL: (serve_penstock, same),
        "transport, every head another": (serve_penstock, different),
    }
    best = measure(cases)
    bare = best[BARE]
    for name, rate in best.items():
        if name == BARE:
            report.row(name, rate.a_second, "requests/s")
        else:
            ratio = rate.a_second / bare.a_second
            goal = {"goal": "at least 0.7×", "met": ratio >= 0.7} if name == USUAL else {}
            report.row(name, rate.a_second, "requests/s", ratio=ratio, against=BARE, **goal)
    for name, rate in best.items():
        ratio = None if name == BARE else rate.cpu_us / bare.cpu_us
        report.row(f"{name}: processor time", rate.cpu_us, "µs/request", ratio=ratio,
                   against=None if ratio is None else BARE)  # fmt: skip


def measure(cases: dict[str, tuple[Callable[..., Any], Callable[..., Any]]]) -> dict[str, Rate]:
    """The best of several rounds of each case; the rounds take turns, as the machine is shared."""
    found: dict[str, list[Rate]] = {name: [] for name in cases}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(serving(serve)) for name, (serve, _) in cases.items()}
        for _ in range(ROUNDS):
            for name, (_, requests) in cases.items():
                found[name].append(load(*servers[name], requests))
    return {
        name: Rate(max(rate.a_second for rate in rates), min(rate.cpu_us for rate in rates))
        for name, rates in found.items()
    }


# the load ----------------------------------------------------------------------------------------


def same() -> Iterator[bytes]:
    """One request for ever."""
    request = post(b"/v0/topics/meters")
    while True:
        yield request


def different() -> Iterator[bytes]:
    """Requests of which no two heads are alike."""
    count = 0
    while True:
        count += 1
        yield post(b"/v0/topics/m%d" % count)


def post(target: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (target, HEADERS, len(BODY), BODY)
    )


def load(port: int, pid: int, requests: Callable[[], Iterator[bytes]]) -> Rate:
    pin(-1)
    sockets = {}
    poll = select.epoll()
    following = requests().__next__
    for _ in range(CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[connection.fileno()] = (connection.recv, connection.send, connection)
        poll.register(connection, select.EPOLLIN)
    for _, send, _ in sockets.values():
        send(following())
    exchange_for(0.2, poll, sockets, following)
    cpu_s = processor_s(pid)
    began = time.perf_counter()
    done = exchange_for(SECONDS, poll, sockets, following)
    spent = time.perf_counter() - began
    cpu_s = processor_s(pid) - cpu_s
    for _, _, connection in sockets.values():
        connection.close()
    return Rate(done / spent, cpu_s / done * 1e6)


def exchange_for(
    seconds: float, poll: select.epoll, sockets: dict[int, Any], following: Callable[[], bytes]
) -> int:
    done = 0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or (not done and time.perf_counter() < until + PATIENCE_S):
        for fd, _ in poll.poll():
            receive, send, _ = sockets[fd]
            receive(4096)
            send(following())
            done += 1
    return done


def processor_s(pid: int) -> float:
    """Time that a process has spent on a processor."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9
        for task in Path(f"/proc/{pid}/task").iterdir()
    )


# the servers -------------------------------------------------------------------------------------


@contextmanager
def serving(serve: Callable[..., Any]) -> Iterator[tuple[int, int]]:
    """A server in a process of its own on the first core: its port and process."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve_alone, args=(serve, there), daemon=True)
    process.start()
    try:
        yield here.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join()


def serve_alone(serve: Callable[..., Any], pipe: Any) -> None:
    pin(0)

    async def main() -> None:
        pipe.send(await serve())
        await asyncio.Event().wait()

    uvloop.run(main())


def pin(core: int) -> None:
    """Stay on the first or the last core, so that server and load do not share one."""
    os.sched_setaffinity(0, {range(os.cpu_count() or 1)[core]})


class Bare(asyncio.Protocol):
    """No headers, no path, no request object: what parsing and the loop cost alone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(FIXED)


FIXED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)


async def serve_bare() -> int:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    KEPT.append(server)
    return port


async def serve_penstock() -> int:
    def application(exchange: Exchange) -> None:
        exchange.reply_json(ANSWER)

    listener = Listener(application)
    KEPT.append(listener)
    return (await listener.start(port=0))[1]
