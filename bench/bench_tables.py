"""Tables: refreshes side by side against one by one, on one Spark; what a refresh costs beside it.

Two warehouses on the same Spark have the same tables; one refreshes them one by one (`off`), the
other in four worker processes (`on`). They take turns: a new version of the source is committed,
every table is asked for while the coordinator is drained, and the time is taken from the moment it
may start until the last table is fresh. What can be gained is measured as well: the
same queries on the same Spark by bare clients, one and several at a time. A graph of ten tables is
also run by Spark Declarative Pipelines, on the same Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.report import Report
from penstock.spark.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import SparkOptions
from penstock.spark.refresh import query_frame
from penstock.spark.session import connect
from penstock.tables.health import HealthState
from penstock.tables.jobs import Job
from penstock.tables.shell import Warehouse

ROWS = 20_000
COUNTS = (10, 50, 100)
ROUNDS = 3
WORKERS = 4
WARM_ROUNDS = 40
SINGLES = 60
SHARE_MAX = 1.25
OVERHEAD_MS = 25
START_MS = 20
PATIENCE_S = 300
RUNNER = "penstock.spark.refresh:make"
CACHE = Path(__file__).parents[1] / "build" / "spark"

GRAPH = {
    "by_meter": "SELECT meter, count(*) AS n, max(value) AS top FROM facts GROUP BY meter",
    "by_hour": "SELECT hour, count(*) AS n, max(value) AS top FROM facts GROUP BY hour",
    "by_both": "SELECT meter, hour, max(value) AS top FROM facts GROUP BY meter, hour",
    "high": "SELECT meter, hour, value FROM facts WHERE value > 990",
    "low": "SELECT meter, hour, value FROM facts WHERE value < 10",
    "busy": "SELECT meter, n FROM by_meter WHERE n > 100",
    "peaks": "SELECT b.meter, b.hour FROM by_both b JOIN by_meter m ON b.meter = m.meter "
             "AND b.top = m.top",
    "extremes": "SELECT meter FROM high UNION ALL SELECT meter FROM low",
    "hours": "SELECT h.hour, count(*) AS n FROM by_hour h JOIN peaks p ON p.hour = h.hour "
             "GROUP BY h.hour",
    "total": "SELECT count(*) AS n FROM extremes",
}  # fmt: skip


def run(report: Report) -> None:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        with start_spark(SparkOptions(cache_dir=CACHE)) as spark:
            measured(report, spark, home)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measured(report: Report, spark: EmbeddedSpark, home: Path) -> None:
    serial, parallel = (Shop(home / mode, spark.url, mode) for mode in ("off", "on"))
    with serial.running(), parallel.running():
        for shop in (serial, parallel):
            shop.grow(COUNTS[0])
            for _ in range(WARM_ROUNDS // 2):
                shop.round()
        singles(report, parallel)
        for count in COUNTS:
            compare(report, spark, serial, parallel, count)
    serial.close()
    parallel.close()
    pipelines(report, spark, home)


class Shop:
    """A warehouse with a source of facts and as many tables as are asked for."""

    def __init__(self, home: Path, url: str, mode: str) -> None:
        self.warehouse = Warehouse.open(
            f"sqlite:{home}/catalog.sqlite", runner=RUNNER, runner_options={"remote": url},
            parallel_refresh_mode=mode, max_concurrent_refreshes=WORKERS, max_workers=WORKERS,
            tick_ms=20,
        )  # fmt: skip
        self.lake = self.warehouse.lake
        self.names: list[str] = []
        self._number = 0
        self.write()

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.warehouse.coordinator():
            while self.warehouse.health().state is HealthState.NOT_RUNNING:
                time.sleep(0.02)
            yield

    def close(self) -> None:
        self.warehouse.close()

    def write(self) -> None:
        """A new version of the source."""
        self._number += 1
        rows = facts(self._number)
        change = self.lake.begin()
        if self._number == 1:
            table = change.create_table(self.lake.schema("main"), "facts", rows.schema)
            change.add_files(table, [self.lake.write(table, rows)])
        else:
            table = self.lake.table("facts")
            change.replace_contents(table, [self.lake.write(table, rows)])
        self.lake.commit(change)

    def create(self, name: str, query: str, schedule: str = "on demand") -> None:
        self.warehouse.create(name, query, schedule=schedule, consistency="none")
        self.names.append(name)

    def grow(self, count: int) -> None:
        """Have so many independent tables, all fresh."""
        for number in range(len(self.names), count):
            self.create(f"t{number}", query_of(number))
        self.round()

    def round(self, names: list[str] | None = None) -> tuple[float, list[Job]]:
        """Have tables refreshed that are all due at one moment; seconds, and the jobs that did it.

        Tables with a schedule of their own are due by a new version of the source.
        """
        last = max((job.job_id for job in self.warehouse.jobs(limit=1)), default=0)
        self.warehouse.drain()
        self.write()
        for table in self.warehouse.tables():
            if table.name in (names or self.names) and table.schedule.text == "on demand":
                self.warehouse.refresh(table.name, wait_ms=None)
        self.warehouse.undrain()
        began_ms = round(time.time() * 1_000)
        self.settle(names)
        jobs = [job for job in self.warehouse.jobs(limit=None) if job.job_id > last]
        ended_ms = max(job.finished_at_ms or 0 for job in jobs)
        return (ended_ms - began_ms) / 1_000, jobs

    def settle(self, names: list[str] | None = None) -> None:
        """Wait until tables stand for the newest contents of all they read."""
        until = time.monotonic() + PATIENCE_S
        while not self._is_settled(set(names or self.names)):
            if time.monotonic() > until:
                raise SystemExit(f"expected all tables to be fresh in {PATIENCE_S} s")
            time.sleep(0.02)

    def _is_settled(self, names: set[str]) -> bool:
        rows = self.lake.query("SELECT table_name, frontier, snapshot FROM penstock_frontiers")
        at = {name: snapshot for name, _, snapshot in rows}
        at["facts"] = self.lake.table_at("facts").files[0].begin
        return names <= at.keys() and all(
            found[0] == at[source]
            for name, frontier, _ in rows
            if name in names
            for source, found in json.loads(frontier).items()
        )


def facts(number: int) -> pa.Table:
    values = [(i * 7919 + number * 104_729) % 1_000 for i in range(ROWS)]
    return pa.table(
        {
            "meter": pa.array([i % 100 for i in range(ROWS)], pa.int64()),
            "hour": pa.array([i % 24 for i in range(ROWS)], pa.int64()),
            "value": pa.array(values, pa.int64()),
        }
    )


def query_of(number: int) -> str:
    return (
        "SELECT meter, count(*) AS n, max(value) AS top FROM facts "
        f"WHERE hour <> {number % 24} AND value < {1_000 - number} GROUP BY meter"
    )


def singles(report: Report, shop: Shop) -> None:
    """One refresh at a time on warm workers: what it costs beside Spark's own work."""
    table = shop.names[0]
    starts, besides, totals = [], [], []
    for _ in range(SINGLES):
        _, jobs = shop.round([table])
        job = jobs[-1]
        (record, *_) = shop.warehouse.history(table, limit=1)
        total = (job.finished_at_ms or 0) - job.enqueued_at_ms
        starts.append((job.started_at_ms or 0) - job.enqueued_at_ms)
        besides.append(total - dict(record.timings_ms)["run"])
        totals.append(total)
    ran = median(totals) - median(besides)
    value = median(besides)
    report.row(
        "one refresh: all but Spark running the query", value, "ms", ratio=value / ran,
        against="Spark running the query", goal=f"at most {OVERHEAD_MS} ms",
        met=value <= OVERHEAD_MS,
    )  # fmt: skip
    report.row("one refresh: Spark running the query", ran, "ms")
    value = median(starts)
    report.row(
        "decision to the start in a warm worker", value, "ms",
        goal=f"at most {START_MS} ms", met=value <= START_MS,
    )  # fmt: skip


def compare(report: Report, spark: EmbeddedSpark, serial: Shop, parallel: Shop, count: int) -> None:
    """So many independent tables, one by one and side by side."""
    for shop in (serial, parallel):
        shop.grow(count)
        shop.round()
    walls: dict[str, list[float]] = {"off": [], "on": []}
    works, paths = [], []
    for _ in range(ROUNDS):
        wall, jobs = serial.round()
        walls["off"].append(wall)
        works.append(sum(took_s(job) for job in jobs))
        paths.append(max(took_s(job) for job in jobs))
        walls["on"].append(parallel.round()[0])
    usable = usable_parallelism(spark, serial, count)
    off, on = median(walls["off"]), median(walls["on"])
    limit = max(median(paths), median(works) / usable)
    report.row(f"{count} tables one by one", off, "s")
    report.row(f"{count} queries by bare clients of Spark, {WORKERS} against 1", usable, "×")
    report.row(
        f"{count} tables side by side, {WORKERS} workers", on, "s", ratio=on / limit,
        against="max(longest, work ÷ what bare clients gain)", goal=f"at most {SHARE_MAX}×",
        met=on <= SHARE_MAX * limit,
    )  # fmt: skip
    ideal = max(median(paths), median(works) / min(WORKERS, os.cpu_count() or 1))
    report.row(
        f"{count} tables side by side, as if cores were all that counts", on, "s",
        ratio=on / ideal, against="max(longest, work ÷ cores)",
    )  # fmt: skip
    report.row(f"{count} tables: gain", off / on, "×", against="one by one")


def took_s(job: Job) -> float:
    return ((job.finished_at_ms or 0) - (job.started_at_ms or 0)) / 1_000


def usable_parallelism(spark: EmbeddedSpark, shop: Shop, count: int) -> float:
    """How much faster bare clients are together than one alone; they write a file for each."""
    version = shop.lake.table_at("facts")
    target = Path(tempfile.mkdtemp(prefix="penstock-bench-"))

    def work(session: Any, number: int) -> None:
        frame = query_frame(session, shop.lake, query_of(number), {"facts": version})
        pq.write_table(frame.toArrow(), target / f"{number}.parquet")

    taken = {}
    for clients in (1, WORKERS, 1, WORKERS):
        began = time.perf_counter()
        threads = [
            threading.Thread(target=client, args=(spark.url, work, range(n, count, clients)))
            for n in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - began
        taken[clients] = min(wall, taken.get(clients, wall))
    shutil.rmtree(target)
    return max(1.0, taken[1] / taken[WORKERS])


def client(url: str, work: Callable[[Any, int], None], numbers: range) -> None:
    with connect(url) as session:
        for number in numbers:
            work(session, number)


def pipelines(report: Report, spark: EmbeddedSpark, home: Path) -> None:
    """The same ten tables, by Penstock and by Spark Declarative Pipelines."""
    shop = Shop(home / "graph", spark.url, "on")
    with shop.running():
        for name, query in GRAPH.items():
            shop.create(name, query, schedule="100ms")
        shop.settle()
        ours = [shop.round()[0] for _ in range(2 * ROUNDS)][ROUNDS:]
    theirs = []
    for number in range(ROUNDS):
        version = shop.lake.table_at("facts")
        with connect(spark.url) as session:
            began = time.perf_counter()
            run_pipeline(session, [file.path for file in version.files], home / "pipelines", number)
            theirs.append(time.perf_counter() - began)
    shop.close()
    value = median(theirs)
    report.row("graph of ten tables", median(ours), "s")
    report.row(
        "Spark Declarative Pipelines: the same graph", value, "s", ratio=value / median(ours),
        against="graph of ten tables",
    )  # fmt: skip


def run_pipeline(session: Any, files: list[str], home: Path, number: int) -> None:
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    home.mkdir(exist_ok=True)
    database = f"pipeline_{number}"
    session.sql(f"CREATE DATABASE IF NOT EXISTS {database}").collect()
    graph = create_dataflow_graph(
        session, default_catalog="spark_catalog", default_database=database, sql_conf={}
    )
    registry = SparkConnectGraphElementRegistry(session, graph)
    views = [f"CREATE TEMPORARY VIEW facts AS SELECT * FROM parquet.`{files[0]}`"]
    views += [f"CREATE MATERIALIZED VIEW {name} AS {query}" for name, query in GRAPH.items()]
    registry.register_sql(";\n".join(views), home / "graph.sql")
    storage = f"file://{home}/storage"
    for _ in start_run(session, graph, [], False, [], False, storage):
        pass
