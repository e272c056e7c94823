"""Differential refresh: the time of a full refresh divided by that of one from the changes.

Each view is two tables of one query, one in mode FULL and one in mode DIFFERENTIAL, over a large
table and a second one a quarter its size. A batch changes a share of the rows of both (70 %
updates, 15 % inserts, 15 % deletes), spread evenly or among the newest; then both are refreshed in
turns by one warm engine. Times are those of the refresh from claim to commit. What was read is by
Spark's own metrics and the changed rows that were read beside them.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from bench.report import Report
from bench.table_shop import RUNNER, bench_spark
from penstock.app.tables import Warehouse
from penstock.lake.catalog import Catalog
from penstock.lake.selection import FileRows
from penstock.tables.core.model import Mode

ROWS = 2_000_000
REPEATS = 3
SHARES = (0.001, 0.01)
GROW = (200_000, 2_000_000)
CHANGE = 1_000
KINDS = ("uniform", "recent")

VIEWS = {
    "filter + project": "SELECT id, amount + 1 AS more FROM facts WHERE kind < 8",
    "GROUP BY, many groups": """SELECT part, sum(amount) AS total, count(*) AS n,
        avg(amount) AS mean FROM facts GROUP BY part""",
    "MIN/MAX, many groups": """SELECT part, min(amount) AS low, max(amount) AS high
        FROM facts GROUP BY part""",
    "join of two": "SELECT f.id, f.amount, d.name FROM facts f JOIN dims d ON f.part = d.id",
    "join + GROUP BY": """SELECT d.region, sum(f.amount) AS total FROM facts f
        JOIN dims d ON f.part = d.id GROUP BY d.region""",
    "EXISTS": """SELECT d.id, d.name FROM dims d
        WHERE EXISTS (SELECT 1 FROM facts f WHERE f.part = d.id)""",
    "row_number per key": """SELECT id, part, amount FROM (SELECT id, part, amount,
        row_number() OVER (PARTITION BY part ORDER BY amount DESC, id) AS n FROM facts)
        WHERE n <= 2""",
    "top 100": "SELECT id, amount FROM facts ORDER BY amount DESC, id LIMIT 100",
}  # fmt: skip
GOALS = {
    "filter + project": (30, 15, 30, 15),
    "GROUP BY, many groups": (25, 12, 25, 12),
    "MIN/MAX, many groups": (10, 5, 10, 5),
    "join of two": (5, 3, 12, 5),
    "join + GROUP BY": (5, 3, 10, 5),
    "EXISTS": (3.5, 2, 8, 4),
    "row_number per key": (7, 3, 15, 6),
    "top 100": (15, 10, 15, 10),
}
"""For uniform 0.1 % and 1 %, recent 0.1 % and 1 %."""
GROWING = ("filter + project", "GROUP BY, many groups")
TINY = {
    "ROWS": 2_000,
    "REPEATS": 1,
    "SHARES": (0.01,),
    "KINDS": ("uniform",),
    "GROW": (1_000, 2_000),
    "CHANGE": 10,
    "VIEWS": {name: VIEWS[name] for name in ("GROUP BY, many groups", "EXISTS")},
    "GROWING": ("GROUP BY, many groups",),
}


class Cost(NamedTuple):
    """What one refresh took and read."""

    ms: float
    rows_read: int


def run(report: Report) -> None:
    with bench_spark() as (spark, home):
        options = {"runner": RUNNER, "runner_options": {"remote": spark.url}}
        with Warehouse.open(f"sqlite:{home}/lake.sqlite", str(home / "data"), **options) as opened:
            bench = Bench(opened, ROWS, np.random.default_rng(19))
            bench.create(VIEWS)
            for number, (kind, share) in enumerate((k, s) for k in KINDS for s in SHARES):
                found = bench.measure(kind, share)
                for view, (full, delta) in found.items():
                    goal = GOALS[view][number]
                    report.row(
                        f"{view}, {kind} {share:.1%}", delta.ms, "ms", ratio=full.ms / delta.ms,
                        against="full refresh", goal=f"at least {goal}×",
                        met=full.ms / delta.ms >= goal,
                    )  # fmt: skip
                    report.row(f"… rows read of {full.rows_read:,}", delta.rows_read, "rows")
        growth(report, options, home)


def growth(report: Report, options: dict[str, Any], home: Any) -> None:
    """A change of the same size on a small and on a large table."""
    views = {name: VIEWS[name] for name in GROWING}
    took: dict[str, list[float]] = {name: [] for name in views}
    for rows in GROW:
        place = home / f"rows-{rows}"
        place.mkdir()
        address = f"sqlite:{place}/lake.sqlite"
        with Warehouse.open(address, str(place / "data"), **options) as opened:
            bench = Bench(opened, rows, np.random.default_rng(7))
            bench.create(views, with_full=False)
            for view, (_, delta) in bench.measure("uniform", CHANGE / rows).items():
                took[view].append(delta.ms)
    for view, (small, large) in took.items():
        report.row(
            f"{view}, {CHANGE:,} changes of {GROW[1]:,} rows", large, "ms", ratio=large / small,
            against=f"of {GROW[0]:,} rows", goal="at most 2×", met=large <= 2 * small,
        )  # fmt: skip


class Bench:
    """Two source tables that are changed, and the views over them."""

    def __init__(self, warehouse: Warehouse, rows: int, random: np.random.Generator) -> None:
        self.warehouse, self.lake = warehouse, warehouse.lake
        self.random = random
        self.next = {"facts": 0, "dims": 0}
        self.parts = max(1, rows // 4)
        for name, count in (("facts", rows), ("dims", self.parts)):
            change = self.lake.begin()
            made = self._rows(name, count)
            table = change.create_table(self.lake.schema("main"), name, made.schema)
            step = 1_000_000
            files = [self.lake.write(table, made.slice(at, step)) for at in range(0, count, step)]
            change.add_files(table, files)
            self.lake.commit(change)
        self.views: dict[str, tuple[str | None, str]] = {}

    def create(self, views: dict[str, str], *, with_full: bool = True) -> None:
        for number, (view, query) in enumerate(views.items()):
            by_change, whole = f"by_change_{number}", f"whole_{number}"
            self.warehouse.create(by_change, query, mode="differential")
            self.warehouse.refresh(by_change)
            if with_full:
                self.warehouse.create(whole, query, mode="full")
                self.warehouse.refresh(whole)
            self.views[view] = (whole if with_full else None, by_change)

    def measure(self, kind: str, share: float) -> dict[str, tuple[Cost, Cost]]:
        """What each view costs in both modes after a change; the first change is for warming up."""
        found: dict[str, list[tuple[Cost, Cost]]] = {view: [] for view in self.views}
        for repeat in range(REPEATS + 1):
            for name in ("facts", "dims"):
                self.change(name, kind, share)
            for view, (whole, by_change) in self.views.items():
                full = Cost(0.0, 0) if whole is None else self._refresh(whole, Mode.FULL)
                delta = self._refresh(by_change, Mode.DIFFERENTIAL)
                if repeat:
                    found[view].append((full, delta))
        return {view: (_middle([f for f, _ in costs]), _middle([d for _, d in costs]))
                for view, costs in found.items()}  # fmt: skip

    def _refresh(self, name: str, mode: Mode) -> Cost:
        began = time.perf_counter()
        answer = self.warehouse.refresh(name)
        took = (time.perf_counter() - began) * 1_000
        (record, *_) = self.warehouse.history(name, limit=1)
        if not answer.ok or record.executed is not mode:
            raise RuntimeError(f"{name}: {answer.detail}, {record.executed} {record.reason_text}")
        return Cost(took, record.rows_read)

    def change(self, name: str, kind: str, share: float) -> None:
        """70 % updates, 15 % inserts and 15 % deletes, as other tools write them."""
        version = self.lake.table_at(name)
        held = self.lake.scan(name)
        size = max(2, round(held.num_rows * share))
        gone = max(1, round(size * 0.85))
        places = _chosen(kind, held, gone, self.random)
        kept = held.take(pa.array(places[: round(size * 0.7)]))
        changed = kept.set_column(
            kept.column_names.index(_CHANGED[name]), _CHANGED[name],
            self._rows(name, kept.num_rows, renumber=False)[_CHANGED[name]],
        )  # fmt: skip
        added = pa.concat_tables([changed, self._rows(name, size - gone)])
        self._delete(version, held.take(pa.array(places))["id"].to_numpy())
        transaction = self.lake.begin()
        transaction.add_files(version.table, [self.lake.write(version.table, added)])
        self.lake.commit(transaction)

    def _delete(self, version: Any, ids: Any) -> None:
        transaction = self.lake.begin()
        rows = []
        for file in version.files:
            positions = _live_positions(self.lake, file, version, ids)
            if len(positions):
                rows.append(FileRows(file, positions))
        transaction.delete_rows(version.table, rows)
        self.lake.commit(transaction)

    def _rows(self, name: str, count: int, *, renumber: bool = True) -> pa.Table:
        random, first = self.random, self.next[name]
        ids = np.arange(first, first + count, dtype=np.int64)
        if renumber:
            self.next[name] += count
        if name == "dims":
            names = [f"part {n}" for n in random.integers(0, 1 << 30, count)]
            regions = random.integers(0, 2_500, count)
            return pa.table({"id": ids, "name": pa.array(names, pa.string()), "region": regions})
        return pa.table(
            {
                "id": ids,
                "part": (ids * self.parts // max(1, self.next[name] or 1)) % self.parts,
                "kind": random.integers(0, 10, count).astype(np.int32),
                "amount": random.integers(0, 1_000_000, count),
            }
        )


_CHANGED = {"facts": "amount", "dims": "name"}


def _chosen(kind: str, held: pa.Table, count: int, random: np.random.Generator) -> Any:
    """Places of rows: anywhere, or among the newest tenth of them."""
    order = np.argsort(held["id"].to_numpy(), kind="stable")
    pool = order if kind == "uniform" else order[-max(count, held.num_rows // 20) :]
    return random.choice(pool, count, replace=False)


def _live_positions(lake: Catalog, file: Any, version: Any, ids: Any) -> Any:
    from penstock.lake.locate import gone_at
    from penstock.lake.scan import read_rows

    column = tuple(c for c in version.table.columns if c.name == "id")
    held = read_rows(lake.storage, FileRows(file), column, version.mappings)["id"].to_numpy()
    found = np.flatnonzero(np.isin(held, ids))
    return np.setdiff1d(found, gone_at(lake.storage, file, version.snapshot.id))


def _middle(costs: list[Cost]) -> Cost:
    return Cost(median(c.ms for c in costs), round(median(c.rows_read for c in costs)))
