"""The dashboard: what ten of them cost the server, a look at a fast topic, and the page itself

The server is measured with plain sockets in place of browsers, the page in Chromium. The time of
the loop is that of its thread, as the system counts it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

from playwright.sync_api import Browser, CDPSession, sync_playwright

from bench import bench_delivery, bench_write, servers
from bench.dashboard_scene import (
    PAGES,
    SOME_TABLES,
    Place,
    beside,
    dashboards,
    feed,
    heard,
    make_tables,
    serving,
)
from bench.load import pin, post
from bench.peers import MissingError
from bench.report import Report
from penstock.app.server import Server
from penstock.config import Settings
from penstock.server.live.peek import Peek
from penstock.topics.core.batch import parse_write
from tools import chromium

SECONDS = 15.0
"""How long the loop and a page are looked at."""
LOAD_S = 3.0
"""How long a load lasts, once with dashboards and once without."""
ROUNDS = 7
WATCHERS = 20
TOPICS = (100, 100_000)
SAMPLES = 200
FAST_PER_S = 50_000
SLOW_PER_S = 20
LOOKS = 200
TABLES = 200
LAYOUTS = 5
TINY = {
    "SECONDS": 0.5,
    "LOAD_S": 0.1,
    "ROUNDS": 1,
    "TOPICS": (10, 100),
    "SAMPLES": 5,
    "FAST_PER_S": 2_000,
    "LOOKS": 4,
    "TABLES": 12,
    "LAYOUTS": 1,
}
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")


def run(report: Report) -> None:
    for name, measure in PIECES.items():
        if report.wants(name):
            with report.piece(name):
                try:
                    measure(report)
                except MissingError as error:
                    print(f"left out: {name}: {error}", flush=True)


def pieces() -> list[str]:
    return list(PIECES)


# The server


def tell_loop(report: Report) -> None:
    """Ten dashboards on ten pages, of a server on which something happens."""
    pin(1)
    with serving() as place, beside(feed, place):
        time.sleep(min(SECONDS, 3.0))
        alone = loop_ms_a_second(place)
        with dashboards(place):
            looked_at = loop_ms_a_second(place)
    report.row("loop of a server with a little traffic", alone, "ms/s")
    more = looked_at - alone
    report.row(
        "ten dashboards on ten pages",
        more,
        "ms/s",
        ratio=more / 5,
        against="5 ms of loop a second",
        goal="at most 1×",
        met=more <= 5,
    )


def loop_ms_a_second(place: Place) -> float:
    before, began = place.loop_ms(), time.perf_counter()
    time.sleep(SECONDS)
    return (place.loop_ms() - before) / (time.perf_counter() - began)


def tell_frames(report: Report) -> None:
    """What a page is told each second, and how much of it is a live tail."""
    pin(1)
    with serving() as place, beside(feed, place):
        time.sleep(min(SECONDS, 3.0))
        told = heard(place, PAGES, SECONDS)
    for kind, limit in (("frame", 4_096), ("peek", 8_192)):
        page, size = max(((page, sizes[kind]) for page, sizes in told.items()), key=itemgetter(1))
        name = f"{kind}s a second, the page with the most ({page})"
        tell_bound(report, name, size / 1_024, "KiB", limit / 1_024)


def tell_sampler(report: Report) -> None:
    """The sampler, with few topics and with very many."""
    found = {count: asyncio.run(sampled(count)) for count in TOPICS}
    few, many = (found[count] for count in TOPICS)
    for count, took_ms in found.items():
        report.row(
            f"a sample at {count:,} topics",
            took_ms,
            "ms",
            ratio=took_ms / 0.2,
            against="0.2 ms of loop a second",
            goal="at most 1×",
            met=took_ms <= 0.2,
        )
    report.row("very many topics against few", many / few, "×")


async def sampled(topics: int) -> float:
    """How long a sample takes, in ms."""
    async with serving_here() as server:
        for number in range(topics):
            await append(server, f"t{number}", 1)
        assert server.application is not None
        sampler = server.application.context.sampler
        sampler.stop()
        took = []
        for _ in range(SAMPLES):
            await asyncio.sleep(0)
            began = time.perf_counter_ns()
            sampler.sample(0.0)
            took.append((time.perf_counter_ns() - began) / 1e6)
        return median(took)


@asynccontextmanager
async def serving_here() -> AsyncIterator[Server]:
    """A server on this loop, in memory."""
    with servers.directory() as path:
        server = Server(Settings(port=0, store="memory", data_dir=path / "data", log="off"))
        await server.listen()
        await server.open()
        try:
            yield server
        finally:
            await server.close()


async def append(server: Server, topic: str, count: int, config: bytes = b"{}") -> None:
    """Append so many readings, as a client does."""
    assert server.engine is not None
    records = b",".join([b'{"data":{"meter":7,"kwh":1.25}}'] * min(count, 500))
    body = b'{"records":[%b],"config":%b}' % (records, config)
    for _ in range(max(1, count // 500)):
        await server.engine.append(topic, parse_write(body))


def tell_peek(report: Report) -> None:
    """A look at a topic that gets very many records, against one that gets what is shown."""
    fast, slow = asyncio.run(looked(FAST_PER_S)), asyncio.run(looked(SLOW_PER_S))
    report.row(f"a look at {SLOW_PER_S} records a second", slow, "ms/s")
    report.row(
        f"a look at {FAST_PER_S:,} records a second",
        fast,
        "ms/s",
        ratio=fast / slow,
        against=f"{SLOW_PER_S} records a second",
        goal="at most 2×",
        met=fast <= 2 * slow,
    )
    with serving() as place:
        near = compared(place, partial(crowded, place), dashboards_of=("/topics/t",))
    tell_ratio(report, f"a watcher at {FAST_PER_S:,} records a second", near, limit=1.1)


async def looked(per_s: int) -> float:
    """How long the looks of a second take, in ms."""
    async with serving_here() as server:
        config = b'{"durability":"memory","cap_records":100000}'
        await append(server, "t", 20, config)
        assert server.engine is not None
        now_ms = server.clock.now_ms()
        peek = Peek(server.engine, "t", None, now_ms)
        seconds = []
        for _ in range(LOOKS // 4):
            took_ns = 0
            for _ in range(4):
                await append(server, "t", per_s // 4)
                now_ms += 250
                began = time.perf_counter_ns()
                peek.look(now_ms)
                took_ns += time.perf_counter_ns() - began
            seconds.append(took_ns / 1e6)
        return median(seconds)


def crowded(place: Place) -> float:
    """What 99 of 100 deliveries to a watcher take, at 1,000 writes a second."""
    more = b',{"data":{"kwh":1}}' * (FAST_PER_S // bench_delivery.WRITES_A_SECOND - 1)

    def write(number: int, _writer: int) -> bytes:
        first = bench_delivery.payload(number)
        return post("/v0/topics/t", b'{"records":[{"data":%b}%b]}' % (first, more))

    watchers = bench_delivery.watching(place.port, 1)
    scene = bench_delivery.over_http(place.port, watchers)._replace(write=write)
    return bench_delivery.Drive(scene, LOAD_S).run().p99_ms


def tell_load(report: Report) -> None:
    """`bench write` and `bench delivery`, with ten dashboards and without, in turns."""
    pin(1)
    with serving() as place, beside(feed, place):
        wrote = compared(place, partial(written, place))
        told = compared(place, partial(delivered, place))
    tell_ratio(report, f"{bench_write.CONNECTIONS} writers", wrote, limit=1.03)
    tell_ratio(report, f"delivery to {WATCHERS} watchers", told, limit=1.03)


def written(place: Place) -> float:
    return bench_write.http(place.port, 1, LOAD_S).p99_ms


def delivered(place: Place) -> float:
    watchers = bench_delivery.watching(place.port, WATCHERS)
    scene = bench_delivery.over_http(place.port, watchers)
    return bench_delivery.Drive(scene, LOAD_S).run().p99_ms


def compared(
    place: Place, measure: Callable[[], float], dashboards_of: tuple[str, ...] = PAGES
) -> list[tuple[float, float]]:
    """Pairs of a number without dashboards and with them, each beside the other in time."""
    found = []
    for number in range(ROUNDS):
        pair: dict[bool, float] = {}
        for is_looked_at in (number % 2 == 0, number % 2 == 1):
            with dashboards(place, dashboards_of) if is_looked_at else nullcontext():
                pair[is_looked_at] = measure()
        found.append((pair[False], pair[True]))
    return found


def tell_ratio(report: Report, name: str, pairs: list[tuple[float, float]], limit: float) -> None:
    without, looked_at = (median(side) for side in zip(*pairs, strict=True))
    ratio = median(more / less for less, more in pairs)
    report.row(f"{name}, 99 of 100 within", without, "ms")
    report.row(
        f"{name}, 99 of 100 within, looked at",
        looked_at,
        "ms",
        ratio=ratio,
        against="without dashboards",
        goal=f"at most {limit}×",
        met=ratio <= limit,
    )


# The page


GRAPH = """async () => {
    const { graph } = JSON.parse(document.getElementById('twin').textContent).sections;
    const here = document.querySelector('script[type=module]').src;
    const worker = new Worker(new URL('layout.js', here), { type: 'module' });
    const began = performance.now();
    let [last, longest] = [began, 0];
    const timer = setInterval(() => {
        const now = performance.now();
        [last, longest] = [now, Math.max(longest, now - last - 10)];
    }, 10);
    const laid = new Promise((done) => { worker.onmessage = done; });
    worker.postMessage({ key: 'k', graph });
    await laid;
    clearInterval(timer);
    return [performance.now() - began, longest];
}"""


def tell_graph(report: Report) -> None:
    """The layout of many tables, and how long the page could not answer meanwhile."""
    found = chromium.find(os.environ)
    if found is None:
        raise MissingError(chromium.WHAT_TO_DO)
    pin(1)
    with serving() as place, sync_playwright() as playwright:
        make_tables(place.directory, TABLES, first=SOME_TABLES)
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{place.url}/tables?all=1")
        page.wait_for_function(f"() => document.querySelectorAll('.node').length >= {TABLES}")
        pairs = [page.evaluate(GRAPH) for _ in range(LAYOUTS)]
        browser.close()
    laid, blocked = (median(side) for side in zip(*pairs, strict=True))
    tell_bound(report, f"a graph of {TABLES} tables is laid out", laid, "ms", 1_000)
    report.row("… the page's thread is away meanwhile for", blocked, "ms")


def tell_page(report: Report) -> None:
    """Pages in Chromium: what a first load takes, and what the page's thread does."""
    found = chromium.find(os.environ)
    if found is None:
        raise MissingError(chromium.WHAT_TO_DO)
    pin(1)
    with serving() as place, beside(feed, place), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        loads = [load(browser, place, page) for page in PAGES]
        blank = load(browser, place, "/healthz").drawn_ms
        size, requests = max(each.bytes for each in loads), max(each.requests for each in loads)
        drawn = median(each.drawn_ms for each in loads)
        tell_bound(report, "first load, the largest page", size / 1e3, "kB", 200)
        tell_bound(report, "first load, requests", requests, "", 20)
        report.row("address to a first word, of a bare answer", blank, "ms")
        tell_bound(report, "address to first data", drawn, "ms", 400)
        for name, (path, limit, options) in VISITS.items():
            share = thread_share(browser, place, path, **options)
            tell_bound(report, f"page's thread, {name}", 100 * share, "%", limit)
        browser.close()


class Load(NamedTuple):
    """What the first load of a page came to."""

    bytes: int
    requests: int
    drawn_ms: float


VISITS: dict[str, tuple[str, float, dict[str, Any]]] = {
    "hidden": ("/", 0.5, {"is_hidden": True}),
    "visible without motion": ("/", 3, {"motion": "reduce"}),
    "visible with motion": ("/", 8, {}),
    "with a live tail": ("/topics/meters", 12, {}),
}
"""Pages, the share of the thread that they may take in percent, and how they are looked at."""
HIDE = """
    Object.defineProperty(document, 'hidden', { get: () => true });
    Object.defineProperty(document, 'visibilityState', { get: () => 'hidden' });
    addEventListener('load', () =>
      document.dispatchEvent(new Event('visibilitychange', { bubbles: true })));
"""


def tell_bound(report: Report, name: str, value: float, unit: str, limit: float) -> None:
    report.row(
        name,
        value,
        unit,
        ratio=value / limit,
        against=f"{limit:g} {unit}".strip(),
        goal="at most 1×",
        met=value <= limit,
    )


def load(browser: Browser, place: Place, path: str) -> Load:
    """A first load: nothing is in the cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    requests: list[Any] = []

    def note(request: Any) -> None:
        requests.append(request)

    page.on("request", note)
    page.goto(place.url + path)
    page.wait_for_load_state("load")
    page.wait_for_function(f"() => {PAINT}")
    drawn = page.evaluate(f"() => {PAINT}.startTime")
    own = [each for each in requests if "/v0/" not in each.url]
    size = sum(each.sizes()["responseBodySize"] for each in own if each.response())
    context.close()
    return Load(size, len(own), drawn)


PAINT = "performance.getEntriesByName('first-contentful-paint')[0]"


def thread_share(
    browser: Browser,
    place: Place,
    path: str,
    *,
    is_hidden: bool = False,
    motion: str = "no-preference",
) -> float:
    """Which part of the time the page's thread works."""
    size = {"width": 1440, "height": 900}
    context = browser.new_context(viewport=size, reduced_motion=motion)  # type: ignore[arg-type]
    page = context.new_page()
    if is_hidden:
        page.add_init_script(HIDE)
    page.goto(place.url + path)
    page.wait_for_selector("main h1")
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.wait_for_timeout(min(SECONDS, 5) * 1e3)
    before, began = busy_s(session), time.perf_counter()
    page.wait_for_timeout(SECONDS * 1e3)
    share = (busy_s(session) - before) / (time.perf_counter() - began)
    context.close()
    return share


def busy_s(session: CDPSession) -> float:
    """How long the tasks of the page's thread have run."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    found: float = next(each["value"] for each in metrics if each["name"] == "TaskDuration")
    return found


PIECES: dict[str, Callable[[Report], None]] = {
    "loop": tell_loop,
    "frames": tell_frames,
    "graph": tell_graph,
    "sampler": tell_sampler,
    "peek": tell_peek,
    "load": tell_load,
    "page": tell_page,
}
