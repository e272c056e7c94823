"""Differential refresh: the time of a full refresh divided by that of one from the changes.

Each view is two tables of one query, one in mode FULL and one in mode DIFFERENTIAL, over a table of
ten million rows and a second one a quarter its size. A batch changes a share of the rows of both
(70 % updates, 15 % inserts, 15 % deletes), spread evenly or among the newest; then both tables are
refreshed in turns by one warm engine, and their modes are checked. Times are from the call to the
answer. The sources are rewritten without deleted rows between the pieces, as a nightly job would.
Rows read are Spark's own metrics and the changed rows that were read beside them.

For context the same query over the same files is recomputed by a Declarative Pipeline with a
materialized view on the same Spark, and by DuckDB into a table of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.delta_shop import VIEWS, Cost, DeltaShop
from bench.report import Report
from bench.table_shop import RUNNER, bench_spark
from penstock.app.tables import Warehouse
from penstock.spark.link import connect
from penstock.tables.core.model import Mode

ROWS = 10_000_000
REPEATS = 9
WARM = 1
PEER_REPEATS = 3
CELLS = (("uniform", 0.001), ("uniform", 0.01), ("recent", 0.001), ("recent", 0.01))
GOALS = {
    "filter + project": (30, 15, 30, 15),
    "GROUP BY": (25, 12, 25, 12),
    "MIN/MAX": (10, 5, 10, 5),
    "join": (5, 3, 12, 5),
    "join + GROUP BY": (5, 3, 10, 5),
    "left join": (3.5, 2, 8, 4),
    "semi join": (3.5, 2, 8, 4),
    "anti join": (3.5, 2, 8, 4),
    "row_number": (7, 3, 15, 6),
    "top 100": (15, 10, 15, 10),
}
"""For each of the cells."""
SINGLE = ("filter + project", "GROUP BY", "MIN/MAX", "row_number", "top 100")
"""Views over one table: they are to read at most a tenth of the rows that FULL reads."""
MEASURED = tuple(VIEWS)
TINY = {
    "ROWS": 2_000,
    "REPEATS": 1,
    "PEER_REPEATS": 1,
    "CELLS": (("uniform", 0.01),),
    "MEASURED": ("GROUP BY", "semi join"),
}


def pieces() -> list[str]:
    """Every view with every kind and size of change, and the peers of every view."""
    cells = [cell(view, *each) for view in MEASURED for each in CELLS]
    return [*(peers(view) for view in MEASURED), *cells]


def cell(view: str, kind: str, share: float) -> str:
    return f"{view}, {kind} {share:.1%}"


def peers(view: str) -> str:
    return f"{view}, peers"


def run(report: Report) -> None:
    if not any(map(report.wants, pieces())):
        return
    with bench_spark() as (spark, home):
        if any(report.wants(peers(view)) for view in MEASURED):
            with shop_of(spark.url, home / "peers") as shop:
                for view in filter(lambda view: report.wants(peers(view)), MEASURED):
                    with report.piece(peers(view)):
                        beside(report, shop, view, spark.url, home)
        if any(map(report.wants, pieces())):
            with shop_of(spark.url, home / "ours") as shop:
                for view in MEASURED:
                    measure_view(report, shop, view)


@contextmanager
def shop_of(url: str, home: Path) -> Iterator[DeltaShop]:
    """A warehouse with its two sources."""
    home.mkdir()
    options: dict[str, Any] = {"runner": RUNNER, "runner_options": {"remote": url}}
    with Warehouse.open(f"sqlite:{home}/lake.sqlite", str(home / "data"), **options) as opened:
        yield DeltaShop(opened, ROWS, seed=19)


def measure_view(report: Report, shop: DeltaShop, view: str) -> None:
    """The pieces of one view that are wanted."""
    if not any(report.wants(cell(view, *each)) for each in CELLS):
        return
    shop.compact()
    shop.create("by_change", VIEWS[view], "differential")
    shop.create("whole", VIEWS[view], "full")
    for number, (kind, share) in enumerate(CELLS):
        name = cell(view, kind, share)
        if report.wants(name):
            with report.piece(name):
                shop.compact()
                costs = [batch(shop, kind, share) for _ in range(WARM + REPEATS)][WARM:]
                row(report, name, view, number, costs)
    for table in ("by_change", "whole"):
        shop.warehouse.drop(table)


def batch(shop: DeltaShop, kind: str, share: float) -> tuple[Cost, Cost]:
    """One change, and what both modes cost after it."""
    shop.change(kind, share)
    full = shop.in_mode("whole", Mode.FULL)
    return full, shop.in_mode("by_change", Mode.DIFFERENTIAL)


def row(report: Report, name: str, view: str, number: int, costs: list[tuple[Cost, Cost]]) -> None:
    full, delta = (median(cost[side].ms for cost in costs) for side in (0, 1))
    goal = GOALS[view][number]
    report.row(
        name, delta, "ms", ratio=full / delta, against="full refresh",
        goal=f"at least {goal}×", met=full / delta >= goal,
    )  # fmt: skip
    report.row("… full refresh", full, "ms")
    read, all_read = (median(cost[side].rows_read for cost in costs) for side in (1, 0))
    is_bound = view in SINGLE and CELLS[number][1] >= 0.01
    share = read / max(1, all_read)
    report.row(
        "… rows read", read, "rows", ratio=share, against="full refresh",
        goal="at most 0.1×" if is_bound else None, met=share <= 0.1 if is_bound else None,
    )  # fmt: skip


def beside(report: Report, shop: DeltaShop, view: str, url: str, home: Path) -> None:
    """The whole query by others, over the files of sources that lost no rows yet."""
    shop.create("whole", VIEWS[view], "full")
    ours = median(forced(shop) for _ in range(PEER_REPEATS))
    report.row(f"{view}: full refresh", ours, "ms")
    files = {name: [file.path for file in shop.warehouse.lake.table_at(name).files]
             for name in ("facts", "dims")}  # fmt: skip
    by_duck = median(duck(VIEWS[view], files) for _ in range(PEER_REPEATS))
    report.row(f"{view}: DuckDB", by_duck, "ms", ratio=by_duck / ours, against="full refresh")
    runs = [pipeline(url, VIEWS[view], files, home / "pipelines") for _ in range(PEER_REPEATS)]
    report.row(
        f"{view}: Declarative Pipeline", median(runs), "ms", ratio=median(runs) / ours,
        against="full refresh",
    )  # fmt: skip
    shop.warehouse.drop("whole")


def forced(shop: DeltaShop) -> float:
    began = time.perf_counter()
    answer = shop.warehouse.refresh("whole", force=True)
    if not answer.ok:
        raise RuntimeError(answer.detail)
    return (time.perf_counter() - began) * 1_000


def duck(query: str, files: dict[str, list[str]]) -> float:
    """Milliseconds in which DuckDB makes a table of a query over Parquet files."""
    import duckdb

    with duckdb.connect() as db:
        for name, paths in files.items():
            db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({paths})")
        began = time.perf_counter()
        db.execute(f"CREATE TABLE made AS {query}")
        return (time.perf_counter() - began) * 1_000


def pipeline(url: str, query: str, files: dict[str, list[str]], home: Path) -> float:
    """Milliseconds in which a Declarative Pipeline makes a materialized view of a query."""
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    home.mkdir(exist_ok=True)
    with connect(url) as session:
        database = f"pipeline_{time.monotonic_ns()}"
        session.sql(f"CREATE DATABASE {database}").collect()
        began = time.perf_counter()
        graph = create_dataflow_graph(
            session, default_catalog="spark_catalog", default_database=database, sql_conf={}
        )
        registry = SparkConnectGraphElementRegistry(session, graph)
        made = [f"CREATE TEMPORARY VIEW {name} AS {' UNION ALL '.join(map(of_file, paths))}"
                for name, paths in files.items() if f"{name} " in f"{query} "]  # fmt: skip
        made.append(f"CREATE MATERIALIZED VIEW made AS {query}")
        registry.register_sql(";\n".join(made), home / "view.sql")
        for _ in start_run(session, graph, [], False, [], False, f"file://{home}/storage"):
            pass
        took = (time.perf_counter() - began) * 1_000
        session.sql(f"DROP DATABASE {database} CASCADE").collect()
    return took


def of_file(path: str) -> str:
    return f"SELECT * FROM parquet.`{path}`"
