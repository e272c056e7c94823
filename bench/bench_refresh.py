"""Refresh: one at a time on warm workers; what it costs beside Spark running the query.

*Spark running the query* is the request that runs it, from the moment it is sent until its last
rows have arrived: Spark parses, plans, runs tasks, and sends Arrow. Everything else of a refresh is
beside it, from the coordinator's decision until it has answered the caller: the decision until a
worker has the job; claiming it; finding what it reads; making the DataFrame; the difference to what
the table holds; the Parquet file; the commit and the report. The same query by a bare client is
measured in turns with it, and how much of that is Spark's planning.

From the caller's side a refresh is `Warehouse.refresh` in this process, from call to return. What
no phase of its history accounts for is the way of the request to the coordinator and to a worker,
and of the answer back.
"""

from __future__ import annotations

import time
from statistics import median

from bench.report import Report
from bench.table_shop import Shop, bench_spark, query_of, within
from penstock.spark.link import connect
from penstock.spark.refresh import query_frame

TABLES = 10
WARM_S = 30
MEASURE_S = 20
SINGLES_MAX = 100
OVERHEAD_MS = 25
START_MS = 20
ROUNDABOUT_MS = 20
TINY = {"TABLES": 1, "WARM_S": 0, "MEASURE_S": 0}
PHASES = ("claim", "inputs", "bind", "compare", "write", "commit")


def run(report: Report) -> None:
    found: list[dict[str, float]] = []
    bare: list[tuple[float, float]] = []
    called: list[tuple[float, float]] = []
    with (
        bench_spark() as (spark, home),
        Shop.open(home / "on", spark, "on") as shop,
        connect(spark.url) as session,
    ):
        shop.grow(TABLES)
        for _ in within(WARM_S):
            shop.round()
        meter = shop.meter(spark)
        for _ in within(MEASURE_S, SINGLES_MAX):
            found.append(phases_of(shop, shop.names[0]))
            called.append(called_by(shop, shop.names[0]))
            version = shop.lake.table_at("facts")
            frame = query_frame(session, shop.lake, query_of(0), {"facts": version})
            began = time.perf_counter()
            frame.toArrow()
            ended = time.perf_counter()
            frame._explain_string()
            explained = time.perf_counter()
            bare.append(((explained - ended) * 1_000, (ended - began) * 1_000))
        used = meter.read()
    rows(report, found, bare)
    caller_rows(report, called)
    report.row("cores that others used meanwhile", used.others_cores, "cores")


def rows(report: Report, found: list[dict[str, float]], bare: list[tuple[float, float]]) -> None:
    middle = {phase: median(each[phase] for each in found) for phase in found[0]}
    planned, ran = (median(column) for column in zip(*bare, strict=True))
    beside, start = middle["beside"], middle["start"]
    report.row(
        "all but Spark running the query", beside, "ms",
        ratio=beside / middle["run"], against="Spark running the query",
        goal=f"at most {OVERHEAD_MS} ms", met=beside <= OVERHEAD_MS,
    )  # fmt: skip
    report.row(
        "… decision until a warm worker has the job", start, "ms",
        goal=f"at most {START_MS} ms", met=start <= START_MS,
    )  # fmt: skip
    for phase in PHASES:
        report.row(f"… {phase}", middle[phase], "ms")
    report.row("… report", middle["report"], "ms")
    report.row(
        "Spark running the query", middle["run"], "ms", ratio=middle["run"] / ran,
        against="the query by a bare client",
    )  # fmt: skip
    report.row("the query by a bare client", ran, "ms")
    report.row("… planning alone", planned, "ms", ratio=planned / ran,
               against="the query by a bare client")  # fmt: skip


def phases_of(shop: Shop, table: str) -> dict[str, float]:
    """One refresh, split into phases of milliseconds."""
    done = shop.round([table])
    (job,) = done.jobs
    (record, *_) = shop.warehouse.history(table, limit=1)
    started = job.started_at_ms or 0
    found = {**dict.fromkeys(PHASES, 0.0), **dict(record.timings_ms)}
    total = done.answered_ms - job.enqueued_at_ms
    return found | {
        "start": started - job.enqueued_at_ms,
        "report": done.answered_ms - (job.finished_at_ms or 0) - found["commit"],
        "beside": total - found["run"],
    }


def called_by(shop: Shop, table: str) -> tuple[float, float]:
    """One refresh from the caller's side, in milliseconds: all of it, and what no phase has."""
    shop.write()
    began = time.perf_counter()
    answer = shop.warehouse.refresh(table)
    took_ms = (time.perf_counter() - began) * 1_000
    if not answer.ok:
        raise RuntimeError(answer.detail)
    (record, *_) = shop.warehouse.history(table, limit=1)
    return took_ms, took_ms - sum(spent_ms for _, spent_ms in record.timings_ms)


def caller_rows(report: Report, called: list[tuple[float, float]]) -> None:
    took, outside = (median(column) for column in zip(*called, strict=True))
    report.row("a refresh from the caller's side", took, "ms")
    report.row(
        "… outside of all phases", outside, "ms", ratio=outside / took,
        against="a refresh from the caller's side",
        goal=f"at most {ROUNDABOUT_MS} ms", met=outside <= ROUNDABOUT_MS,
    )  # fmt: skip
