"""AUTO's choice: what it costs over twenty batches of every size, against the better mode.

Three tables of one query, in modes FULL, DIFFERENTIAL and AUTO, are refreshed after each of twenty
batches whose sizes go from 0.01 % to 100 % of the rows, in an order that a seed chooses. The better
of the two forced modes is taken batch by batch. A choice is right if the chosen mode was the
better one, or took at most a tenth longer than it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from bench.delta_shop import VIEWS, Cost, DeltaShop
from bench.report import Report
from bench.table_shop import RUNNER, bench_spark
from bench.tpch_shop import TpchShop, queries
from penstock.app.tables import Warehouse
from penstock.tables.core.model import Mode

ROWS = 1_000_000
SCALE = 0.1
BATCHES = 20
WARM = 2
SHARES = (0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 1.0)
QUERIES = tuple(range(1, 23))
MEASURED = tuple(VIEWS)
TINY = {
    "ROWS": 2_000,
    "SCALE": 0.001,
    "BATCHES": 1,
    "WARM": 1,
    "SHARES": (0.01,),
    "QUERIES": (6,),
    "MEASURED": ("GROUP BY",),
}
MODES = (Mode.FULL, Mode.DIFFERENTIAL, Mode.AUTO)


class Turn(NamedTuple):
    """One batch: what the three tables cost."""

    full: Cost
    differential: Cost
    auto: Cost

    @property
    def best_ms(self) -> float:
        return min(self.full.ms, self.differential.ms)

    @property
    def is_right(self) -> bool:
        of = {Mode.FULL: self.full.ms, Mode.DIFFERENTIAL: self.differential.ms}
        return of[self.auto.mode] <= 1.1 * self.best_ms


def pieces() -> list[str]:
    return [*MEASURED, *(f"TPC-H {number}" for number in QUERIES)]


def run(report: Report) -> None:
    if not any(map(report.wants, pieces())):
        return
    texts = queries() if QUERIES else {}
    with bench_spark() as (spark, home):
        for view in MEASURED:
            if report.wants(view):
                with report.piece(view), warehouse(spark.url, home / view) as opened:
                    turns(report, view, VIEWS[view], DeltaShop(opened, ROWS, seed=3))
        for number in QUERIES:
            name = f"TPC-H {number}"
            if report.wants(name):
                with report.piece(name), warehouse(spark.url, home / name) as opened:
                    turns(report, name, texts[number], TpchShop(opened, SCALE, seed=number))


@contextmanager
def warehouse(url: str, home: Path) -> Iterator[Warehouse]:
    home.mkdir()
    options: dict[str, Any] = {"runner": RUNNER, "runner_options": {"remote": url}}
    with Warehouse.open(f"sqlite:{home}/lake.sqlite", str(home / "data"), **options) as opened:
        yield opened


def turns(report: Report, name: str, query: str, shop: DeltaShop | TpchShop) -> None:
    """The twenty batches of one query."""
    for mode in MODES:
        shop.create(mode.value.lower(), query, mode.value.lower())
    sizes = [SHARES[at % len(SHARES)] for at in range(WARM + BATCHES)]
    Random(19).shuffle(sizes)
    found = []
    for share in sizes:
        shop.change("uniform", share)
        found.append(Turn(*(shop.refresh(mode.value.lower()) for mode in MODES)))
    rows(report, name, found[WARM:])


def rows(report: Report, name: str, found: list[Turn]) -> None:
    took, best = sum(turn.auto.ms for turn in found), sum(turn.best_ms for turn in found)
    report.row(
        f"{name}: AUTO over {len(found)} batches", took, "ms", ratio=took / best,
        against="the better mode of each batch", goal="at most 1.1×", met=took <= 1.1 * best,
    )  # fmt: skip
    right = sum(turn.is_right for turn in found) / len(found)
    report.row("… right choices", 100 * right, "%", goal="at least 90 %", met=right >= 0.9)
    by_change = sum(turn.auto.mode is Mode.DIFFERENTIAL for turn in found)
    report.row("… of them from the changes", by_change, "batches")
