"""The contents of a lake as data: snapshots, schemas, tables, files and deletes.

The catalog stores file paths relative to the table, schema or data path.

>>> joined("s3://bucket/lake/", "main/", "t/", "a.parquet")
's3://bucket/lake/main/t/a.parquet'
>>> relative_to("/lake/main/t/", "/lake/main/t/x/a.parquet"), relative_to("/lake/", "/else/a")
(('x/a.parquet', True), ('/else/a', False))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa

from penstock.lake.columns import Column, plain_schema
from penstock.lake.stats import ColumnStats

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+")


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
    """A schema: a named group of tables. `path` is absolute and ends with a slash."""

    id: int
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table at one snapshot. `path` is absolute and ends with a slash.

    `column_ids_used` is the largest id any of its columns ever had. `unheld` are columns of types
    that Penstock cannot read; all other code ignores them.
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
        """Schema and name, as shown to people."""
        return f"{self.schema.name}.{self.name}"

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the rows returned to callers."""
        return plain_schema(self.columns)


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """A view created by another tool, stored as text for that tool to run."""

    id: int
    schema: SchemaInfo
    name: str
    dialect: str
    sql: str


@dataclass(frozen=True, slots=True)
class NameMap:
    """Maps one name in a file without field ids to its column."""

    source: str
    field_id: int
    children: tuple[NameMap, ...] = ()


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file in storage that is to become part of a table."""

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
    """A Parquet file of deleted positions in one data file.

    With `partial_max` each row records the snapshot that deleted it, up to that one; otherwise all
    were deleted at `begin`.
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
    """A Parquet file of rows, with all deletes from it.

    With `partial_max` each row records the snapshot that inserted it, up to that one; otherwise all
    were inserted at `begin`. Without `row_id_start` the file stores row ids explicitly.
    `inlined_deletes` are positions and the snapshots that deleted them, stored in the catalog.
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
    """Rows that another tool stored in the catalog itself, with the table's columns.

    `ends` is None for a row that was not deleted.
    """

    rows: pa.Table
    row_ids: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    ends: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table at one snapshot: the exact files and rows to read, and how.

    A file's deletes may be newer than the snapshot; `penstock.lake.selection` determines which
    apply.
    """

    table: TableInfo
    snapshot: Snapshot
    files: tuple[DataFile, ...]
    inlined: InlinedRows
    mappings: Mapping[int, tuple[NameMap, ...]] = field(default_factory=dict)


def held_rows(version: TableVersion) -> int:
    """How many rows the files of a version hold; deleted ones count."""
    return sum(f.record_count for f in version.files) + int(version.inlined.rows.num_rows)


def held_bytes(version: TableVersion) -> int:
    """How many bytes the files of a version have."""
    return sum(file.size_bytes for file in version.files)


def joined(base: str, *parts: str) -> str:
    """A path below a base; every directory ends with a slash."""
    for part in parts:
        base = directory(base) + part
    return base


def directory(path: str) -> str:
    """A path with the trailing slash of a directory."""
    return path if path.endswith("/") or not path else path + "/"


def relative_to(base: str, path: str) -> tuple[str, bool]:
    """A path as the catalog stores it: relative if below the base, else unchanged."""
    below = directory(base)
    return (path[len(below) :], True) if path.startswith(below) else (path, False)


def resolve(base: str, path: str, is_relative: bool) -> str:
    """The absolute path of a path from the catalog."""
    return joined(base, path) if is_relative else path


def directory_for(name: str, uuid: str) -> str:
    """The directory of a new schema or table: its name if that is a plain word, else its UUID."""
    return directory(name if _PLAIN.fullmatch(name) else uuid)
