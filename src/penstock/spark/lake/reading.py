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
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.kernel.errors import Rejected
from penstock.lake.columns import Column, column_named, unread_type
from penstock.lake.locate import gone_at
from penstock.lake.model import DataFile, NameMap, TableVersion
from penstock.lake.scan import ChangeRange
from penstock.lake.selection import FileRows, Positions, others
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

_PLACE_BITS: Final = 32
"""How much of a number is a row's place; the rest is the size of its file."""
_SIZE_END: Final = 1 << 31

_PLAIN: Final = "_-!.~'()*:@&=+$,;"
"""What stands in a path of Java's URIs as it is, beside letters and digits."""

_GLOB: Final = str.maketrans({c: f"\\{c}" for c in "*?[]{}\\"})

PLACE_FILE: Final = "__penstock_file"
PLACE_ROW: Final = "__penstock_row"
_PLACES: Final = (Column(-1, PLACE_FILE, "int64"), Column(-2, PLACE_ROW, "int64"))

Mappings = Mapping[int, tuple[NameMap, ...]]


class _Selection(NamedTuple):
    """Rows of a file: those at some positions, all but these, or all (`positions` is None)."""

    file: DataFile
    positions: Positions | None = None
    keep: bool = False


@dataclass(slots=True)
class _Group:
    """Files that one scan reads: of the same shape, and told apart by their sizes or names.

    Where no positions are selected they need not be told apart.
    """

    shape: Shape | None
    keep: bool
    mark: str
    paths: list[str] = field(default_factory=list)
    positions: dict[int | str, Positions] = field(default_factory=dict)

    def holds(self, mark: int | str) -> bool:
        """Whether a file of this size or name is told apart from the others already."""
        return mark in self.positions


def read_table(
    spark: SparkSession,
    storage: Storage,
    version: TableVersion,
    columns: Iterable[str] | None = None,
) -> DataFrame:
    """The rows of a table at the snapshot of a version (`Catalog.table_at`)."""
    at = version.snapshot.id
    table = version.table
    wanted = _wanted((*table.columns, *table.unheld), columns)
    found = [_visible(storage, file, at) for file in version.files]
    return _read(spark, storage, found, version.inlined.rows, wanted, version.mappings)


def read_places(
    spark: SparkSession, storage: Storage, version: TableVersion
) -> tuple[DataFrame, list[DataFile]]:
    """The rows of a table with where they lie, and the files that `PLACE_FILE` numbers.

    A row in the catalog has the file -1, and its row id as its place.
    """
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

    at, table = version.snapshot.id, version.table
    columns = [*(F.col(quoted(column.name)) for column in table.columns)]
    inlined = version.inlined.rows.append_column(
        PLACE_FILE, pa.array(np.full(version.inlined.rows.num_rows, -1, np.int64))
    ).append_column(PLACE_ROW, pa.array(version.inlined.row_ids, pa.int64()))
    frames = [local_frame(spark, inlined, (*table.columns, *_PLACES))]
    files = list(version.files)
    entries = [found for file in files if (found := _visible(storage, file, at)) is not None]
    for names in _unique_names(entries):
        numbers = {name: files.index(entry.file) for name, entry in names.items()}
        for group in _groups(storage, list(names.values()), table.columns, version.mappings):
            found = _scan(spark, group, table.columns, with_places=numbers)
            frames.append(found.select(*columns, F.col(PLACE_FILE), F.col(PLACE_ROW)))
    return reduce(lambda one, other: one.unionAll(other), frames), files


def _unique_names(entries: Iterable[_Selection]) -> list[dict[str, _Selection]]:
    """Files by name, in as few portions as there are files of one name."""
    made: list[dict[str, _Selection]] = []
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
    """Selected rows of files and rows from the catalog, in the shape of the columns."""
    return _read(spark, storage, [_selected(entry) for entry in rows], inlined, columns, mappings)


def _read(
    spark: SparkSession,
    storage: Storage,
    found: Iterable[_Selection | None],
    inlined: pa.Table,
    columns: tuple[Column, ...],
    mappings: Mappings,
) -> DataFrame:
    """A column that Spark cannot read is there by name, and fails whatever needs its values."""
    read = tuple(column for column in columns if unread_type(column) is None)
    groups = _groups(storage, [entry for entry in found if entry is not None], read, mappings)
    frames = [_scan(spark, group, read) for group in groups]
    is_whole = len(read) == len(columns)
    if inlined.num_rows or not frames:
        local = local_frame(spark, inlined, read)
        # Spark computes expressions over rows that it holds before it asks what they are for.
        frames.append(local if is_whole else local.coalesce(1))
    frame = reduce(lambda one, other: one.unionAll(other), frames)
    return frame if is_whole else frame.select(*_with_unread(columns))


def _with_unread(columns: Iterable[Column]) -> list[Expression]:
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

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


def _visible(storage: Storage, file: DataFile, at: int) -> _Selection | None:
    """The rows of a file at a snapshot, None if there are none."""
    late = file.partial_max is not None and file.partial_max > at
    if not (late or file.deletes or file.inlined_deletes):
        return _Selection(file)
    gone = gone_at(storage, file, at)
    if not len(gone):
        return _Selection(file)
    if len(gone) * 2 <= file.record_count:
        return _Selection(file, gone)
    return _selected(FileRows(file, others(FileRows(file, gone))))


def _selected(rows: FileRows) -> _Selection | None:
    """Positions to keep or to drop, whichever are fewer; None for no rows."""
    if rows.positions is None:
        return _Selection(rows.file)
    if len(rows.positions) * 2 > rows.file.record_count:
        return _Selection(rows.file, others(rows))
    return _Selection(rows.file, rows.positions, keep=True) if rows.count else None


def _groups(
    storage: Storage, found: Sequence[_Selection], columns: tuple[Column, ...], mappings: Mappings
) -> list[_Group]:
    """Files sorted into as few scans as can be."""
    looks = needs_shape(columns)
    made: dict[tuple[Shape | None, bool, bool], list[_Group]] = defaultdict(list)
    for entry in found:
        shape = _shape(storage, entry.file, mappings, looks)
        slots = made[shape, entry.keep, entry.positions is None]
        _add(slots, entry, shape)
    return [group for slots in made.values() for group in slots]


def _add(slots: list[_Group], entry: _Selection, shape: Shape | None) -> None:
    """Put a file into the first scan in which nothing else has its size, or its name.

    A size is compared faster than a name, but many small files have the same.
    """
    file, name = entry.file, _name(entry.file.path)
    marks: dict[str, int | str] = {"file_size": file.size_bytes, "file_name": name}
    if file.size_bytes >= _SIZE_END or any(g.holds(file.size_bytes) for g in slots):
        del marks["file_size"]
    free = (g for g in slots if g.mark in marks and not g.holds(marks[g.mark]))
    group = next(iter(slots) if entry.positions is None else free, None)
    if group is None:
        group = _Group(shape, entry.keep, next(iter(marks)))
        slots.append(group)
    group.paths.append(file.path)
    if entry.positions is not None:
        group.positions[marks[group.mark]] = entry.positions


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
    from pyspark.sql.connect import functions as F  # noqa: N812 - its usual name

    reader = spark.read.schema(read_schema(columns, group.shape))
    frame: DataFrame = reader.parquet(*[spark_path(path) for path in group.paths])
    if group.positions:
        frame = _pick(spark, frame, group)
    expressions = projection(columns, group.shape)
    if with_places is not None:
        name, place = _whereabouts(frame, "file_name")
        known = [F.lit(part) for pair in with_places.items() for part in pair]
        number = F.element_at(F.create_map(*known), name).cast("bigint")
        kept = expressions or [F.col(quoted(column.name)) for column in columns]
        return frame.select(*kept, number.alias(PLACE_FILE), place.alias(PLACE_ROW))
    if expressions is None:
        return frame
    return frame.select(*expressions) if expressions else frame.select(F.lit(1))


def _pick(spark: SparkSession, frame: DataFrame, group: _Group) -> DataFrame:
    """The rows at some positions, or all the others."""
    from pyspark.sql.connect import functions as F  # noqa: N812

    mark, place = _whereabouts(frame, group.mark)
    if sum(len(found) for found in group.positions.values()) <= LITERAL_POSITIONS_MAX:
        pairs = [
            (mark == listed) & place.isin([int(p) for p in found])
            for listed, found in group.positions.items()
        ]
        chosen = reduce(lambda one, other: one | other, pairs)
        return frame.where(chosen if group.keep else ~chosen)
    listed = {"place": np.concatenate(list(group.positions.values()))}
    sizes = [len(found) for found in group.positions.values()]
    if group.mark == "file_size":  # both in one number, which Spark looks up fastest
        numbers = np.array(list(group.positions), np.int64)
        listed["place"] += np.repeat(numbers << _PLACE_BITS, sizes)
        place = F.shiftleft(mark, _PLACE_BITS) + place
    else:
        listed["mark"] = np.repeat(np.array(list(group.positions), object), sizes)
    places = spark.createDataFrame(pa.table(listed)).hint("broadcast")
    on = place == places["place"]
    if "mark" in listed:
        on &= mark == places["mark"]
    return frame.join(places, on, "left_semi" if group.keep else "left_anti")


def _whereabouts(frame: DataFrame, mark: str) -> tuple[Expression, Expression]:
    """What tells each row's file, and its place in it, also if a column is called `_metadata`."""
    found = frame.metadataColumn("_metadata")
    return found.getField(mark), found.getField("row_index")
