"""A range of a topic in Spark, against the same rows in Parquet: scan and aggregate"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench import servers
from bench.report import Report
from bench.table_shop import bench_spark
from penstock.client import Client
from penstock.spark.link import connect
from penstock.spark.topics.http import TopicAddress
from penstock.spark.topics.pages import SeqRange
from penstock.spark.topics.source import fetch, read_topic

SIZES = (1_000, 20_000, 100_000, 400_000)
ROUNDS = 4
TINY = {"SIZES": (2_000,), "ROUNDS": 1}
TOPIC = "bench"
PARQUET = "Spark reading Parquet"


def run(report: Report) -> None:
    with (
        servers.penstock() as port,
        bench_spark(cores=2) as (embedded, home),
        connect(embedded.url) as spark,
    ):
        url = f"http://127.0.0.1:{port}"
        fill(url, max(SIZES))
        for size in SIZES:
            best = measure(spark, url, size, home / f"{size}.parquet")
            report.row(f"{PARQUET}, {size:,} rows", size / best[PARQUET], "rows/s")
            for name in ("by tasks", "fetched", "as chosen"):
                ratio = best[PARQUET] / best[name]
                goal = {"goal": "at least 0.5×", "met": ratio >= 0.5} if name == "as chosen" else {}
                report.row(f"topic range {name}, {size:,} rows", size / best[name], "rows/s",
                           ratio=ratio, against=PARQUET, **goal)  # fmt: skip


def fill(url: str, count: int) -> None:
    with Client(url) as client:
        client.put_topic(TOPIC, durability="disk")
        for start in range(0, count, 1_000):
            records = [
                {"meter": n % 1_000, "kwh": n / 8, "at": "2026-01-01T00:00:00Z"}
                for n in range(start, start + 1_000)
            ]
            client.write(TOPIC, records, return_seqs=False)


def measure(spark: Any, url: str, size: int, path: Path) -> dict[str, float]:
    pq.write_table(fetch(TopicAddress(url, TOPIC), SeqRange(0, size)), path)
    ways: dict[str, Callable[[], Any]] = {
        PARQUET: lambda: spark.read.parquet(str(path)),
        "by tasks": lambda: read_topic(spark, url, TOPIC, None, size, fetch_rows_max=0),
        "fetched": lambda: read_topic(spark, url, TOPIC, None, size, fetch_rows_max=size),
        "as chosen": lambda: read_topic(spark, url, TOPIC, None, size),
    }
    best: dict[str, float] = {}
    for _ in range(ROUNDS):  # they take turns, as the machine is shared
        for name, make in ways.items():
            begun = time.perf_counter()
            found = make().selectExpr("count(*)", "sum(seq)", "sum(length(data))").collect()[0]
            taken = time.perf_counter() - begun
            assert found[0] == size, json.dumps(found.asDict())
            best[name] = min(best.get(name, taken), taken)
    return best
