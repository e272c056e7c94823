"""JIT: jobs on a JVM with both of its compilers, with the first one alone, and with more room

The first compiler (C1) is quick and makes slower code, the second (C2) takes minutes to have seen
enough; both keep what they compile in a cache of 240 MiB. Each JVM runs the job of a small batch
and the query of a refresh by turns; early is the first minute, warm is the last half.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from bench import servers, table_shop
from bench.bench_ingest import chained, fill, load_tariffs, messages, timed
from bench.report import Report
from penstock.client import Client
from penstock.lake.catalog import open_catalog
from penstock.spark.jvm.embedded import start_spark
from penstock.spark.link import SparkLink
from penstock.spark.options import SparkOptions

MESSAGES = 40
SECONDS = 600.0
"""Of all JVMs together: they take turns, so that what else the machine does hits all."""
EARLY_S = 60.0
TINY = {"SECONDS": 2.0}
OURS = "both compilers"
FLAGS = {
    OURS: "",
    "C1 alone": "-XX:TieredStopAtLevel=1",
    "a code cache of 512 MiB": "-XX:ReservedCodeCacheSize=512m",
}
QUERY = "SELECT id % 100 AS k, sum(id) AS s, count(*) AS c FROM range(20000) GROUP BY id % 100"

Took = list[tuple[float, float]]
"""When, in seconds since the start, and how long, in ms."""


def run(report: Report) -> None:
    found = measured()
    for work in ("a batch's job", "a refresh's query"):
        for share, part in (("early", early), ("warm", warm)):
            took_ms = {jvm: float(np.median(part(found[jvm, work]))) for jvm in FLAGS}
            limit, ours_ms = f"{work}, {share}: {OURS}", took_ms.pop(OURS)
            report.row(limit, ours_ms, "ms")
            for jvm, other_ms in took_ms.items():
                report.row(f"{work}, {share}: {jvm}", other_ms, "ms", ratio=other_ms / ours_ms,
                           against=limit)  # fmt: skip


def early(took: Took) -> list[float]:
    return [took_ms for at_s, took_ms in took if at_s < EARLY_S]


def warm(took: Took) -> list[float]:
    return [took_ms for _, took_ms in took[len(took) // 2 :]]


def measured() -> dict[tuple[str, str], Took]:
    """Every job of all JVMs."""
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{stack.enter_context(servers.penstock())}"
        client = stack.enter_context(Client(url))
        load_tariffs(url)
        client.put_topic("raw")
        fill(client, "raw", MESSAGES)
        ways: dict[tuple[str, str], Callable[[], object]] = {}
        for jvm, flags in FLAGS.items():
            conf = {"spark.driver.extraJavaOptions": flags} if flags else {}
            options = SparkOptions(cores=2, cache_dir=table_shop.CACHE, conf=conf)
            link = SparkLink(SparkOptions(remote=stack.enter_context(start_spark(options)).url))
            stack.callback(link.close)
            home = stack.enter_context(servers.directory())
            lake = stack.enter_context(open_catalog(f"sqlite:{home}/lake.sqlite"))
            query = link.session().sql(QUERY)
            ways[jvm, "a batch's job"] = chained(lake, url, link, messages(url, MESSAGES))
            ways[jvm, "a refresh's query"] = query.toArrow
        took: dict[tuple[str, str], Took] = {name: [] for name in ways}
        begun = time.perf_counter()
        while time.perf_counter() - begun < SECONDS:
            for name, way in ways.items():
                at_s = time.perf_counter() - begun
                took[name].append((at_s, timed(way) * 1_000))
        return took
