"""Changes that are too large for this process: found, written and applied by Spark's tasks.

The weighted rows become the feed file first, so that the query which finds them runs once. The rows
that come are read from it and written as files of the table; those that go are joined with the rows
that the table holds. Only places come here: which row of which file is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lake.catalog import Catalog
from penstock.lake.columns import Column, plain_schema
from penstock.lake.feed import WEIGHT_COLUMN, FeedFile
from penstock.lake.locate import gone_at
from penstock.lake.model import DataFile, NewFile, TableInfo, TableVersion
from penstock.lake.selection import FileRows
from penstock.lake.storage import Storage
from penstock.spark.delta.apply import Applied
from penstock.spark.lake.collect import arriving
from penstock.spark.lake.evolution import quoted
from penstock.spark.lake.reading import PLACE_FILE, PLACE_ROW, read_places, read_rows, read_table
from penstock.spark.lake.task_files import tidy, write_by_tasks
from penstock.spark.lake.views import bound_frame
from penstock.spark.lake.writing import WriteOptions, write_there
from penstock.tables.engine import StateDisagrees

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

_WEIGHT: Final = quoted(WEIGHT_COLUMN.name)


def apply_by_tasks(
    spark: SparkSession, lake: Catalog, current: TableVersion, delta: DataFrame, token: str
) -> Applied:
    """Apply consolidated weighted rows, the table's columns in order and then the weight.

    Raises `StateDisagrees` if they take rows from the table that it does not hold.
    """
    table, storage = current.table, lake.storage
    feed = feed_by_tasks(storage, table, delta, token)
    if feed is None:
        return Applied((), (), (), 0, 0)
    weights = _weights(storage, feed)
    came, went = (int(part.sum()) for part in (weights[weights > 0], -weights[weights < 0]))
    rows = fed_frame(storage, table, [feed], spark)
    files: tuple[NewFile, ...] = ()
    if came:
        times = "" if weights.max() == 1 else _REPEATED
        added = bound_frame(spark, _added(table.columns, times), {"feed": rows})
        files = write_there(storage, table, added, token, WriteOptions()).files
    deletes, inlined = _located(spark, lake, current, rows, went) if went else ((), ())
    return Applied(files, deletes, inlined, came, went, feed)


def feed_by_tasks(
    storage: Storage, table: TableInfo, delta: DataFrame, token: str
) -> FeedFile | None:
    """Weighted rows as the feed file of a table, or None if there are none."""
    fed = replace(table, columns=(*table.columns, WEIGHT_COLUMN))
    named = delta.toDF(*(column.name for column in fed.columns)).repartition(1)
    wrote = write_by_tasks(storage, fed, named, token)
    tidy(storage, wrote.directory, [file.path for file in wrote.files])
    if not wrote.files:
        return None
    (file,) = wrote.files
    return FeedFile(file.path, file.record_count, file.size_bytes)


def fed_frame(
    storage: Storage, table: TableInfo, feed: Sequence[FeedFile], spark: SparkSession
) -> DataFrame:
    """The rows of feed files, read by Spark; the last column is `WEIGHT_COLUMN`."""
    files = [FileRows(DataFile(0, f.path, f.rows, f.size_bytes, 0, 0)) for f in feed]
    columns = (*table.columns, WEIGHT_COLUMN)
    return read_rows(spark, storage, files, plain_schema(columns).empty_table(), columns, {})


def difference_by_tasks(
    spark: SparkSession, storage: Storage, current: TableVersion, files: Iterable[NewFile]
) -> DataFrame:
    """What makes of a table's rows those of new files: weighted rows, consolidated."""
    table = current.table
    made = [FileRows(DataFile(0, f.path, f.record_count, f.size_bytes, 0, 0)) for f in files]
    none = table.arrow_schema.empty_table()
    new = read_rows(spark, storage, made, none, table.columns, {})
    columns = ", ".join(quoted(column.name) for column in table.columns)
    one = "CAST({} AS BIGINT) AS " + _WEIGHT
    sql = (
        f"SELECT {columns}, SUM({_WEIGHT}) AS {_WEIGHT} FROM ("
        f"SELECT {columns}, {one.format(1)} FROM new UNION ALL "
        f"SELECT {columns}, {one.format(-1)} FROM old) AS both "
        f"GROUP BY {columns} HAVING SUM({_WEIGHT}) <> 0"
    )
    return bound_frame(spark, sql, {"new": new, "old": read_table(spark, storage, current)})


_REPEATED: Final = f" LATERAL VIEW EXPLODE(SEQUENCE(CAST(1 AS BIGINT), {_WEIGHT})) t AS __i"


def _added(columns: Iterable[Column], times: str) -> str:
    shown = ", ".join(quoted(column.name) for column in columns)
    return f"SELECT {shown} FROM feed{times} WHERE {_WEIGHT} > 0"


def _located(
    spark: SparkSession, lake: Catalog, current: TableVersion, feed: DataFrame, wanted: int
) -> tuple[tuple[FileRows, ...], tuple[int, ...]]:
    """Where the rows lie that go: as many of each as its weight says."""
    held, paths = read_places(spark, lake.storage, current)
    names = [quoted(column.name) for column in current.table.columns]
    same = [
        f"{_comparable('h', name, column)} <=> {_comparable('f', name, column)}"
        for name, column in zip(names, current.table.columns, strict=True)
    ]
    by = ", ".join(
        _comparable("h", name, column)
        for name, column in zip(names, current.table.columns, strict=True)
    )
    sql = (
        f"SELECT {PLACE_FILE}, {PLACE_ROW} FROM ("
        f"SELECT h.{PLACE_FILE}, h.{PLACE_ROW}, -f.{_WEIGHT} AS __c, ROW_NUMBER() OVER "
        f"(PARTITION BY {by} ORDER BY h.{PLACE_FILE} DESC, h.{PLACE_ROW}) AS __n "
        f"FROM held AS h JOIN (SELECT * FROM feed WHERE {_WEIGHT} < 0) AS f "
        f"ON {' AND '.join(same)}) AS numbered WHERE __n <= __c"
    )
    arrivals = arriving(bound_frame(spark, sql, {"held": held, "feed": feed}), bytes_max=None)
    places = pa.concat_tables(list(arrivals.batches()))
    if places.num_rows != wanted:
        raise StateDisagrees(
            f"internal error: the change takes {wanted - places.num_rows} rows from "
            f"{current.table.qualified} that it does not hold; nothing was committed, and the "
            "next refresh runs the whole query",
            table=current.table.qualified,
        )
    return _by_file(lake.storage, current, places, paths)


def _by_file(
    storage: Storage, current: TableVersion, places: pa.Table, paths: Sequence[DataFile]
) -> tuple[tuple[FileRows, ...], tuple[int, ...]]:
    numbers = places.column(PLACE_FILE).to_numpy()
    rows = places.column(PLACE_ROW).to_numpy()
    inlined = tuple(int(row) for row in np.sort(rows[numbers < 0]))
    deletes = []
    for number, file in enumerate(paths):
        positions = np.sort(rows[numbers == number]).astype(np.int64)
        if not len(positions):
            continue
        gone = gone_at(storage, file, current.snapshot.id)
        is_whole = len(positions) + len(gone) == file.record_count
        deletes.append(FileRows(file, None if is_whole else positions))
    return tuple(deletes), inlined


def _comparable(side: str, name: str, column: Column) -> str:
    """A column as Spark compares it; maps it does not, so they are compared as texts."""
    if column.type == "map":  # Spark sorts the entries of maps that it has grouped by
        return f"to_json(struct(array_sort(map_entries({side}.{name}))))"
    return f"to_json(struct({side}.{name}))" if _has_map(column) else f"{side}.{name}"


def _has_map(column: Column) -> bool:
    return column.type == "map" or any(map(_has_map, column.children))


def _weights(storage: Storage, feed: FeedFile) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    with storage.open_input(feed.path) as source:
        found = pq.ParquetFile(source).read([WEIGHT_COLUMN.name])
    made: np.ndarray[tuple[int], np.dtype[np.int64]] = pc.cast(
        found.column(0), pa.int64()
    ).to_numpy()
    return made
