"""TPC-H as 22 stream tables on real Spark, every base table changed by DuckDB in each batch.

`make test` runs a few queries and one batch at a small scale. For all of it:
`PENSTOCK_TPCH=all PENSTOCK_TPCH_SCALE=0.1 PENSTOCK_TPCH_BATCHES=5 pytest -o faulthandler_timeout=0
tests/integration/spark/delta/test_tpch.py`. `PENSTOCK_TPCH` may also list queries: `3,5,18`.
"""

from __future__ import annotations

import math
import os
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
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

TYPES = {
    1: "varchar varchar decimal(25,2) decimal(25,2) decimal(38,4) decimal(38,6) "
    "decimal(19,6) decimal(19,6) decimal(19,6) int64",
    2: "decimal(15,2) varchar varchar int64 varchar varchar varchar varchar",
    3: "int64 decimal(38,4) date int32",
    4: "varchar int64",
    5: "varchar decimal(38,4)",
    6: "decimal(38,4)",
    7: "varchar varchar int32 decimal(38,4)",
    8: "int32 decimal(38,6)",
    9: "varchar int32 decimal(38,4)",
    10: "int64 varchar decimal(38,4) decimal(15,2) varchar varchar varchar varchar",
    11: "int64 decimal(38,2)",
    12: "varchar int64 int64",
    13: "int64 int64",
    14: "decimal(38,6)",
    15: "int64 varchar varchar varchar decimal(38,4)",
    16: "varchar varchar int32 int64",
    17: "decimal(30,6)",
    18: "varchar int64 int64 date decimal(15,2) decimal(25,2)",
    19: "decimal(38,4)",
    20: "varchar varchar",
    21: "varchar int64",
    22: "varchar int64 decimal(25,2)",
}
"""The types that Spark gives the results."""

Row = tuple[Any, ...]


@pytest.mark.slow
def test_queries_of_tpch_follow_their_changes(shop: Shop) -> None:
    fill(shop.lake)
    for number, text in queries().items():
        if CHOSEN == "all" or str(number) in CHOSEN.split(","):
            shop.create(f"q{number}", text.rstrip().rstrip(";"))
    shop.refresh()
    for name in shop.names:
        check_types(shop, name)
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


def check_types(shop: Shop, name: str) -> None:
    """A table has the types that Spark gives its query."""
    found = " ".join(column.type for column in shop.lake.table(name).columns)
    assert found == TYPES[int(name[1:])], name


def compare(shop: Shop, name: str, batch: int) -> None:
    """DuckDB has exactly the same rows, except for averages and quotients.

    These are floats in DuckDB and decimals of six digits behind the point in Spark.
    """
    held, wanted = shop.duck.run(f"SELECT * FROM {name}"), shop.duck.run(shop.asked[name])
    floats = [pa.types.is_floating(kind) for kind in wanted.schema.types]
    pairs = zip(parts(held, floats), parts(wanted, floats), strict=True)
    for (one, quotients), (other, others) in pairs:
        assert one == other, (name, batch)
        for ours, theirs in zip(quotients, others, strict=True):
            is_same = (ours is None) == (theirs is None) and (
                ours is None or math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-6)
            )
            assert is_same, (name, batch, one, ours, theirs)


def parts(rows: pa.Table, floats: list[bool]) -> list[tuple[Row, Row]]:
    """Rows in order, each as what must be equal and what must be close."""
    found = []
    for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        cells = list(zip(row, floats, strict=True))
        exact = tuple(cell for cell, is_float in cells if not is_float)
        close = tuple(None if cell is None else float(cell) for cell, is_float in cells if is_float)
        found.append((exact, close))
    return sorted(found, key=order)


def order(row: tuple[Row, Row]) -> tuple[Any, ...]:
    exact, close = row
    texts = (f"{cell:f}" if isinstance(cell, Decimal) else str(cell) for cell in exact)
    return tuple(texts), tuple((cell is None, cell or 0.0) for cell in close)
