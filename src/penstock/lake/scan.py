"""Read rows with pyarrow: apply deletes, find columns by field id, fill in missing columns.

For small reads, changes between two snapshots, tests and inlined rows; large reads belong to Spark
or DuckDB, which take the same list of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.kernel.errors import Corrupt
from penstock.lake.columns import (
    ROW_ID_FIELD,
    SNAPSHOT_FIELD,
    Column,
    arrow_type,
    plain_schema,
    plain_type,
)
from penstock.lake.delete_files import read_delete_file
from penstock.lake.footer import children_of, field_id
from penstock.lake.model import DataFile, NameMap, TableInfo, TableVersion
from penstock.lake.selection import (
    FileHistory,
    FileRows,
    Positions,
    counted_changes,
    deleted_within,
    history,
    is_moved,
    live,
    net_changes,
)
from penstock.lake.storage import Storage
from penstock.lake.values import read_default

THREADS_FROM_ROWS: Final = 50_000
"""Below this many rows, reading columns in one thread is faster than in several."""

BATCH_ROWS: Final = 8_192
BUFFER_BYTES: Final = 1 << 16
"""Read buffer per column when only part of a file is needed."""

Mappings = Mapping[int, tuple[NameMap, ...]]


def scan(storage: Storage, version: TableVersion, columns: Iterable[str] | None = None) -> pa.Table:
    """All rows of a table at its snapshot."""
    wanted = version.table.columns
    if columns is not None:
        names = list(columns)
        wanted = tuple(column for column in wanted if column.name in names)
    selected = [
        live(file_history(storage, file, upto=version.snapshot.id), version.snapshot.id)
        for file in version.files
    ]
    inlined = version.inlined.rows.select([column.name for column in wanted])
    pieces = [read_rows(storage, rows, wanted, version.mappings) for rows in selected]
    return pa.concat_tables([inlined, *pieces])


def file_history(
    storage: Storage, file: DataFile, *, upto: int | None = None, with_row_ids: bool = False
) -> FileHistory:
    """When each row of a file was inserted and deleted; with `upto`, skips later delete files."""
    begins = None
    if file.partial_max is not None and (upto is None or upto < file.partial_max):
        begins = _internal(storage, file, SNAPSHOT_FIELD)
    positions, snapshots = read_deletes(storage, file, upto=upto)
    row_ids = read_row_ids(storage, file) if with_row_ids else None
    return history(file, begins, positions, snapshots, row_ids)


def read_deletes(
    storage: Storage, file: DataFile, *, upto: int | None = None
) -> tuple[Positions, Positions]:
    """The positions deleted from a file, and the snapshot of each; a position may come twice."""
    positions = [np.array([p for p, _ in file.inlined_deletes], np.int64)]
    snapshots = [np.array([s for _, s in file.inlined_deletes], np.int64)]
    for delete in file.deletes:
        if upto is None or delete.begin <= upto:
            found, at = read_delete_file(storage, delete)
            positions.append(found)
            snapshots.append(at)
    if len(positions) == 2 and not len(positions[0]):  # as it nearly always is
        return positions[1], snapshots[1]
    return np.concatenate(positions), np.concatenate(snapshots)


def read_row_ids(storage: Storage, file: DataFile) -> Positions:
    """The row id of every row of a file."""
    found: Positions | None = _internal(storage, file, ROW_ID_FIELD, required=False)
    if found is not None:
        return found
    if file.row_id_start is None:
        raise Corrupt(f"{file.path!r} has no row ids: neither a column of them nor a first one")
    return np.arange(file.row_id_start, file.row_id_start + file.record_count, dtype=np.int64)


def read_rows(
    storage: Storage, rows: FileRows, columns: tuple[Column, ...], mappings: Mappings
) -> pa.Table:
    """Selected rows of a file, converted to the given columns."""
    schema = plain_schema(columns)
    if rows.count == 0:
        return pa.Table.from_batches([], schema=schema)
    names = None if rows.file.mapping_id is None else mappings[rows.file.mapping_id]
    is_part = _is_part(rows)
    with storage.open_input(rows.file.path) as source:
        file = pq.ParquetFile(
            source, buffer_size=BUFFER_BYTES if is_part else 0, pre_buffer=not is_part
        )
        places = _places(file.schema_arrow, names)
        held = [places[c.id][0].name for c in columns if c.id in places]
        if is_part and held:
            table = _read_part(file, held, rows.positions)
        else:
            is_large = rows.file.record_count > THREADS_FROM_ROWS
            table = file.read(columns=held, use_threads=is_large)
            if rows.positions is not None and held:
                table = table.take(pa.array(rows.positions))
        arrays = [_project(table, c, places.get(c.id), rows.count) for c in columns]
    return pa.Table.from_arrays(arrays, schema=schema)


def _is_part(rows: FileRows) -> bool:
    """Whether the rows lie close together in a file, so that the rest need not be read."""
    if rows.positions is None:
        return False
    span = int(rows.positions[-1]) - int(rows.positions[0]) + 1
    return 2 * span <= rows.file.record_count and bool(np.all(np.diff(rows.positions) > 0))


def _read_part(file: pq.ParquetFile, names: list[str], positions: Any) -> pa.Table:
    """The rows at ascending positions. Reads only their row groups, up to the last row."""
    starts = np.cumsum(
        [0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))]
    )
    first, last = np.searchsorted(starts, positions[[0, -1]], side="right") - 1
    groups = list(range(int(first), int(last) + 1))
    at, pieces = int(starts[first]), []
    for batch in file.iter_batches(BATCH_ROWS, groups, names, use_threads=False):
        low, high = np.searchsorted(positions, (at, at + batch.num_rows))
        if low < high:
            found = pa.Table.from_batches([batch]).take(pa.array(positions[low:high] - at))
            pieces.append(found)
        at += batch.num_rows
        if high == len(positions):
            break
    return pa.concat_tables(pieces)


_Place = tuple[pa.Field, tuple[NameMap, ...] | None]


def _places(schema: pa.Schema, names: tuple[NameMap, ...] | None) -> dict[int, _Place]:
    """The location of each column id in a file."""
    if names is None:
        return {number: (f, None) for f in schema if (number := field_id(f)) is not None}
    fields = {field.name: field for field in schema}
    return {e.field_id: (fields[e.source], e.children) for e in names if e.source in fields}


def _project(table: pa.Table, column: Column, place: _Place | None, count: int) -> pa.Array:
    if place is None:
        return _constant(column, count)
    array = table.column(place[0].name)
    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return _reshape(whole, place[0], column, place[1])


def _constant(column: Column, count: int) -> pa.Array:
    """The value of a later column in an older file, repeated."""
    kind = plain_type(arrow_type(column))
    value = read_default(column)
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array([value] * count, kind.storage_type))
    return pa.array([value] * count, kind)


def _reshape(
    array: pa.Array, field: pa.Field, column: Column, names: tuple[NameMap, ...] | None
) -> pa.Array:
    kind = plain_type(arrow_type(column))
    if not column.is_nested:
        return _scalars(array, kind)
    mask = array.is_null()
    inner = children_of(field.type)
    if column.type == "struct":
        places = _places(pa.schema(inner), names)
        children = [_child(array, child, places.get(child.id)) for child in column.children]
        return pa.StructArray.from_arrays(children, fields=_fields(kind), mask=mask)
    below = [None] * len(inner) if names is None else [entry.children for entry in names]
    if column.type == "list":
        values = _reshape(array.values, inner[0], column.children[0], below[0])
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)
    keys = _reshape(array.keys, inner[0], column.children[0], below[0])
    items = _reshape(array.items, inner[1], column.children[1], below[1])
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=mask)


def _child(array: pa.StructArray, column: Column, place: _Place | None) -> pa.Array:
    if place is None:
        return _constant(column, len(array))
    return _reshape(array.field(place[0].name), place[0], column, place[1])


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _scalars(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array.cast(kind.storage_type))
    if kind == pa.month_day_nano_interval():
        return pa.array([_interval(value) for value in array.to_pylist()], kind)
    return array.cast(kind)


def _interval(value: bytes | None) -> Any:
    """Parquet's interval: months, days and milliseconds, each in four bytes."""
    if value is None:
        return None
    months, days, millis = (int.from_bytes(value[i : i + 4], "little") for i in (0, 4, 8))
    return pa.MonthDayNano([months, days, millis * 1_000_000])


def _internal(storage: Storage, file: DataFile, number: int, *, required: bool = True) -> Any:
    """An internal DuckLake column, stored in the file beside the table's columns."""
    with storage.open_input(file.path) as source:
        opened = pq.ParquetFile(source)
        found = [f.name for f in opened.schema_arrow if field_id(f) == number]
        if found:
            return opened.read(columns=found).column(0).to_numpy()
    if required:
        raise Corrupt(f"{file.path!r} has no column with field id {number}")
    return None


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The net inserts and deletes of a table after one snapshot, up to and including another.

    Rows have the columns that the table has at `until`. An update is a delete and an insert. A row
    inserted and deleted within the range is neither.
    """

    table: TableInfo
    after: int
    until: int
    inserted: tuple[FileRows, ...]
    deleted: tuple[FileRows, ...]
    inlined_inserted: pa.Table
    inlined_deleted: pa.Table
    mappings: Mappings

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return self.count == 0

    @property
    def count(self) -> int:
        """The number of changed rows."""
        files = sum(rows.count for rows in (*self.inserted, *self.deleted))
        return files + len(self.inlined_inserted) + len(self.inlined_deleted)

    def read_inserted(self, storage: Storage) -> pa.Table:
        """The inserted rows."""
        return self._read(storage, self.inserted, self.inlined_inserted)

    def read_deleted(self, storage: Storage) -> pa.Table:
        """The deleted rows."""
        return self._read(storage, self.deleted, self.inlined_deleted)

    def _read(self, storage: Storage, files: Iterable[FileRows], inlined: pa.Table) -> pa.Table:
        pieces = [read_rows(storage, f, self.table.columns, self.mappings) for f in files]
        return pa.concat_tables([inlined, *pieces])


@dataclass(frozen=True, slots=True)
class ChangeSpan:
    """What the catalog says of the changes of a table after one snapshot; no file is read yet.

    `version` is the table at the last snapshot, with every file that it had since the first.
    `rewrites` are the snapshots between them that only moved rows.
    """

    version: TableVersion
    after: int
    rewrites: frozenset[int]

    @property
    def count(self) -> int:
        """The number of changed rows; an estimate where rows of several snapshots share a file."""
        until = self.version.snapshot.id
        came, went = self._inlined()
        counts = [
            counted_changes(file, self.after, until, self.rewrites) for file in self.version.files
        ]
        return len(came) + len(went) + sum(counts)

    def read(self, storage: Storage) -> ChangeRange:
        """The changes, row by row."""
        version, after, until = self.version, self.after, self.version.snapshot.id
        stories, lost = [], []
        for file in version.files:
            if not _is_untouched(file.begin, file.end, file.partial_max, after, until):
                with_ids = is_moved(file, self.rewrites)
                stories.append(file_history(storage, file, with_row_ids=with_ids))
            elif file.deletes or file.inlined_deletes:
                gone, gone_at = read_deletes(storage, file, upto=until)
                lost.append(deleted_within(file, gone, gone_at, after, until))
        inserted, deleted = net_changes(stories, after, until, self.rewrites)
        deleted = [*(rows for rows in lost if rows.count), *deleted]
        rows = version.inlined.rows
        came, went = (rows.take(pa.array(found, pa.int64())) for found in self._inlined())
        return ChangeRange(
            version.table, after, until, tuple(inserted), tuple(deleted), came, went,
            version.mappings,
        )  # fmt: skip

    def _inlined(self) -> tuple[list[int], list[int]]:
        """Which rows in the catalog came and went."""
        facts, until = self.version.inlined, self.version.snapshot.id
        came, went = [], []
        for place, (begin, end) in enumerate(zip(facts.begins, facts.ends, strict=True)):
            if self.after < begin <= until and (end is None or end > until):
                came.append(place)
            elif begin <= self.after and end is not None and self.after < end <= until:
                went.append(place)
        return came, went


def _is_untouched(
    begin: int, end: int | None, partial_max: int | None, after: int, until: int
) -> bool:
    """Whether all rows of a file predate the range and the file did not end within it."""
    return (partial_max or begin) <= after and (end is None or end > until)
