"""Differential refresh as tables grow, wear and change a hundred times in a row.

*Growth*: the same number of changed rows on a small and on a large table. *Small*: a refresh of a
hundred changed rows against the smallest job of the same Spark that reads a Parquet file, with the
jobs that it took by Spark's own event log. *Hundred*: refreshes of 0.1 % in a row while a
coordinator's upkeep compacts beside them. *Worn*: reading a table of which 1 % were deleted against
reading it as it was, and again after the upkeep that follows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.delta_shop import VIEWS, DeltaShop
from bench.report import Report
from bench.table_shop import CACHE, RUNNER, bench_spark
from penstock.app.tables import Warehouse
from penstock.lake.compact import CompactionPolicy, compact
from penstock.spark.jvm.embedded import start_spark
from penstock.spark.link import connect
from penstock.spark.options import SparkOptions
from penstock.spark.refresh import query_frame
from penstock.tables.coordinator.upkeep import WORN_SHARE, tidy
from penstock.tables.core.model import Mode
from penstock.tables.store import TableStore

GROW = (1_000_000, 10_000_000)
CHANGE = 1_000
REPEATS = 9
GROWING = (
    ("filter + project", "uniform"),
    ("GROUP BY", "uniform"),
    ("join", "recent"),
    ("join", "uniform"),
)
SMALL_ROWS = 1_000_000
SMALL_CHANGE = 100
SMALL_VIEWS = ("filter + project", "GROUP BY")
HUNDRED = 100
HUNDRED_ROWS = 1_000_000
HUNDRED_VIEWS = ("filter + project", "GROUP BY", "join")
WORN_ROWS = 10_000_000
TINY = {
    "GROW": (1_000, 2_000),
    "CHANGE": 10,
    "REPEATS": 1,
    "GROWING": (("GROUP BY", "uniform"),),
    "SMALL_ROWS": 1_000,
    "SMALL_CHANGE": 10,
    "SMALL_VIEWS": ("filter + project",),
    "HUNDRED": 4,
    "HUNDRED_ROWS": 2_000,
    "HUNDRED_VIEWS": ("GROUP BY",),
    "WORN_ROWS": 2_000,
}


def pieces() -> list[str]:
    growth = [growing(view, kind) for view, kind in GROWING]
    hundreds = [f"hundred: {view}" for view in HUNDRED_VIEWS]
    return [*growth, *(f"small: {view}" for view in SMALL_VIEWS), *hundreds, "worn"]


def growing(view: str, kind: str) -> str:
    return f"growth: {view}, {kind}"


def run(report: Report) -> None:
    wanted = [name for name in pieces() if report.wants(name)]
    if any(name.startswith("small") for name in wanted):
        small(report)
    if all(name.startswith("small") for name in wanted):
        return
    with bench_spark() as (spark, home):
        for view, kind in GROWING:
            if report.wants(growing(view, kind)):
                with report.piece(growing(view, kind)):
                    growth(report, view, kind, spark.url, home)
        for view in HUNDRED_VIEWS:
            if report.wants(f"hundred: {view}"):
                with report.piece(f"hundred: {view}"):
                    hundred(report, view, spark.url, home)
        if report.wants("worn"):
            with report.piece("worn"):
                worn(report, spark.url, home)


@contextmanager
def shop_of(url: str, home: Path, rows: int) -> Iterator[DeltaShop]:
    """A warehouse of so many rows."""
    home.mkdir()
    options: dict[str, Any] = {"runner": RUNNER, "runner_options": {"remote": url}}
    with Warehouse.open(f"sqlite:{home}/lake.sqlite", str(home / "data"), **options) as opened:
        yield DeltaShop(opened, rows, seed=7)


def growth(report: Report, view: str, kind: str, url: str, home: Path) -> None:
    """A change of the same size on a small and on a large table."""
    took = []
    for rows in GROW:
        with shop_of(url, home / f"{view} {kind} {rows}", rows) as shop:
            shop.create("made", VIEWS[view], "differential")
            took.append(median(times(shop, kind, CHANGE, REPEATS)))
    is_bound = (view, kind) != ("join", "uniform")  # every row group holds a key: it may grow
    report.row(
        f"{view}: {CHANGE:,} {kind} changes of {GROW[1]:,} rows", took[1], "ms",
        ratio=took[1] / took[0], against=f"of {GROW[0]:,} rows",
        goal="at most 2×" if is_bound else None, met=took[1] <= 2 * took[0] if is_bound else None,
    )  # fmt: skip


def times(shop: DeltaShop, kind: str, count: int, repeats: int) -> list[float]:
    """How long refreshes take, in milliseconds; the first two are for warming up."""
    found = []
    for _ in range(repeats + 2):
        shop.change_rows(kind, count)
        found.append(shop.in_mode("made", Mode.DIFFERENTIAL).ms)
    return found[2:]


def small(report: Report) -> None:
    """Few changed rows, on a Spark that logs its events."""
    with bench_spark() as (_, home):
        events = home / "events"
        events.mkdir()
        conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{events}",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        with (
            start_spark(SparkOptions(cache_dir=CACHE, conf=conf)) as spark,
            shop_of(spark.url, home / "small", SMALL_ROWS) as shop,
        ):
            for view in SMALL_VIEWS:
                if report.wants(f"small: {view}"):
                    with report.piece(f"small: {view}"):
                        few(report, shop, view, spark.url, events)


def few(report: Report, shop: DeltaShop, view: str, url: str, events: Path) -> None:
    shop.create("made", VIEWS[view], "differential")
    took, jobs, floors = [], [], []
    for repeat in range(REPEATS * 3):  # Spark gets quicker for hundreds of queries
        shop.change_rows("recent", SMALL_CHANGE)
        before = job_count(events)
        cost = shop.in_mode("made", Mode.DIFFERENTIAL)
        after = job_count(events)
        floor = smallest_job(shop, url)
        if repeat >= REPEATS * 2 or REPEATS == 1:
            took.append(cost.ms)
            jobs.append(after - before)
            floors.append(floor)
    floor_ms = median(floors)
    report.row(f"{view}: smallest job with a Parquet read", floor_ms, "ms")
    report.row(
        f"{view}: {SMALL_CHANGE} changed rows", median(took), "ms", ratio=median(took) / floor_ms,
        against="smallest job", goal="at most 2×", met=median(took) <= 2 * floor_ms,
    )  # fmt: skip
    report.row("… Spark jobs", max(jobs), "jobs", goal="one", met=max(jobs) == 1)
    shop.warehouse.drop("made")


def job_count(events: Path) -> int:
    """Jobs that Spark has started, by its event log."""
    found = 0
    for path in events.iterdir():
        with path.open() as lines:
            found += sum(line.startswith('{"Event":"SparkListenerJobStart"') for line in lines)
    return found


def smallest_job(shop: DeltaShop, url: str) -> float:
    """The time of a query that reads one small Parquet file, by a bare client."""
    lake = shop.warehouse.lake
    version = lake.table_at("facts")
    last = version.files[-1]
    with connect(url) as session:
        found = []
        for _ in range(3):
            only = type(version)(version.table, version.snapshot, (last,), version.inlined, {})
            frame = query_frame(session, lake, "SELECT id FROM facts", {"facts": only})
            began = time.perf_counter()
            frame.toArrow()
            found.append((time.perf_counter() - began) * 1_000)
    return min(found)


def hundred(report: Report, view: str, url: str, home: Path) -> None:
    """Refreshes in a row, with the upkeep of a coordinator beside them."""
    with shop_of(url, home / f"hundred {view}", HUNDRED_ROWS) as shop:
        shop.create("made", VIEWS[view], "differential")
        took = []
        with upkeep(shop):
            for _ in range(HUNDRED + 5):
                shop.change("uniform", 0.001)
                took.append(shop.in_mode("made", Mode.DIFFERENTIAL).ms)
        took = took[5:]
        share = max(1, HUNDRED // 10)
        first, last = median(took[:share]), median(took[-share:])
        report.row(
            f"{view}: last of {HUNDRED} refreshes of 0.1 %", last, "ms", ratio=last / first,
            against="the first", goal="at most 1.3×", met=last <= 1.3 * first,
        )  # fmt: skip
        report.row("… files at the end", len(shop.warehouse.lake.table_at("made").files), "files")


@contextmanager
def upkeep(shop: DeltaShop) -> Iterator[None]:
    """Compact stream tables as a coordinator does, in a thread of its own."""
    stop = threading.Event()

    def keep_tidy() -> None:
        with Warehouse(shop.warehouse.settings, make=False) as other:
            store = TableStore(other.lake)
            while not stop.wait(1.0):
                tidy(store, round(time.time() * 1_000))

    thread = threading.Thread(target=keep_tidy)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def worn(report: Report, url: str, home: Path) -> None:
    """Reading a table that lost rows."""
    with shop_of(url, home / "worn", WORN_ROWS) as shop, connect(url) as session:
        whole = reading(shop, session)
        shop.facts.replace(shop.facts.chosen("uniform", max(1, WORN_ROWS // 100)), one_row(shop))
        lost = reading(shop, session)
        compact(shop.warehouse.lake, "facts", CompactionPolicy(deleted_share_min=WORN_SHARE))
        tidied = reading(shop, session)
    report.row("reading all columns of a table", whole, "ms")
    report.row(
        "… of which 1 % were deleted", lost, "ms", ratio=lost / whole, against="reading it before",
        goal="at most 1.3×", met=lost <= 1.3 * whole,
    )  # fmt: skip
    report.row(
        "… after the upkeep that follows",
        tidied,
        "ms",
        ratio=tidied / whole,
        against="reading it before",
        goal="at most 1.3×",
        met=tidied <= 1.3 * whole,
    )


def one_row(shop: DeltaShop) -> dict[str, Any]:
    return {name: column[:1] for name, column in shop.facts.held.items()}


def reading(shop: DeltaShop, session: Any) -> float:
    lake = shop.warehouse.lake
    found = []
    for _ in range(REPEATS + 1):
        query = "SELECT sum(id), sum(part), sum(bucket), sum(kind), sum(amount) FROM facts"
        frame = query_frame(session, lake, query, {"facts": lake.table_at("facts")})
        began = time.perf_counter()
        frame.toArrow()
        found.append((time.perf_counter() - began) * 1_000)
    return median(found[1:])
