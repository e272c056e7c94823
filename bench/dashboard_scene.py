"""A server that has something on every page, what happens on it, and dashboards that look."""

from __future__ import annotations

import http.client
import json
import multiprocessing as mp
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import servers
from bench.load import connect, free_port, pin
from penstock.app.tables import Warehouse
from penstock.protocol.part_answers import IngestFacts, PartReport, StageState

PAGES = (
    "/", "/topics", "/topics/meters", "/queues/jobs", "/pipeline", "/tables", "/tables/t1",
    "/entities/prices/flat", "/lake", "/cluster",
)  # fmt: skip
STAGES = ("accept", "reassemble", "parse", "evaluate", "store")
SOME_TABLES = 10
REQUESTS_A_SECOND = 50
"""Requests of ten records, so that every page has something to tell each second."""


class Place(NamedTuple):
    """Where a server is: its port, its process and its directory."""

    port: int
    pid: int
    directory: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def loop_ms(self) -> float:
        """How long the thread of the event loop has run so far."""
        ran = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text()
        return int(ran.split()[0]) / 1e6


@contextmanager
def serving(**settings: str) -> Iterator[Place]:
    """Our server with a topic, a queue, a space, and tables."""
    port = free_port()
    with servers.directory() as path:
        env = {"PENSTOCK_PORT": str(port), "PENSTOCK_DATA_DIR": str(path / "data"), **settings}
        with servers.process(
            [sys.executable, "-m", "penstock", "serve"], port=port, env=env
        ) as pid:
            servers.wait_until_ready(port)
            place = Place(port, pid, path)
            fill(place)
            yield place


def fill(place: Place) -> None:
    """Something of every kind."""
    make_tables(place.directory, SOME_TABLES)
    ask(place, "/v0/topics/meters", {"records": [reading(n) for n in range(50)]})
    queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "jobs.dead"}
    ask(place, "/v0/topics/jobs", {"records": [{"data": n} for n in range(9)], "config": queue})
    write = {"entity": "flat", "set": {"name": "flat", "cents_per_kwh": 31}}
    change = {"session": "bench", "local_seq": 1, "writes": [write]}
    ask(place, "/v0/spaces/prices/commits", change)


def make_tables(directory: Path, count: int, first: int = 0) -> None:
    """A warehouse beside the data, with tables over tables."""
    with Warehouse.open(f"sqlite:{directory / 'warehouse.sqlite'}", None) as warehouse:
        if not first:
            warehouse.declare_topic("meters", "meter INT, kwh DOUBLE")
        for n in range(first, count):
            source = "topics.meters" if n < 5 else f"t{n // 3}"
            query = f"SELECT meter, kwh FROM {source} WHERE kwh > {n}"
            warehouse.create(f"t{n}", query, schedule="1h")


def reading(number: int) -> dict[str, Any]:
    return {"data": {"meter": number, "kwh": 1.25}, "tag": f"m{number % 5}"}


def ask(place: Place, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=30)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    if answer.status >= 400:
        raise RuntimeError(f"{path}: {found}")
    return found


@contextmanager
def beside(work: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Do something in a process of its own, on the second core."""
    process = mp.get_context("fork").Process(target=_pinned, args=(work, arguments), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _pinned(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    pin(1)
    work(*arguments)


def feed(place: Place) -> None:
    """Write readings and the reports of a pipeline, evenly, until killed."""
    began, pause = time.monotonic(), threading.Event()
    number = 0
    while True:
        number += 1
        ask(place, f"/v0/topics/t{number % 20}", {"records": [reading(n) for n in range(10)]})
        ask(place, "/v0/topics/meters", {"records": [reading(number)]})
        if number % REQUESTS_A_SECOND == 1:
            ask(place, "/v0/topics/penstock.parts.ingest.bench", {"records": [{"data": report()}]})
        pause.wait(max(0.0, began + number / REQUESTS_A_SECOND - time.monotonic()))


def report() -> Any:
    """What a pipeline says of itself; it differs each time."""
    now_ms = int(time.time() * 1e3)
    stages = [
        StageState(
            name=name, window=64, occupied=20 + now_ms // 1000 % 40, occupancy=0.4 + n / 10,
            rate_per_s=20_000.0 + now_ms // 1000 % 977, p50_ms=2.5, p99_ms=9.5 + n, busy=0.5,
            bytes=1_000_000, items_in=now_ms // 1000, items_out=now_ms // 1000,
        )
        for n, name in enumerate(STAGES)
    ]  # fmt: skip
    facts = IngestFacts(
        stages=stages, bottleneck="store", budget_bytes=100_000_000, drain_per_s=20_000,
        edge={"devices": 400, "messages_acked_total": now_ms // 10},
        reads=["topics.meters"], writes=["readings"],
    )  # fmt: skip
    said = PartReport(
        at=now_ms, since=now_ms - 60_000, pid=os.getpid(), host="bench", version="0",
        behind=100, facts=msgspec.to_builtins(facts),
    )  # fmt: skip
    return msgspec.to_builtins(said)


def opened(place: Place, pages: tuple[str, ...]) -> list[socket.socket]:
    """The streams of pages, each at its first frame."""
    streams = connect(place.port, len(pages))
    for stream, page in zip(streams, pages, strict=True):
        stream.sendall(
            f"GET /v0/live?on={page} HTTP/1.1\r\nHost: localhost\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        received = b""
        while b"event: frame" not in received:
            received += stream.recv(1 << 18)
    return streams


def heard(place: Place, pages: tuple[str, ...], seconds: float) -> dict[str, dict[str, float]]:
    """How many bytes of frames and of a live tail each page is told in a second."""
    streams = opened(place, pages)
    until, received = time.monotonic() + seconds, dict.fromkeys(pages, b"")
    selector = selectors.DefaultSelector()
    for stream, page in zip(streams, pages, strict=True):
        selector.register(stream, selectors.EVENT_READ, page)
    while time.monotonic() < until:
        for key, _ in selector.select(0.1):
            received[key.data] += key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
    found = {}
    for page, text in received.items():
        blocks = text.split(b"\n\n")
        found[page] = {
            kind: sum(len(each) for each in blocks if b"event: %b" % kind.encode() in each)
            / seconds
            for kind in ("frame", "peek")
        }
    for stream in streams:
        stream.close()
    return found


@contextmanager
def dashboards(place: Place, pages: tuple[str, ...] = PAGES) -> Iterator[None]:
    """So many browsers that have a page open, once each of them was told its state."""
    streams = opened(place, pages)
    with beside(read_all, streams):
        yield
    for stream in streams:
        stream.close()


def read_all(streams: list[socket.socket]) -> None:
    """Read what comes until killed."""
    selector = selectors.DefaultSelector()
    for stream in streams:
        selector.register(stream, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
