"""Freshness: from an acknowledged write to a topic until tables that follow it have it.

A chain of three small tables, and an atomic diamond (two tables over the topic and one over both,
committed together). *Visible* is the moment at which the catalog's newest snapshot has the write's
number in the last table, looked for in this process without a pause that matters. At one write a
second the time of each write counts. At a thousand writes a second the lag is how long after its
acknowledgement the newest visible write was visible, and it may not grow.

The bound is the smallest job of the same Spark with a Parquet read, in the same session kind: a
chain of three cannot be fresher than three of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import pyarrow as pa

from bench.report import Report
from bench.servers import penstock
from bench.table_shop import RUNNER, WORKERS, bench_spark
from penstock.app.tables import Warehouse
from penstock.client import Client
from penstock.spark.link import connect
from penstock.spark.refresh import query_frame
from penstock.tables.core.health import HealthState

WARM_WRITES = 25
WRITES = 40
EVERY_S = 1.0
RATE = 1_000
LOAD_S = 12.0
BATCH = 20
P50_MS, P99_MS = 400, 1_000
SCHEDULE = "50ms"
PATIENCE_S = 120.0
TINY = {"WARM_WRITES": 1, "WRITES": 2, "EVERY_S": 0.0, "LOAD_S": 0.5}

CHAIN = (
    ("one", "SELECT k, n FROM topics.events WHERE n >= 0"),
    ("two", "SELECT k, n, n * 2 AS twice FROM one"),
    ("three", "SELECT k, max(n) AS n, count(*) AS c FROM two GROUP BY k"),
)
DIAMOND = (
    ("left_side", "SELECT k, max(n) AS n FROM topics.events GROUP BY k"),
    ("right_side", "SELECT k, count(*) AS c FROM topics.events GROUP BY k"),
    ("both", "SELECT l.k, l.n, r.c FROM left_side l JOIN right_side r ON r.k = l.k"),
)
SHAPES = {"chain of three": (CHAIN, "none", "three"), "atomic diamond": (DIAMOND, "atomic", "both")}


def run(report: Report) -> None:
    with bench_spark() as (spark, home):
        floor_ms = smallest_job(spark.url, home)
        report.row("smallest Spark job with a Parquet read", floor_ms, "ms")
        for number, (name, (tables, consistency, last)) in enumerate(SHAPES.items()):
            with followed(home / str(number), spark.url, tables, consistency, last) as follower:
                follower.warm()
                slow = follower.one_by_one(WRITES, EVERY_S)
                rows(report, name, slow, floor_ms, follower.refreshed_ms())
                lags = follower.under_load(LOAD_S)
                load_rows(report, name, lags, follower.refreshed_ms())


def rows(report: Report, name: str, found: list[float], floor_ms: float, refresh_ms: float) -> None:
    middle, tail = median(found), quantiles(found, n=100, method="inclusive")[98]
    report.row(
        f"{name}, write to visible, p50", middle, "ms", ratio=middle / floor_ms,
        against="smallest Spark job", goal=f"at most {P50_MS} ms", met=middle <= P50_MS,
    )  # fmt: skip
    report.row(
        f"{name}, write to visible, p99", tail, "ms", ratio=tail / floor_ms,
        against="smallest Spark job", goal=f"at most {P99_MS} ms", met=tail <= P99_MS,
    )  # fmt: skip
    report.row("… refreshes of one write, one after the other", refresh_ms, "ms")


def load_rows(report: Report, name: str, lags: list[float], refresh_ms: float) -> None:
    half = len(lags) // 2
    first, second = median(lags[:half] or lags), median(lags[half:])
    bound = 2 * refresh_ms
    report.row(
        f"{name}, lag at {RATE} writes/s, second half", second, "ms", ratio=second / refresh_ms,
        against="its refreshes one after the other",
        goal="at most two refreshes", met=second <= bound,
    )  # fmt: skip
    report.row("… first half", first, "ms")


def smallest_job(url: str, home: Path) -> float:
    """The median time of a query over a Parquet file of one row, by a bare client."""
    place = f"sqlite:{home}/floor.sqlite"
    with Warehouse.open(place, runner=RUNNER) as warehouse, connect(url) as session:
        lake = warehouse.lake
        change = lake.begin()
        data = pa.table({"n": pa.array([1], pa.int64())})
        table = change.create_table(lake.schema("main"), "tiny", data.schema)
        change.add_files(table, [lake.write(table, data)])
        lake.commit(change)
        found = []
        for _ in range(20):
            version = lake.table_at("tiny")
            frame = query_frame(session, lake, "SELECT n FROM tiny", {"tiny": version})
            began = time.perf_counter()
            frame.toArrow()
            found.append((time.perf_counter() - began) * 1_000)
    return median(found[5:])


class Follower:
    """Writes to the topic, and looks when the last table has it."""

    def __init__(self, warehouse: Warehouse, topics: Client, last: str, tables: list[str]) -> None:
        self._warehouse, self._topics, self._last, self._tables = warehouse, topics, last, tables
        self._number = 0

    def warm(self) -> None:
        self.one_by_one(WARM_WRITES, 0.0)

    def one_by_one(self, count: int, every_s: float) -> list[float]:
        """How long each write took to be visible, in milliseconds."""
        found = []
        for _ in range(count):
            began = time.perf_counter()
            self._write(1)
            acked = time.perf_counter()
            self._until(self._number)
            found.append((time.perf_counter() - acked) * 1_000)
            time.sleep(max(0.0, every_s - (time.perf_counter() - began)))
        return found

    def under_load(self, seconds: float) -> list[float]:
        """The lag of what was visible, looked at again and again, in milliseconds."""
        acked: dict[int, float] = {}
        stop = threading.Event()

        def keep_writing() -> None:
            due = time.perf_counter()
            while not stop.is_set():
                self._write(BATCH)
                acked[self._number] = time.perf_counter()
                due += BATCH / RATE
                stop.wait(max(0.0, due - time.perf_counter()))

        writer = threading.Thread(target=keep_writing)
        writer.start()
        lags, until, seen = [], time.perf_counter() + seconds, 0
        while time.perf_counter() < until or not lags:
            visible = self._visible()
            if visible > seen and visible in acked:
                seen = visible
                lags.append((time.perf_counter() - acked[visible]) * 1_000)
        stop.set()
        writer.join()
        self._until(self._number)
        return lags

    def refreshed_ms(self) -> float:
        """How long one refresh of each unit takes, all added up: medians of the last ones."""
        took = {}
        for name in self._tables:
            history = self._warehouse.history(name, limit=30)
            took[history[0].unit_key] = median(record.took_ms for record in history)
        return sum(took.values())

    def _write(self, count: int) -> None:
        first = self._number + 1
        self._topics.write("events", [{"k": 1, "n": first + at} for at in range(count)])
        self._number += count

    def _visible(self) -> int:
        page = self._warehouse.rows(self._last, columns=["n"]).rows
        return int(page.column("n")[0].as_py()) if page.num_rows else 0

    def _until(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_S
        while self._visible() < number:
            if time.monotonic() > until:
                raise SystemExit(f"expected {self._last} to be fresh in {PATIENCE_S} s")
            time.sleep(0.001)


@contextmanager
def followed(
    home: Path, url: str, tables: tuple[tuple[str, str], ...], consistency: str, last: str
) -> Iterator[Follower]:
    """Tables over a topic of a real server, kept fresh by a coordinator in this process."""
    home.mkdir()
    with penstock() as port:
        address = f"http://127.0.0.1:{port}"
        with (
            Client(address) as topics,
            Warehouse.open(
                f"sqlite:{home}/catalog.sqlite", runner=RUNNER, runner_options={"remote": url},
                max_concurrent_refreshes=WORKERS, max_workers=WORKERS,
            ) as warehouse,
        ):  # fmt: skip
            topics.put_topic("events")
            topics.write("events", [{"k": 1, "n": 0}])
            warehouse.declare_topic("events", "k BIGINT, n BIGINT", url=address)
            for name, query in tables:
                warehouse.create(name, query, schedule=SCHEDULE, consistency=consistency)
            with warehouse.coordinator():
                while warehouse.health().state is HealthState.NOT_RUNNING:
                    time.sleep(0.02)
                names = [name for name, _ in tables]
                while {row.table for row in warehouse.status() if row.frontier} != set(names):
                    time.sleep(0.02)
                yield Follower(warehouse, topics, last, names)
