"""A commit before it happens: changes, checks, and Penstock's own rows.

A transaction is data. It records operations against its base snapshot; committing it is one SQL
transaction, all or nothing (`Catalog.commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.columns import Column, check_free, column_named, columns_of, last_id
from penstock.lake.ddl import check_width
from penstock.lake.model import (
    DataFile,
    DeleteFile,
    NewFile,
    SchemaInfo,
    Snapshot,
    TableInfo,
    directory_for,
    joined,
)
from penstock.lake.selection import FileRows, Positions


class _SnapshotId:
    """Placeholder in parameters for the id of the snapshot that the commit creates."""

    def __repr__(self) -> str:
        return "SNAPSHOT"


INLINE_DELETES_MAX: Final = 64
"""Up to this many deleted rows per commit are stored in the catalog; more go to a file."""

SNAPSHOT: Final = _SnapshotId()
"""As a parameter of `also`: the id of the snapshot that the commit creates."""


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """Create a schema."""

    schema: SchemaInfo
    uuid: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """Create an empty table. Its id is provisional (negative) until the commit."""

    table: TableInfo


@dataclass(frozen=True, slots=True)
class DropTable:
    """End a table with all its files."""

    table: TableInfo


@dataclass(frozen=True, slots=True)
class RenameTable:
    """Rename a table within its schema; its files stay where they are."""

    table: TableInfo
    name: str


@dataclass(frozen=True, slots=True)
class AlterColumns:
    """End some columns of a table and begin others; `columns` are all columns afterwards."""

    table: TableInfo
    ended: tuple[int, ...]
    begun: tuple[Column, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class SetComment:
    """Set the comment of a table or a column; None removes it."""

    table: TableInfo
    column_id: int | None
    text: str | None


@dataclass(frozen=True, slots=True)
class AddFiles:
    """Add files to a table."""

    table: TableInfo
    files: tuple[NewFile, ...]


@dataclass(frozen=True, slots=True)
class EndFiles:
    """Remove whole files from a table."""

    table: TableInfo
    files: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndContents:
    """Remove everything from a table: files and inlined rows."""

    table: TableInfo


@dataclass(frozen=True, slots=True)
class DeletePositions:
    """Delete rows of a file by position, recorded in the catalog itself."""

    table: TableInfo
    data_file_id: int
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddDeleteFile:
    """Delete rows of a file by a file of positions, which replaces any earlier one."""

    table: TableInfo
    data_file_id: int
    file: NewFile
    replaces: DeleteFile | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeleteRows:
    """Delete many rows of a file by position: the commit writes a delete file."""

    table: TableInfo
    file: DataFile
    positions: Positions


@dataclass(frozen=True, slots=True)
class DeleteInlined:
    """Delete inlined rows by row id."""

    table: TableInfo
    row_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MergeFiles:
    """Replace several files by one, at every snapshot."""

    table: TableInfo
    sources: tuple[DataFile, ...]
    file: NewFile
    row_id_start: int | None = None


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Replace several files by one with their remaining rows, from now on; None if none remain."""

    table: TableInfo
    sources: tuple[DataFile, ...]
    file: NewFile | None


Operation = (
    CreateSchema | CreateTable | DropTable | RenameTable | AlterColumns | SetComment
    | AddFiles | EndFiles | EndContents | DeletePositions | DeleteRows | AddDeleteFile
    | DeleteInlined
    | MergeFiles | RewriteFiles
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with `?` placeholders. `rows` is how many rows it must change, if that matters."""

    sql: str
    parameters: Sequence[Any] = ()
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """A query whose result the commit depends on."""

    sql: str
    parameters: Sequence[Any]
    value: Any


@dataclass(slots=True)
class LakeTransaction:
    """Records changes against `base`. Methods return the new object, for use in later calls."""

    base: Snapshot
    data_path: str
    operations: list[Operation] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)
    author: str | None = None
    message: str | None = None
    token: str | None = None
    columns_max: int | None = None

    def create_schema(self, name: str) -> SchemaInfo:
        """Create a schema."""
        uuid = str(uuid4())
        path = joined(self.data_path, directory_for(_named(name), uuid))
        schema = SchemaInfo(self._provisional(), name, path)
        self.operations.append(CreateSchema(schema, uuid))
        return schema

    def create_table(
        self,
        schema: SchemaInfo,
        name: str,
        columns: pa.Schema | Sequence[Column],
        *,
        comment: str | None = None,
    ) -> TableInfo:
        """Create a table with the columns of an Arrow schema (or columns with explicit ids)."""
        if self.columns_max is not None:
            check_width(len(columns), self.columns_max)
        made = columns_of(columns) if isinstance(columns, pa.Schema) else tuple(columns)
        uuid = str(uuid4())
        path = joined(schema.path, directory_for(_named(name), uuid))
        table = TableInfo(self._provisional(), uuid, schema, name, path, made, comment)
        self.operations.append(CreateTable(table))
        if comment is not None:
            self.operations.append(SetComment(table, None, comment))
        return table

    def drop_table(self, table: TableInfo) -> None:
        """End a table."""
        self.operations.append(DropTable(table))

    def rename_table(self, table: TableInfo, name: str) -> TableInfo:
        """Rename a table."""
        self.operations.append(RenameTable(table, _named(name)))
        return replace(table, name=name)

    def add_column(
        self, table: TableInfo, field: pa.Field, *, default: str | None = None
    ) -> TableInfo:
        """Add a column; `default` is the text of its value in older rows, otherwise NULL."""
        if field.name.lower() in {column.name.lower() for column in table.columns}:
            raise Rejected(f"{table.qualified} has a column {field.name!r} already")
        first_id = self._next_column_id(table)
        (column,) = columns_of(pa.schema([field]), first_id)
        column = replace(column, initial_default=default, default=default)
        columns = (*table.columns, column)
        self.operations.append(AlterColumns(table, (), (column,), columns))
        return replace(table, columns=columns)

    def drop_column(self, table: TableInfo, name: str) -> TableInfo:
        """End a column; its data stays for older snapshots."""
        column = column_named(table.columns, name)
        left = tuple(other for other in table.columns if other.id != column.id)
        if not left:
            raise Rejected(
                f"{name!r} is the only column of {table.qualified}: drop the table instead"
            )
        self.operations.append(AlterColumns(table, tuple(_ids(column)), (), left))
        return replace(table, columns=left)

    def rename_column(self, table: TableInfo, name: str, to: str) -> TableInfo:
        """Rename a column; its field id keeps its data."""
        column = column_named(table.columns, name)
        if to.lower() in {other.name.lower() for other in table.columns if other != column}:
            raise Rejected(
                f"{name!r} cannot be renamed: {table.qualified} has a column {to!r} already"
            )
        check_free(to)
        renamed = replace(column, name=_named(to))
        columns = tuple(renamed if other.id == column.id else other for other in table.columns)
        begun = (replace(renamed, children=()),)
        self.operations.append(AlterColumns(table, (column.id,), begun, columns))
        return replace(table, columns=columns)

    def comment(self, table: TableInfo, text: str | None, *, column: str | None = None) -> None:
        """Set the comment of a table or of one of its columns."""
        number = None if column is None else column_named(table.columns, column).id
        self.operations.append(SetComment(table, number, text))

    def add_files(self, table: TableInfo, files: Iterable[NewFile]) -> None:
        """Add files that already exist in storage."""
        listed = tuple(file for file in files if file.record_count)
        if listed:
            self.operations.append(AddFiles(table, listed))

    def replace_contents(self, table: TableInfo, files: Iterable[NewFile] = ()) -> None:
        """Replace all contents of a table by these files."""
        self.operations.append(EndContents(table))
        self.add_files(table, files)

    def end_files(self, table: TableInfo, files: Iterable[DataFile]) -> None:
        """Remove whole files from a table."""
        ids = tuple(file.id for file in files)
        if ids:
            self.operations.append(EndFiles(table, ids))

    def delete_rows(
        self, table: TableInfo, rows: Iterable[FileRows], *, inline_max: int = INLINE_DELETES_MAX
    ) -> None:
        """Delete rows by data file and position; they must still be visible (see `selection.live`).

        Up to `inline_max` positions are recorded in the catalog itself; more go to delete files. If
        all rows of a file are deleted, the file ends instead.
        """
        listed = [entry for entry in rows if entry.count]
        whole = [entry.file for entry in listed if entry.positions is None]
        parts = [(entry.file, entry.positions) for entry in listed if entry.positions is not None]
        self.end_files(table, whole)
        inline = sum(len(positions) for _, positions in parts) <= inline_max
        for file, positions in parts:
            unique = np.unique(positions)
            if unique[0] < 0 or unique[-1] >= file.record_count:
                raise Rejected(
                    f"expected positions below {file.record_count} in data file {file.id}, "
                    f"found {unique[0]} to {unique[-1]}"
                )
            if inline:
                where = tuple(int(position) for position in unique)
                self.operations.append(DeletePositions(table, file.id, where))
            else:
                self.operations.append(DeleteRows(table, file, unique))

    def delete_inlined(self, table: TableInfo, row_ids: Iterable[int]) -> None:
        """Delete inlined rows."""
        unique = tuple(sorted({int(row_id) for row_id in row_ids}))
        if unique:
            self.operations.append(DeleteInlined(table, unique))

    def also(self, sql: str, parameters: Sequence[Any] = (), *, rows: int | None = None) -> None:
        """Run one of Penstock's statements in the same SQL transaction, with `?` placeholders.

        `SNAPSHOT` among the parameters is the new snapshot's id. With `rows` the statement must
        change exactly that many rows, otherwise the commit raises `Conflict`.
        """
        self.statements.append(Statement(sql, tuple(parameters), rows))

    def expect(self, sql: str, parameters: Sequence[Any], value: Any) -> None:
        """Commit only if the query's first value equals this (None: or there is no row)."""
        self.expectations.append(Expectation(sql, tuple(parameters), value))

    def _provisional(self) -> int:
        made = sum(isinstance(op, CreateSchema | CreateTable) for op in self.operations)
        return -1 - made

    def _next_column_id(self, table: TableInfo) -> int:
        """The next free id. Ids are never reused, not even those of dropped columns."""
        begun = [
            last_id(op.begun)
            for op in self.operations
            if isinstance(op, AlterColumns) and op.table.id == table.id
        ]
        return max(last_id(table.columns), table.column_ids_used, *begun, 0) + 1


def _ids(column: Column) -> Iterable[int]:
    yield column.id
    for child in column.children:
        yield from _ids(child)


def _named(name: str) -> str:
    if not name or "\0" in name:
        raise Rejected("a name must not be empty")
    return name
