"""TPC-H as 22 stream tables on real Spark, every base table changed by DuckDB in each batch.

`make test` runs a few queries and one batch at a small scale. For all of it:
`PENSTOCK_TPCH=all PENSTOCK_TPCH_SCALE=0.1 PENSTOCK_TPCH_BATCHES=5 pytest -o faulthandler_timeout=0
tests/integration/spark/delta/test_tpch.py`. `PENSTOCK_TPCH` may also list queries: `3,5,18`.
"""

from __future__ import annotations

import math
import os
from datetime import date
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import pytest

from penstock.lake.catalog import Catalog
from penstock.tables.core.history import RefreshRecord
from penstock.tables.core.model import Mode
from penstock.tables.delta.cost import Workload, choose
from tests.integration.lake.duck import Duck
from tests.integration.spark.delta.shop import Shop
from tests.unit.tables.delta.tpch import KEYS, change, generated, queries

SCALE = float(os.environ.get("PENSTOCK_TPCH_SCALE") or 0.01)
BATCHES = int(os.environ.get("PENSTOCK_TPCH_BATCHES") or 1)
CHOSEN = os.environ.get("PENSTOCK_TPCH") or "1,4,6,12,13,22"

Row = tuple[Any, ...]


@pytest.mark.slow
def test_queries_of_tpch_follow_their_changes(shop: Shop) -> None:
    fill(shop.lake)
    for number, text in queries().items():
        if CHOSEN == "all" or str(number) in CHOSEN.split(","):
            shop.create(f"q{number}", text.rstrip().rstrip(";"))
    shop.refresh()
    random, moved = Random(19), set()
    lake = SimpleNamespace(db=LakeDuck(shop.duck))
    for batch in range(BATCHES):
        change(lake, random)  # type: ignore[arg-type]
        for name in shop.names:
            record = shop.refresh(name)[name]
            assert record.executed is Mode.DIFFERENTIAL, (name, record.reason, record.reason_text)
            compare(shop, name, batch)
            moved |= {name} if record.delta_rows else set()
            print(
                f"batch {batch}: {name}, {record.delta_rows} rows, {record.took_ms} ms, "
                f"AUTO would choose {auto(record)}",
                flush=True,
            )
    assert moved, "batches that change no table show nothing"


def auto(record: RefreshRecord) -> str:
    """What AUTO would have chosen, from the estimates that a forced refresh is kept with."""
    if record.choice is None:
        return "nothing: no change reached it"
    factors = {Mode(name): factor for name, factor in record.choice["factors"].items()}
    return choose(Workload(**record.choice["workload"]), factors).mode.value


def fill(lake: Catalog) -> None:
    """The eight tables of TPC-H as tables of the lake."""
    source = generated(SCALE)
    change_ = lake.begin(reserve_ms=600_000)
    for name in KEYS:
        rows = source.db.execute(f"SELECT * FROM {name}").to_arrow_table()
        table = change_.create_table(lake.schema("main"), name, rows.schema)
        change_.add_files(table, [lake.write(table, rows, token=change_.token)])
    lake.commit(change_)


class LakeDuck:
    """DuckDB on the lake, as far as the batches of TPC-H need its interface."""

    def __init__(self, duck: Duck) -> None:
        self._duck = duck
        self._rows: list[Row] = []

    def execute(self, statement: str) -> Self:
        self._rows = [tuple(row.values()) for row in self._duck.run(statement).to_pylist()]
        return self

    def fetchone(self) -> Row | None:
        return self._rows[0] if self._rows else None


def compare(shop: Shop, name: str, batch: int) -> None:
    """DuckDB has the same rows; its averages and quotients are floats where Spark's are decimal."""
    held = sorted(map(plain, listed(shop.duck.run(f"SELECT * FROM {name}"))), key=order)
    wanted = sorted(map(plain, listed(shop.duck.run(shop.asked[name]))), key=order)
    assert len(held) == len(wanted), (name, batch)
    for one, other in zip(held, wanted, strict=True):
        assert all(map(is_same, one, other)), (name, batch, one, other)


def listed(rows: Any) -> list[Row]:
    columns = (column.to_pylist() for column in rows.columns)
    return list(zip(*columns, strict=True))


def plain(row: Row) -> Row:
    return tuple(float(v) if isinstance(v, Decimal | int) else str(v) if isinstance(v, date) else v
                 for v in row)  # fmt: skip


def order(row: Row) -> tuple[Any, ...]:
    texts = tuple(repr(value) for value in row if not isinstance(value, float))
    return texts, tuple(f"{value:.3g}" for value in row if isinstance(value, float))


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4)
    return bool(one == other)
