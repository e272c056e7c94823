"""Tables: 10, 50 and 100 independent ones refreshed side by side, against one by one.

Two warehouses on the same Spark have the same tables; one refreshes them one by one (`off`), the
other in worker processes (`on`), one for each core. They take turns: a new version of the source is
committed, every table is asked for while the coordinator is drained, and the time is taken from the
first decision to start a job until the coordinator has answered the last request. The work is what
the jobs took one by one.

What a machine can gain is measured in the same turns: the same queries on the same Spark by bare
clients that write a file each, as many as there are workers against one. A single query keeps more
than one core busy (Spark compiles, collects garbage and runs tasks beside each other), so that is
less than the number of cores.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq

from bench.cpu import Used
from bench.report import Report
from bench.table_shop import WORKERS, Round, Shop, bench_spark, query_of, within
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.spark.link import connect
from penstock.spark.refresh import query_frame

COUNTS = (10, 50, 100)
ROUNDS_MAX = {10: 7, 50: 3, 100: 2}
MEASURE_S = {10: 8, 50: 12, 100: 14}
BARE_QUERIES_MAX = 30
WARM_S = 15
SHARE_MAX = 1.25
TINY = {"COUNTS": (2,), "ROUNDS_MAX": {2: 1}, "MEASURE_S": {2: 0}, "WARM_S": 0}


def run(report: Report) -> None:
    with (
        bench_spark() as (spark, home),
        Shop.open(home / "off", spark, "off") as serial,
        Shop.open(home / "on", spark, "on") as parallel,
    ):
        for shop in (serial, parallel):
            shop.grow(COUNTS[0])
        for _ in within(WARM_S):
            parallel.round()
            serial.round(serial.names[:2])
        for count in COUNTS:
            compare(report, spark, serial, parallel, count)


def compare(report: Report, spark: EmbeddedSpark, serial: Shop, parallel: Shop, count: int) -> None:
    """So many independent tables, one by one and side by side."""
    for shop in (serial, parallel):
        shop.grow(count)
    ones, sides, gains = [], [], []
    used: list[Used] = []
    whole = parallel.meter(spark)
    for _ in within(MEASURE_S[count], ROUNDS_MAX[count]):
        ones.append(serial.round())
        if not gains or count == COUNTS[0]:  # between the two: Spark gets quicker all the time
            gains.append(gain(spark, serial, count))
        meter = parallel.meter(spark)
        sides.append(parallel.round())
        used.append(meter.read())
    rows(report, count, ones, sides, gains)
    name = f"{count} tables side by side"
    report.row(f"{name}: cores in use", median(each.cores for each in used), "cores")
    others = whole.read().others_cores
    report.row(f"{count} tables: cores that others used meanwhile", others, "cores")


def rows(
    report: Report, count: int, ones: list[Round], sides: list[Round], gains: list[float]
) -> None:
    off, on = median(r.wall_s for r in ones), median(r.wall_s for r in sides)
    longest, work = median(r.longest_s for r in ones), median(r.work_s for r in ones)
    usable = max(1.0, median(gains))
    limit = max(longest, work / usable)
    report.row(f"{count} tables one by one", off, "s")
    report.row(f"{count} queries by bare clients, {WORKERS} against one", usable, "×")
    report.row(
        f"{count} tables side by side, {WORKERS} workers", on, "s", ratio=on / limit,
        against="max(longest, work ÷ what bare clients gain)", goal=f"at most {SHARE_MAX}×",
        met=on <= SHARE_MAX * limit,
    )  # fmt: skip
    cores = min(WORKERS, os.cpu_count() or 1)
    ideal = max(longest, work / cores)
    report.row(
        f"{count} tables side by side, if one by one had used one core", on, "s",
        ratio=on / ideal, against=f"max(longest, work ÷ {cores} cores)",
    )  # fmt: skip
    report.row(f"{count} tables: gain", off / on, "×", against="one by one")


def gain(spark: EmbeddedSpark, shop: Shop, count: int) -> float:
    """How much faster bare clients are together than one alone; they write a file for each."""
    version = shop.lake.table_at("facts")
    target = Path(tempfile.mkdtemp(prefix="penstock-bench-"))

    def work(session: Any, number: int) -> None:
        frame = query_frame(session, shop.lake, query_of(number), {"facts": version})
        pq.write_table(frame.toArrow(), target / f"{number}.parquet")

    few = min(count, BARE_QUERIES_MAX)
    alone, together = (took_clients(spark, work, n, few) for n in (1, WORKERS))
    shutil.rmtree(target)
    return alone / together


def took_clients(
    spark: EmbeddedSpark, work: Callable[[Any, int], None], clients: int, count: int
) -> float:
    """Seconds in which so many clients, connected and warm, do all of the work."""
    ready = threading.Barrier(clients + 1)

    def client(numbers: range) -> None:
        with connect(spark.url) as session:
            work(session, numbers[0])
            ready.wait()
            for number in numbers:
                work(session, number)

    threads = [
        threading.Thread(target=client, args=(range(n, count, clients),)) for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    ready.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began
