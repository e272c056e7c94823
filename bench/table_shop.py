"""A warehouse to be measured: facts, tables over them, and rounds in which all are due."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self
from uuid import uuid4

import pyarrow as pa

from bench.cpu import Meter
from penstock.app.tables import Warehouse
from penstock.spark.jvm.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import SparkOptions
from penstock.tables.core.health import HealthState
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.processes import pid_of

ROWS = 20_000
PATIENCE_S = 240
RUNNER = "penstock.spark.refresh:make"
WORKERS = min(4, os.cpu_count() or 1)
IS_SHARED = False
"""Tiny runs share a Spark: its start takes longer than they do."""
CACHE = Path(__file__).parents[1] / "build" / "spark"


_shared = ExitStack()


@contextmanager
def bench_spark(cores: int | None = None) -> Iterator[tuple[EmbeddedSpark, Path]]:
    """A Spark of our own, and a place for files; both gone afterwards."""
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        if IS_SHARED:
            yield shared_spark(), home
        else:
            with start_spark(SparkOptions(cores=cores, cache_dir=CACHE)) as spark:
                yield spark, home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@cache
def shared_spark() -> EmbeddedSpark:
    """One Spark for all benchmarks of this process, until it ends."""
    atexit.register(_shared.close)
    return _shared.enter_context(start_spark(SparkOptions(cache_dir=CACHE)))


def within(seconds: float, most: int = 1_000) -> Iterator[None]:
    """Again and again, at least once, while there is time."""
    until = time.monotonic() + seconds
    for number in range(most):
        if number and time.monotonic() > until:
            return
        yield


class Round(NamedTuple):
    """Tables that were due at one moment: from the first decision until the last was reported."""

    wall_s: float
    jobs: list[RefreshJob]
    answered_ms: int

    @property
    def work_s(self) -> float:
        """How long the jobs took, one by one."""
        return sum(map(took_s, self.jobs))

    @property
    def longest_s(self) -> float:
        """The longest job; these tables do not wait for each other."""
        return max(map(took_s, self.jobs))


class Shop:
    """A warehouse with a source of facts and as many tables as are asked for."""

    def __init__(self, home: Path, url: str, mode: str, workers: int) -> None:
        home.mkdir()
        self.warehouse = Warehouse.open(
            f"sqlite:{home}/catalog.sqlite", runner=RUNNER, runner_options={"remote": url},
            parallel_refresh_mode=mode, max_concurrent_refreshes=workers, max_workers=workers,
        )  # fmt: skip
        self.lake = self.warehouse.lake
        self.names: list[str] = []
        self._number = 0
        self.write()

    @classmethod
    @contextmanager
    def open(cls, home: Path, spark: EmbeddedSpark, mode: str) -> Iterator[Self]:
        """A shop whose coordinator runs in this process."""
        shop = cls(home, spark.url, mode, WORKERS)
        try:
            with shop.warehouse.coordinator():
                while shop.warehouse.health().state is HealthState.NOT_RUNNING:
                    time.sleep(0.02)
                yield shop
        finally:
            shop.warehouse.close()

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
        new = [f"t{number}" for number in range(len(self.names), count)]
        for name in new:
            self.create(name, query_of(int(name[1:])))
        if new:
            self.round(new)

    def round(self, names: list[str] | None = None) -> Round:
        """Have tables refreshed that are all due at one moment, by a person's request for each."""
        last = max((job.job_id for job in self.warehouse.jobs(limit=1)), default=0)
        self.warehouse.drain(wait_ms=5_000)
        self.write()
        self._ask(self.names if names is None else names)
        self.warehouse.undrain()
        self._until("SELECT count(*) = 0 FROM penstock_requests WHERE answered_at IS NULL")
        ((answered_ms,),) = self.lake.query("SELECT max(answered_at) FROM penstock_requests")
        jobs = [job for job in self.warehouse.jobs(limit=None) if job.job_id > last]
        decided_ms = min(job.enqueued_at_ms for job in jobs)
        return Round((answered_ms - decided_ms) / 1_000, jobs, answered_ms)

    def moved(self) -> float:
        """Have tables with schedules of their own follow a new version; seconds until they have."""
        self.warehouse.drain(wait_ms=5_000)
        self.write()
        began = time.perf_counter()
        self.warehouse.undrain()
        self.settle()
        return time.perf_counter() - began

    def settle(self) -> None:
        """Wait until tables stand for the newest contents of all they read."""
        until = time.monotonic() + PATIENCE_S
        while not self._is_settled(set(self.names)):
            if time.monotonic() > until:
                raise SystemExit(f"expected all tables to be fresh in {PATIENCE_S} s")
            time.sleep(0.01)

    def meter(self, spark: EmbeddedSpark) -> Meter:
        """Watch who uses the cores: Spark, workers, and this process with its coordinators."""
        workers = [pid_of(str(worker["worker"])) for worker in self.warehouse.pool().workers]
        return Meter({"spark": [spark.pid], "workers": workers, "here": [os.getpid()]})

    def _ask(self, names: list[str]) -> None:
        """What `Warehouse.ask` does, for all of them in one transaction."""
        rows = [(uuid4().hex, name, 0, round(time.time() * 1_000)) for name in names]
        with self.lake.transact() as cursor:
            cursor.executemany(
                "INSERT INTO penstock_requests (request_id, table_name, is_forced, asked_at) "
                "VALUES (?, ?, ?, ?)",
                rows,
            )

    def _until(self, question: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.lake.query(question)[0][0]:
            if time.monotonic() > until:
                raise SystemExit(f"expected an end within {PATIENCE_S} s")
            time.sleep(0.01)

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


def took_s(job: RefreshJob) -> float:
    return ((job.finished_at_ms or 0) - (job.started_at_ms or 0)) / 1_000
