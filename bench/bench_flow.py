"""The cost of recording a latency."""

from __future__ import annotations

from time import perf_counter_ns

from bench.report import Report
from penstock.flow.histogram import LatencyHistogram

TITLE = "Flow: recording a latency"
ITEMS = 200_000
TINY = {"ITEMS": 2_000}


def run(report: Report) -> None:
    cost = min(record_latency() for _ in range(5))
    report.row("record a latency", cost, "µs", goal="at most 0.3 µs", met=cost <= 0.3)


def record_latency() -> float:
    record = LatencyHistogram().record
    began = perf_counter_ns()
    for value in range(1_000_000, 1_000_000 + ITEMS):
        record(value)
    return (perf_counter_ns() - began) / ITEMS / 1_000
