"""What a lake holds, as data: snapshots, schemas, tables, files and what was deleted from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from penstock.lake.columns import Column, plain_schema
from penstock.lake.stats import ColumnStats


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of all tables. The counters are the next free ids."""

    id: int
    time: datetime
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    changes: str | None = None
    author: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A schema: a name for a group of tables. `path` is whole and ends with a slash."""

    id: int
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as one snapshot has it. `path` is whole and ends with a slash.

    `column_ids_used` is the largest id any of its columns ever had. `unheld` are columns of types
    that cannot be read here; everything else is done as if they were not there.
    """

    id: int
    uuid: str
    schema: SchemaInfo
    name: str
    path: str
    columns: tuple[Column, ...]
    comment: str | None = None
    partition_id: int | None = None
    column_ids_used: int = 0
    unheld: tuple[Column, ...] = ()

    @property
    def qualified(self) -> str:
        """Schema and name, as texts for people write it."""
        return f"{self.schema.name}.{self.name}"

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the rows that are handed out."""
        return plain_schema(self.columns)


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view that another tool made: its text, for that tool to run."""

    id: int
    schema: SchemaInfo
    name: str
    dialect: str
    sql: str


@dataclass(frozen=True, slots=True)
class NameMap:
    """How one name in a file without field ids finds its column."""

    source: str
    field_id: int
    children: tuple[NameMap, ...] = ()


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file that lies in storage and is to become part of a table."""

    path: str
    record_count: int
    size_bytes: int
    footer_bytes: int
    stats: tuple[ColumnStats, ...] = ()
    names: tuple[NameMap, ...] | None = None
    has_row_ids: bool = False
    partition: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A Parquet file of positions that are gone from one data file.

    With `partial_max` its rows name the snapshot of their delete, up to that one; without, all of
    them left at `begin`.
    """

    id: int
    data_file_id: int
    path: str
    count: int
    begin: int
    end: int | None = None
    partial_max: int | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of rows, and everything that was ever deleted from it.

    With `partial_max` its rows name the snapshot that inserted them, up to that one; without, all
    of them came at `begin`. Without `row_id_start` its rows name their row ids. `inlined_deletes`
    are positions and the snapshots that deleted them, kept in the catalog.
    """

    id: int
    path: str
    record_count: int
    size_bytes: int
    footer_bytes: int
    begin: int
    end: int | None = None
    row_id_start: int | None = None
    partial_max: int | None = None
    mapping_id: int | None = None
    partition_id: int | None = None
    partition: tuple[str | None, ...] | None = None
    deletes: tuple[DeleteFile, ...] = ()
    inlined_deletes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class InlinedRows:
    """Rows that another tool put into the catalog itself, with the table's columns.

    `ends` is None for a row that is still there.
    """

    rows: pa.Table
    row_ids: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    ends: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table at one snapshot: exactly the files and rows to read, and how.

    A file's deletes may be newer than the snapshot; `penstock.lake.rows` says which apply.
    """

    table: TableInfo
    snapshot: Snapshot
    files: tuple[DataFile, ...]
    inlined: InlinedRows
    mappings: Mapping[int, tuple[NameMap, ...]] = field(default_factory=dict)
