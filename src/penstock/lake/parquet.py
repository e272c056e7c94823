"""Parquet files of the lake: written from Arrow with field ids, described by their footers.

A commit writes one delete file per data file, replacing any earlier one: DuckDB 1.5 keeps a single
one, whose rows record the snapshot that deleted them. That snapshot's id is only known inside the
commit, so a file written for another id is written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.kernel.errors import Rejected
from penstock.lake.columns import (
    FIELD_ID,
    ROW_ID_FIELD,
    SNAPSHOT_FIELD,
    Column,
    arrow_schema,
    leaves,
)
from penstock.lake.delete_files import SNAPSHOTS, read_delete_file, remember_deletes
from penstock.lake.footer import (
    check_fields,
    field_id,
    file_stats,
    has_field_ids,
    leaf_ids,
    name_map,
)
from penstock.lake.model import DeleteFile, NewFile, joined
from penstock.lake.selection import Positions
from penstock.lake.storage import Storage
from penstock.lake.transaction import AddDeleteFile, DeleteRows, LakeTransaction, Operation

FOOTER_TAIL_BYTES: Final = 8
_DELETE_SCHEMA: Final = pa.schema(
    [
        pa.field(
            "file_path",
            pa.dictionary(pa.int32(), pa.string()),
            metadata={FIELD_ID: b"2147483646"},
        ),
        pa.field("pos", pa.int64(), metadata={FIELD_ID: b"2147483645"}),
    ]
)
_SNAPSHOT_COLUMN: Final = pa.field(
    SNAPSHOTS, pa.int64(), metadata={FIELD_ID: str(SNAPSHOT_FIELD).encode()}
)
_ROW_ID_COLUMN: Final = pa.field(
    "_ducklake_internal_row_id", pa.int64(), metadata={FIELD_ID: str(ROW_ID_FIELD).encode()}
)
_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "store_schema": False,
}


def file_name(token: str | None = None) -> str:
    """A unique file name that contains its reservation's token."""
    return f"penstock-{token or uuid4().hex}-{uuid4().hex[:8]}.parquet"


def write_file(
    storage: Storage,
    directory: str,
    columns: tuple[Column, ...],
    rows: pa.Table,
    *,
    token: str | None = None,
    row_ids: Sequence[int] | pa.Array | None = None,
    snapshots: Sequence[int] | pa.Array | None = None,
) -> NewFile:
    """Write rows as one Parquet file with field ids; the input columns may be in any order.

    With `row_ids` or `snapshots` the rows store them, as in a file that replaces others.
    """
    table = conform(columns, rows)
    for field, values in ((_ROW_ID_COLUMN, row_ids), (_SNAPSHOT_COLUMN, snapshots)):
        if values is not None:
            table = table.append_column(field, pa.array(values, pa.int64()))
    nans = _nans(columns, table)
    path = joined(directory, file_name(token))
    storage.create_directory(directory)
    footer: list[pq.FileMetaData] = []
    with storage.open_output(path) as sink:
        _write(table, sink, write_statistics=_bounded(columns, nans), metadata_collector=footer)
    storage.sync(path)
    (metadata,) = footer
    ids = leaf_ids(metadata.schema.to_arrow_schema(), None)
    stats = tuple(
        replace(entry, contains_nan=nans.get(entry.column_id))
        for entry in file_stats(metadata, ids, columns)
    )
    size, footer_bytes = _sizes(storage, path)
    return NewFile(
        path, metadata.num_rows, size, footer_bytes, stats, has_row_ids=row_ids is not None
    )


def write_scratch(
    storage: Storage, directory: str, columns: tuple[Column, ...], rows: pa.Table, token: str
) -> str:
    """Write rows to a file that is read once and then removed: quickly, and not synced."""
    path = joined(directory, file_name(token))
    storage.create_directory(directory)
    table = conform(columns, rows)
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with storage.open_output(path) as sink:
        _write(table, sink, **options)
    return path


def write_delete_file(
    storage: Storage,
    directory: str,
    data_path: str,
    positions: Positions,
    *,
    snapshots: Positions | None = None,
    token: str | None = None,
) -> NewFile:
    """Write a delete file: ascending positions in a data file, and the snapshots that deleted them.

    Without `snapshots` all were deleted by the one that the file begins with. It is not on disk
    for sure before it was synced.
    """
    indices = pa.array(np.zeros(len(positions), np.int32))
    paths = pa.DictionaryArray.from_arrays(indices, pa.array([data_path]))  # written as it is
    columns = [paths, pa.array(positions, pa.int64())]
    table = pa.Table.from_arrays(columns, schema=_DELETE_SCHEMA)
    if snapshots is not None:
        table = table.append_column(_SNAPSHOT_COLUMN, pa.array(snapshots, pa.int64()))
    path = joined(directory, file_name(token).replace(".parquet", "-delete.parquet"))
    storage.create_directory(directory)
    # Positions ascend, so that their differences are small.
    options: dict[str, Any] = {
        "use_dictionary": [name for name in table.column_names if name != "pos"],
        "column_encoding": {"pos": "DELTA_BINARY_PACKED"},
    }
    with storage.open_output(path) as sink:
        _write(table, sink, **options)
    size, footer = _sizes(storage, path)
    return NewFile(path, len(positions), size, footer)


def _write(table: pa.Table, sink: pa.NativeFile, **options: Any) -> None:
    try:
        pq.write_table(table, sink, **{**_OPTIONS, **options})
    except RuntimeError as error:
        # Its cleanup asks for the footer of a file that was not finished, and so hides why.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def describe_file(
    storage: Storage,
    path: str,
    columns: tuple[Column, ...],
    *,
    read_nans: bool = False,
    is_ours: bool = False,
) -> NewFile:
    """Describe a Parquet file from its footer, as a table needs it.

    A file whose fields do not all carry ids is mapped by name. A footer does not record NaNs; with
    `read_nans` the float columns are read to find them. A file written for these columns
    (`is_ours`) must contain exactly them: otherwise `WrongFields`.
    """
    with storage.open_input(path) as source:
        file = pq.ParquetFile(source)
        schema, metadata = file.schema_arrow, file.metadata
        if is_ours:
            check_fields(schema, columns, path)
        names = None if has_field_ids(schema) else name_map(schema, columns, path)
        ids = leaf_ids(schema, names)
        stats = file_stats(metadata, ids, columns)
        embedded = any(field_id(field) == ROW_ID_FIELD for field in schema)
        if read_nans:
            stats = _with_nans(file, ids, columns, stats)
    if not stats:
        raise Rejected(f"{path!r} has none of the table's columns")
    size, footer = _sizes(storage, path)
    return NewFile(path, metadata.num_rows, size, footer, stats, names, embedded)


def conform(columns: tuple[Column, ...], rows: pa.Table) -> pa.Table:
    """Cast and reorder rows to the columns of their file."""
    schema = arrow_schema(columns)
    if set(schema.names) != set(rows.column_names):
        raise Rejected(
            f"expected rows with the columns {', '.join(schema.names)}, "
            f"found {', '.join(rows.column_names) or 'none'}"
        )
    arrays = []
    for field in schema:
        array = rows.column(field.name)
        if not field.nullable and array.null_count:
            raise Rejected(f"column {field.name!r} has {array.null_count} NULLs, and takes none")
        arrays.append(_cast(array, field))
    # Parquet has no timestamps in seconds, and no intervals of Arrow's kind.
    fields = [_stored(field) for field in schema]
    arrays = [_store(a, f) for a, f in zip(arrays, fields, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _cast(array: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return array.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise Rejected(
            f"column {field.name!r} takes {field.type}, not {array.type}: {error}"
        ) from error


def _stored(field: pa.Field) -> pa.Field:
    if field.type == pa.timestamp("s"):
        return field.with_type(pa.timestamp("us"))
    if field.type == pa.month_day_nano_interval():
        raise Rejected(f"column {field.name!r} is an interval, which Parquet cannot hold")
    return field


def _store(array: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    return array if array.type == field.type else array.cast(field.type)


def _bounded(columns: tuple[Column, ...], nans: dict[int, bool]) -> bool | list[str]:
    """The columns whose bounds are written to the footer.

    Bounds leave NaNs out, but DuckDB orders NaN above all values and skips row groups by bounds. So
    columns with NaNs, and floats in nested values, get no bounds.
    """
    unsure = {
        column.id
        for column in leaves(columns)
        if column.type in ("float32", "float64") and nans.get(column.id) is not False
    }
    if not unsure:
        return True
    paths = (path for column in columns for path in _leaf_paths(column, column.name))
    return [path for path, number in paths if number not in unsure]


def _leaf_paths(column: Column, path: str) -> Iterator[tuple[str, int]]:
    """Parquet's paths of the leaf columns."""
    if not column.is_nested:
        yield path, column.id
    middle = {"list": ".list", "map": ".key_value"}.get(column.type, "")
    for child in column.children:
        yield from _leaf_paths(child, f"{path}{middle}.{child.name}")


def _nans(columns: tuple[Column, ...], table: pa.Table) -> dict[int, bool]:
    """Whether each float column contains NaNs; columns below a list or map are left out."""
    made: dict[int, bool] = {}
    for column in columns:
        if column.type in ("float32", "float64"):
            made[column.id] = bool(pc.any(pc.is_nan(table.column(column.name))).as_py())
    return made


def _with_nans(
    file: pq.ParquetFile, ids: list[int | None], columns: tuple[Column, ...], stats: tuple[Any, ...]
) -> tuple[Any, ...]:
    floats = {c.id for c in leaves(columns) if c.type in ("float32", "float64")}
    found: dict[int, bool] = {}
    for index, number in enumerate(ids):
        physical = file.schema.column(index)
        if number in floats and physical.max_repetition_level == 0 and "." not in physical.path:
            rows = file.read(columns=[physical.path])
            found[number] = bool(pc.any(pc.is_nan(rows.column(0))).as_py())
    return tuple(replace(e, contains_nan=found.get(e.column_id, e.contains_nan)) for e in stats)


def _sizes(storage: Storage, path: str) -> tuple[int, int]:
    """Sizes of the file and of its footer, in bytes."""
    size = storage.size_bytes(path)
    with storage.open_input(path) as source:
        source.seek(size - FOOTER_TAIL_BYTES)
        tail = source.read(FOOTER_TAIL_BYTES)
    return size, int.from_bytes(tail[:4], "little")


class Materialiser:
    """Turns the deletes of a transaction into delete files for a given snapshot."""

    def __init__(self, storage: Storage, transaction: LakeTransaction) -> None:
        self._storage = storage
        self._transaction = transaction
        self._first: dict[int, AddDeleteFile] = {}
        self._written: tuple[int, list[Operation]] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether the transaction needs any delete file."""
        return any(isinstance(op, DeleteRows) for op in self._transaction.operations)

    def __call__(self, snapshot_id: int) -> list[Operation]:
        """The transaction's operations, with every delete file written."""
        if not self.is_needed:
            return self._transaction.operations
        if self._written is None or self._written[0] != snapshot_id:
            self._written = (snapshot_id, list(self._operations(snapshot_id)))
        return self._written[1]

    def _operations(self, snapshot_id: int) -> Iterator[Operation]:
        written: list[str] = []
        for index, operation in enumerate(self._transaction.operations):
            if not isinstance(operation, DeleteRows):
                yield operation
                continue
            current = [delete for delete in operation.file.deletes if delete.end is None]
            if current:
                made = self._write(operation, current[0], snapshot_id)
                written.append(made.file.path)
                yield made
                continue
            # The first delete file of a data file names no snapshot, so it is valid for any and
            # written once.
            if index not in self._first:
                self._first[index] = self._write(operation, None, snapshot_id)
                written.append(self._first[index].file.path)
            yield self._first[index]
        self._storage.sync(*written)

    def _write(
        self, operation: DeleteRows, replaces: DeleteFile | None, snapshot_id: int
    ) -> AddDeleteFile:
        positions, snapshots = np.unique(operation.positions), None
        if replaces is not None:
            before, begun = read_delete_file(self._storage, replaces)
            positions, snapshots = _merged((before, begun), positions, snapshot_id)
        file = write_delete_file(
            self._storage, operation.table.path, operation.file.path, positions,
            snapshots=snapshots, token=self._transaction.token,
        )  # fmt: skip
        remember_deletes(self._storage, file.path, positions, snapshots)
        return AddDeleteFile(operation.table, operation.file.id, file, replaces)


def _merged(
    before: tuple[Positions, Positions], new: Positions, snapshot_id: int
) -> tuple[Positions, Positions]:
    """Deleted positions in ascending order, each with the first snapshot that deleted it."""
    both = np.concatenate([before[0], new])
    deleted_at = np.concatenate([before[1], np.full(len(new), snapshot_id, np.int64)])
    if bool(np.all(np.diff(before[0]) > 0)):
        order = np.argsort(both, kind="stable")  # two runs in order: they are only merged
    else:
        order = np.lexsort((deleted_at, both))
    both, deleted_at = both[order], deleted_at[order]
    first = np.concatenate([[True], both[1:] != both[:-1]]) if len(both) else order.astype(bool)
    return both[first], deleted_at[first]
