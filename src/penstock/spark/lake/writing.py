"""DataFrames as new files of a lake table, described and ready for a commit to name.

A small result comes here and is written as one file. A large one is written by Spark's tasks, into
a directory that belongs to this attempt alone: an attempt that dies leaves files that no commit
names. Files that came out small are merged before a commit makes them visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.kernel.errors import Rejected
from penstock.lake.model import NewFile, TableInfo, TableVersion, held_rows
from penstock.lake.parquet import write_file
from penstock.lake.storage import Storage
from penstock.spark.lake.collect import ResultTooLarge, arriving
from penstock.spark.lake.difference import Difference, RecentFiles, difference
from penstock.spark.lake.task_files import tidy, write_by_tasks
from penstock.spark.lake.types import arrived_schema, for_lake, is_writable, lake_schema

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame

MEBIBYTE: Final = 1 << 20

Target = Callable[[pa.Schema], TableInfo]
"""Gives the table for rows of some columns."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How large files are to be.

    A result that is expected to have at most `collect_rows_max` rows, and has at most
    `collect_bytes_max` bytes, is written here. If it and the table have at most `compare_rows_max`
    rows they are compared, and where at most `difference_share_max` of the rows differ, only those
    are written; a table of `files_max` files is rewritten all the same. Files below
    `small_bytes` are put together.
    """

    collect_rows_max: int = 100_000
    collect_bytes_max: int = 32 * MEBIBYTE
    compare_rows_max: int = 200_000
    difference_share_max: float = 0.5
    files_max: int = 32
    small_bytes: int = 16 * MEBIBYTE
    target_bytes: int = 128 * MEBIBYTE

    def __post_init__(self) -> None:
        if not 0 < self.small_bytes <= self.target_bytes:
            raise Rejected(
                f"expected small_bytes from 1 to target_bytes ({self.target_bytes}), "
                f"found {self.small_bytes}"
            )


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Files that lie in storage and that no snapshot names yet.

    `rows_read` is what the query's scans of files gave, or None where Spark does not tell. With
    `difference` the files hold what is to be added, and it says what has to go; without, they hold
    all there is. An empty difference says that these are the rows the table has already. `ran_ms`
    is how long Spark ran, `compared_ms` how long the difference took to find.
    """

    table: TableInfo
    files: tuple[NewFile, ...]
    rows: int
    rows_read: int | None = None
    difference: Difference | None = None
    ran_ms: float = 0.0
    compared_ms: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the table has other rows afterwards."""
        return self.difference is None or self.difference.size > 0


def write_table(
    storage: Storage,
    table: TableInfo | Target,
    frame: DataFrame,
    *,
    token: str | None = None,
    rows_expected: int | None = None,
    current: TableVersion | None = None,
    options: WriteOptions | None = None,
    recent: RecentFiles | None = None,
) -> WrittenFiles:
    """Run a query and write its rows as files of a table, which may be made for their columns.

    `token` is the reservation of the transaction that will add them (`Transaction.token`).
    `current` is what the table holds now: of a small result only what is new is written. Files of
    it that are in `recent` are not read again.
    """
    job = _Job(storage, _target(table), frame, token, current, options or WriteOptions(), recent)
    if rows_expected is None or rows_expected <= job.limits.collect_rows_max:
        try:
            return job.write_here(bytes_max=job.limits.collect_bytes_max)
        except ResultTooLarge:
            pass
    found = job.target(lake_schema(frame.schema))
    if all(is_writable(column) for column in found.columns):
        return write_there(storage, found, frame, token, job.limits)
    # Only Arrow writes some of these types, so the rows come here however many they are.
    return job.write_here(bytes_max=None)


def _target(table: TableInfo | Target) -> Target:
    return (lambda _: table) if isinstance(table, TableInfo) else table


@dataclass(frozen=True, slots=True)
class _Job:
    """One query's rows on their way into files that are written here."""

    storage: Storage
    target: Target
    frame: DataFrame
    token: str | None
    current: TableVersion | None
    limits: WriteOptions
    recent: RecentFiles | None = None

    def write_here(self, *, bytes_max: int | None) -> WrittenFiles:
        arrivals = arriving(self.frame, bytes_max=bytes_max)
        table: TableInfo | None = None
        files: list[NewFile] = []
        change: Difference | None = None
        compared_ms = 0.0
        whole = bytes_max is not None
        for rows in _portions(arrivals.batches(), self.limits.target_bytes, whole=whole):
            if table is None:
                table = self.target(arrived_schema(rows.schema))
            settled = for_lake(rows, table.columns)
            began = time.monotonic()
            change = self._difference(table, settled) if whole else None
            compared_ms += (time.monotonic() - began) * 1_000
            new = settled if change is None else change.added
            if new.num_rows:
                file = write_file(self.storage, table.path, table.columns, new, token=self.token)
                files.append(file)
                if change is not None and self.recent is not None:
                    self.recent.put(file.path, table.columns, new.cast(table.arrow_schema))
        if table is None:
            table = self.target(lake_schema(self.frame.schema))
        return WrittenFiles(
            table, tuple(files), _count(files), arrivals.rows_read, change, arrivals.took_ms,
            compared_ms,
        )  # fmt: skip

    def _difference(self, table: TableInfo, rows: pa.Table) -> Difference | None:
        """What to change of the table, if that is less work than to rewrite it."""
        current, limits = self.current, self.limits
        if current is None or current.table != table:
            return None
        held = held_rows(current)
        # What has grown or shrunk too much is not worth a look at the rows.
        size_max = limits.difference_share_max * max(held, rows.num_rows, 2)
        if max(held, rows.num_rows) > limits.compare_rows_max:
            return None
        if abs(held - rows.num_rows) > size_max and not _is_worn(current):
            return None
        found = difference(self.storage, current, rows, self.recent)
        if found.size and (found.size > size_max or len(current.files) >= limits.files_max):
            return None
        return found


def _is_worn(version: TableVersion) -> bool:
    return any(file.deletes or file.inlined_deletes for file in version.files)


def _portions(batches: Iterable[pa.Table], target_bytes: int, *, whole: bool) -> Iterator[pa.Table]:
    """Batches put together to what one file should hold."""
    held: list[pa.Table] = []
    for batch in batches:
        held.append(batch)
        if not whole and sum(b.nbytes for b in held) >= target_bytes:
            yield pa.concat_tables(held)
            held = []
    if held:
        yield pa.concat_tables(held)


def write_there(
    storage: Storage, table: TableInfo, frame: DataFrame, token: str | None, limits: WriteOptions
) -> WrittenFiles:
    """Have Spark's tasks write the rows of a query, and put small files together."""
    wrote = write_by_tasks(storage, table, frame, token)
    files: list[NewFile] = []
    try:
        _check_nulls(table, wrote.files)
        files = _merged(storage, table, wrote.files, token, limits)
    finally:
        tidy(storage, wrote.directory, [file.path for file in files])
    return WrittenFiles(table, tuple(files), _count(files), ran_ms=wrote.ran_ms)


def _merged(
    storage: Storage,
    table: TableInfo,
    files: list[NewFile],
    token: str | None,
    limits: WriteOptions,
) -> list[NewFile]:
    """The same rows in fewer files, where several are small."""
    small = [file for file in files if file.size_bytes < limits.small_bytes]
    kept = [file for file in files if file.size_bytes >= limits.small_bytes]
    for pack in _packs(small, limits.target_bytes):
        if len(pack) == 1:
            kept += pack
            continue
        pieces = []
        for file in pack:
            with storage.open_input(file.path) as source:
                pieces.append(pq.ParquetFile(source).read())
        rows = pa.concat_tables([_unmarked(piece) for piece in pieces])
        kept.append(write_file(storage, table.path, table.columns, rows, token=token))
    return kept


def _packs(files: Iterable[NewFile], target_bytes: int) -> Iterator[list[NewFile]]:
    pack: list[NewFile] = []
    for file in files:
        if pack and sum(f.size_bytes for f in pack) + file.size_bytes > target_bytes:
            yield pack
            pack = []
        pack.append(file)
    if pack:
        yield pack


def _unmarked(rows: pa.Table) -> pa.Table:
    """Rows without what their file says of fields, which differs between files."""
    fields = [pa.field(f.name, _unmarked_type(f.type)) for f in rows.schema]
    return rows.cast(pa.schema(fields))


def _unmarked_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([(f.name, _unmarked_type(f.type)) for f in fields])
    if pa.types.is_map(kind):
        return pa.map_(_unmarked_type(kind.key_type), _unmarked_type(kind.item_type))
    return pa.list_(_unmarked_type(kind.value_type)) if pa.types.is_list(kind) else kind


def _check_nulls(table: TableInfo, files: Iterable[NewFile]) -> None:
    strict = {column.id: column.name for column in table.columns if not column.nulls_allowed}
    for file in files:
        for entry in file.stats:
            if entry.column_id in strict and entry.null_count != 0:
                name = strict[entry.column_id]
                raise Rejected(f"column {name!r} has {entry.null_count} NULLs, and takes none")


def _count(files: Iterable[NewFile]) -> int:
    return sum(file.record_count for file in files)
