"""Graph: ten tables that read each other, by Penstock and by Spark Declarative Pipelines.

Both run on the same Spark and take turns: a new version of the source is committed, and the time is
taken until every table stands for it. Pipelines are started through Spark Connect from a session of
their own, as their command line does; starting that program is not counted.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import Report
from bench.table_shop import Shop, bench_spark, within
from penstock.spark.link import connect

WARM_S = 12
MEASURE_S = 30
ROUNDS_MAX = 5

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
TINY = {
    "WARM_S": 0,
    "MEASURE_S": 0,
    "ROUNDS_MAX": 1,
    "GRAPH": {name: GRAPH[name] for name in ("by_meter", "busy")},
}


def run(report: Report) -> None:
    ours, theirs = [], []
    with bench_spark() as (spark, home), Shop.open(home / "graph", spark, "on") as shop:
        for name, query in GRAPH.items():
            shop.create(name, query, schedule="100ms")
        shop.settle()
        for _ in within(WARM_S):
            shop.moved()
        run_pipeline(spark.url, shop, home / "pipelines", 0)
        meter = shop.meter(spark)
        for number, _ in enumerate(within(MEASURE_S, ROUNDS_MAX), start=1):
            ours.append(shop.moved())
            shop.warehouse.drain(wait_ms=5_000)
            theirs.append(run_pipeline(spark.url, shop, home / "pipelines", number))
        used = meter.read()
    value = median(theirs)
    report.row("graph of ten tables", median(ours), "s")
    report.row(
        "Spark Declarative Pipelines: the same graph", value, "s", ratio=value / median(ours),
        against="graph of ten tables",
    )  # fmt: skip
    report.row("cores that others used meanwhile", used.others_cores, "cores")


def run_pipeline(url: str, shop: Shop, home: Path, number: int) -> float:
    """Seconds that a pipeline of the same tables takes, in a database of its own."""
    files = [file.path for file in shop.lake.table_at("facts").files]
    with connect(url) as session:
        began = time.perf_counter()
        _run_pipeline(session, files, home, number)
        return time.perf_counter() - began


def _run_pipeline(session: Any, files: list[str], home: Path, number: int) -> None:
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
