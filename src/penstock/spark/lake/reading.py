"""Lake tables as DataFrames: exactly the files of one snapshot, and of them exactly its rows.

Spark gets an explicit list of files and lists no directory. Deleted rows are excluded by file and
position, rows kept in the catalog are added, and columns are matched by field id.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.kernel.errors import Rejected
from penstock.lake.columns import Column, column_named, unread_type
from penstock.lake.model import DataFile, NameMap, TableVersion
from penstock.lake.scan import ChangeRange, file_history
from penstock.lake.selection import FileRows, Positions, live
from penstock.lake.storage import Storage
from penstock.spark.lake.evolution import (
    Shape,
    needs_shape,
    projection,
    quoted,
    read_schema,
    shape_of,
)
from penstock.spark.lake.types import for_spark, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.connect.column import Column as Expression
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession

LITERAL_POSITIONS_MAX: Final = 256
"""Up to so many positions are part of the query; more of them are a table to join with."""

_PLAIN: Final = "_-!.~'()*:@&=+$,;"
"""What stands in a path of Java's URIs as it is, beside letters and digits."""

_GLOB: Final = str.maketrans({c: f"\\{c}" for c in "*?[]{}\\"})

PLACE_FILE: Final = "__penstock_file"
PLACE_ROW: Final = "__penstock_row"
_PLACES: Final = (Column(-1, PLACE_FILE, "int64"), Column(-2, PLACE_ROW, "int64"))

Mappings = Mapping[int, tuple[NameMap, ...]]


@dataclass(slots=True)
class _Group:
    """Files that one scan reads: of the same shape, and with names of their own."""

    shape: Shape | None
    keep: bool
    paths: list[str] = field(default_factory=list)
    positions: dict[str, Positions] = field(default_factory=dict)


def read_table(
    spark: SparkSession,
    storage: Storage,
    version: TableVersion,
    columns: Iterable[str] | None = None,
) -> DataFrame:
    """The rows of a table at the snapshot of a version (`Catalog.table_at`)."""
    at = version.snapshot.id
    rows = [
        live(file_history(storage, file, upto=at), at) if _may_differ(file, at) else FileRows(file)
        for file in version.files
    ]
    table = version.table
    wanted = _wanted((*table.columns, *table.unheld), columns)
    return read_rows(spark, storage, rows, version.inlined.rows, wanted, version.mappings)


def read_places(
    spark: SparkSession, storage: Storage, version: TableVersion
) -> tuple[DataFrame, list[DataFile]]:
    """The rows of a table with where they lie, and the files that `PLACE_FILE` numbers.

    A row in the catalog has the file -1, and its row id as its place.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    at, table = version.snapshot.id, version.table
    columns = [*(F.col(quoted(column.name)) for column in table.columns)]
    inlined = version.inlined.rows.append_column(
        PLACE_FILE, pa.array(np.full(version.inlined.rows.num_rows, -1, np.int64))
    ).append_column(PLACE_ROW, pa.array(version.inlined.row_ids, pa.int64()))
    frames = [local_frame(spark, inlined, (*table.columns, *_PLACES))]
    entries = [live(file_history(storage, file, upto=at), at) for file in version.files]
    files = [entry.file for entry in entries]
    for names in _unique_names([entry for entry in entries if entry.count]):
        numbers = {name: files.index(entry.file) for name, entry in names.items()}
        for group in _groups(storage, list(names.values()), table.columns, version.mappings):
            found = _scan(spark, group, table.columns, with_places=numbers)
            frames.append(found.select(*columns, F.col(PLACE_FILE), F.col(PLACE_ROW)))
    return reduce(lambda one, other: one.unionAll(other), frames), files


def _unique_names(entries: Iterable[FileRows]) -> list[dict[str, FileRows]]:
    """Files by name, in as few portions as there are files of one name."""
    made: list[dict[str, FileRows]] = []
    for entry in entries:
        name = _name(entry.file.path)
        portion = next((found for found in made if name not in found), None)
        if portion is None:
            made.append(portion := {})
        portion[name] = entry
    return made


def read_inserted(spark: SparkSession, storage: Storage, changes: ChangeRange) -> DataFrame:
    """The rows that a table gained in a range of snapshots."""
    rows, inlined = changes.inserted, changes.inlined_inserted
    return read_rows(spark, storage, rows, inlined, changes.table.columns, changes.mappings)


def read_deleted(spark: SparkSession, storage: Storage, changes: ChangeRange) -> DataFrame:
    """The rows that a table lost in a range of snapshots."""
    rows, inlined = changes.deleted, changes.inlined_deleted
    return read_rows(spark, storage, rows, inlined, changes.table.columns, changes.mappings)


def read_rows(
    spark: SparkSession,
    storage: Storage,
    rows: Sequence[FileRows],
    inlined: pa.Table,
    columns: tuple[Column, ...],
    mappings: Mappings,
) -> DataFrame:
    """Selected rows of files and rows from the catalog, in the shape of the columns.

    A column that Spark cannot read is there by name, and fails whatever needs its values.
    """
    read = tuple(column for column in columns if unread_type(column) is None)
    groups = _groups(storage, [entry for entry in rows if entry.count], read, mappings)
    frames = [_scan(spark, group, read) for group in groups]
    is_whole = len(read) == len(columns)
    if inlined.num_rows or not frames:
        local = local_frame(spark, inlined, read)
        # Spark computes expressions over rows that it holds before it asks what they are for.
        frames.append(local if is_whole else local.coalesce(1))
    frame = reduce(lambda one, other: one.unionAll(other), frames)
    return frame if is_whole else frame.select(*_with_unread(columns))


def _with_unread(columns: Iterable[Column]) -> list[Expression]:
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    made = []
    for column in columns:
        kind = unread_type(column)
        text = F.lit(f"column {column.name!r} has the type {kind}, which cannot be read")
        value = F.col(quoted(column.name)) if kind is None else F.raise_error(text).cast("string")
        made.append(value.alias(column.name))
    return made


def local_frame(spark: SparkSession, rows: pa.Table, columns: tuple[Column, ...]) -> DataFrame:
    """Rows that are here, as a DataFrame with the columns' types."""
    made: DataFrame = spark.createDataFrame(for_spark(rows, columns), spark_schema(columns))
    return made


def spark_path(path: str) -> str:
    """A path as Spark takes it: no character of it is a pattern.

    >>> spark_path("/lake/a[1].parquet")
    '/lake/a\\\\[1\\\\].parquet'
    """
    return path.translate(_GLOB)


def file_name(name: str) -> str:
    """A file's name as Spark's `_metadata` tells it: a part of a Java URI.

    >>> file_name("my ü#1+2%.parquet")
    'my%20ü%231+2%25.parquet'
    """
    return "".join(
        quote(c, safe=_PLAIN) if c.isascii() or unicodedata.category(c)[0] in "ZC" else c
        for c in name
    )


def _name(path: str) -> str:
    """The name of a file that Spark can be told to read; others it would leave out unasked."""
    name = path.rpartition("/")[2]
    if name.startswith(("_", ".")) or ":" in name or name.endswith("._COPYING_"):
        raise Rejected(
            f"Spark cannot read {path!r}: it ignores files whose names begin with '_' or '.' or "
            "contain ':'",
            path=path,
        )
    return file_name(name)


def _wanted(columns: tuple[Column, ...], names: Iterable[str] | None) -> tuple[Column, ...]:
    if names is None:
        return columns
    wanted = tuple(column_named(columns, name) for name in names)
    if not wanted:
        raise Rejected("no column was asked for")
    return wanted


def _may_differ(file: DataFile, at: int) -> bool:
    """Whether some rows of a file may not be there at a snapshot."""
    late = file.partial_max is not None and file.partial_max > at
    deletes = any(delete.begin <= at for delete in file.deletes)
    return late or deletes or bool(file.inlined_deletes)


def _groups(
    storage: Storage, rows: Sequence[FileRows], columns: tuple[Column, ...], mappings: Mappings
) -> list[_Group]:
    """Files sorted into as few scans as can be."""
    looks = needs_shape(columns)
    made: dict[tuple[Shape | None, str, bool], list[_Group]] = defaultdict(list)
    for entry in rows:
        shape = _shape(storage, entry.file, mappings, looks)
        name = _name(entry.file.path)
        kind, positions = _selected(entry)
        slots = made[shape, kind, kind != "all"]
        # Positions are told apart by the file's name: one scan holds a name once.
        free = (g for g in slots if kind == "all" or name not in g.positions)
        group = next(free, None)
        if group is None:
            group = _Group(shape, kind == "keep")
            slots.append(group)
        group.paths.append(entry.file.path)
        if positions is not None:
            group.positions[name] = positions
    return [group for slots in made.values() for group in slots]


def _selected(rows: FileRows) -> tuple[str, Positions | None]:
    """Positions to keep or to drop, whichever are fewer."""
    if rows.positions is None:
        return "all", None
    if len(rows.positions) * 2 <= rows.file.record_count:
        return "keep", rows.positions
    everything = np.arange(rows.file.record_count, dtype=np.int64)
    return "drop", np.setdiff1d(everything, rows.positions, assume_unique=True)


def _shape(storage: Storage, file: DataFile, mappings: Mappings, looks: bool) -> Shape | None:
    if file.mapping_id is not None:
        return mappings[file.mapping_id]
    if not looks:
        return None
    with storage.open_input(file.path) as source:
        return shape_of(pq.ParquetFile(source).schema_arrow)


def _scan(
    spark: SparkSession,
    group: _Group,
    columns: tuple[Column, ...],
    *,
    with_places: Mapping[str, int] | None = None,
) -> DataFrame:
    """One scan of a group's files; with the numbers of files also the places of rows."""
    from pyspark.sql.connect import functions as F  # noqa: N812 - as everybody calls it

    reader = spark.read.schema(read_schema(columns, group.shape))
    frame: DataFrame = reader.parquet(*[spark_path(path) for path in group.paths])
    if group.positions:
        frame = _pick(spark, frame, group)
    expressions = projection(columns, group.shape)
    if with_places is not None:
        name, place = _whereabouts(frame)
        known = [F.lit(part) for pair in with_places.items() for part in pair]
        number = F.element_at(F.create_map(*known), name).cast("bigint")
        kept = expressions or [F.col(quoted(column.name)) for column in columns]
        return frame.select(*kept, number.alias(PLACE_FILE), place.alias(PLACE_ROW))
    if expressions is None:
        return frame
    return frame.select(*expressions) if expressions else frame.select(F.lit(1))


def _pick(spark: SparkSession, frame: DataFrame, group: _Group) -> DataFrame:
    """The rows at some positions, or all the others."""
    if sum(len(found) for found in group.positions.values()) <= LITERAL_POSITIONS_MAX:
        chosen = _is_among(frame, group.positions)
        return frame.where(chosen if group.keep else ~chosen)

    listed = pa.table(
        {
            "file": pa.concat_arrays(
                [pa.array([name] * len(found)) for name, found in group.positions.items()]
            ),
            "place": np.concatenate(list(group.positions.values())),
        }
    )
    places = spark.createDataFrame(listed).hint("broadcast")
    name, place = _whereabouts(frame)
    on = (name == places["file"]) & (place == places["place"])
    return frame.join(places, on, "left_semi" if group.keep else "left_anti")


def _is_among(frame: DataFrame, positions: Mapping[str, Positions]) -> Expression:
    name, place = _whereabouts(frame)
    pairs = [
        (name == listed) & place.isin([int(p) for p in found])
        for listed, found in positions.items()
    ]
    return reduce(lambda one, other: one | other, pairs)


def _whereabouts(frame: DataFrame) -> tuple[Expression, Expression]:
    """The name of each row's file and its place in it, also if a column is called `_metadata`."""
    found = frame.metadataColumn("_metadata")
    return found.getField("file_name"), found.getField("row_index")
