"""Spark, our own reader and DuckDB side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from penstock.lake.catalog import Catalog
from penstock.lake.ddl import quoted
from penstock.lake.model import TableInfo
from penstock.spark.lake.reading import read_table
from penstock.spark.lake.types import for_spark, lake_schema
from penstock.spark.lake.writing import WriteOptions, write_table
from tests.integration.lake.agree import Bag, bag
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import WITH_OUR_CLASSES, WITHOUT

THERE = WriteOptions(collect_rows_max=-1)
"""Written by Spark's tasks, then put together."""
THERE_ONLY = WriteOptions(collect_rows_max=-1, small_bytes=1)
"""Written by Spark's tasks, and left so."""
WAYS = pytest.mark.parametrize(
    ("embedded", "options"),
    [
        (WITH_OUR_CLASSES, WriteOptions()),
        (WITH_OUR_CLASSES, THERE),
        (WITH_OUR_CLASSES, THERE_ONLY),
        (WITHOUT, THERE),
        (WITHOUT, THERE_ONLY),
    ],
    indirect=["embedded"],
    scope="session",
)
"""Every way to write. Rows that are written here do not meet the classes of a Spark."""


def rows_of(frame: Any) -> pa.Table:
    return frame.toArrow()


def spark_bag(spark: Any, lake: Catalog, name: str, at: int | None = None) -> Bag:
    return bag(rows_of(read_table(spark, lake.storage, lake.table_at(name, at))))


def our_bag(lake: Catalog, name: str, at: int | None = None) -> Bag:
    return bag(for_spark(lake.scan(name, at), lake.table(name, at).columns))


def duck_bag(lake: Catalog, duck: Duck, name: str, at: int | None = None) -> Bag:
    where = "" if at is None else f" AT (VERSION => {at})"
    rows = duck.run(f"SELECT * FROM {quoted(name)}{where}")
    return bag(for_spark(rows, lake.table(name, at).columns))


def assert_agree(
    spark: Any, lake: Catalog, duck: Duck, name: str, snapshots: Iterable[int | None] = (None,)
) -> Bag:
    """All three read the same rows; returns those of the last snapshot."""
    found: Bag = Bag()
    for at in snapshots:
        found = spark_bag(spark, lake, name, at)
        assert found == our_bag(lake, name, at), at
        assert found == duck_bag(lake, duck, name, at), at
    return found


def store(
    spark: Any, lake: Catalog, name: str, frame: Any, options: WriteOptions | None = None
) -> TableInfo:
    """Make a table of a query's rows."""
    change = lake.begin(reserve_ms=600_000)
    table = change.create_table(lake.schema("main"), name, lake_schema(frame.schema))
    written = write_table(lake.storage, table, frame, token=change.token, rows_expected=1,
                          options=options)  # fmt: skip
    change.add_files(table, written.files)
    lake.commit(change)
    return lake.table(name)
