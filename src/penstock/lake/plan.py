"""From a transaction to the SQL that commits it on top of the latest snapshot.

Pure: takes what the catalog holds (`State`), gives the statements in their order and the text of
what changes. Ids are given here, so a commit that has to start again is planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.changes import Changes
from penstock.lake.columns import Column, flat
from penstock.lake.ddl import inlined_table
from penstock.lake.model import TableInfo
from penstock.lake.paths import relative_to
from penstock.lake.plan_files import FilePlanner, State, TableState
from penstock.lake.transaction import (
    AddDeleteFile,
    AddFiles,
    AlterColumns,
    CreateSchema,
    CreateTable,
    DeleteInlined,
    DeletePositions,
    DropSchema,
    DropTable,
    EndContents,
    EndFiles,
    MergeFiles,
    Operation,
    RenameTable,
    RewriteFiles,
    SetComment,
    Statement,
    Transaction,
)

_ENDED_WITH_TABLE: Final = (
    ("ducklake_table", "table_id"),
    ("ducklake_partition_info", "table_id"),
    ("ducklake_sort_info", "table_id"),
    ("ducklake_column", "table_id"),
    ("ducklake_column_tag", "table_id"),
    ("ducklake_data_file", "table_id"),
    ("ducklake_delete_file", "table_id"),
    ("ducklake_tag", "object_id"),
)


@dataclass(slots=True)
class Plan:
    """What to run, and what it amounts to."""

    snapshot_id: int
    statements: list[Statement]
    changes: Changes
    files_touched: set[int]
    tables_emptied: set[int]
    table_ids: dict[int, int]


def touched_tables(operations: Iterable[Operation]) -> dict[int, TableInfo]:
    """The tables that exist already and are touched."""
    tables = [op.table for op in operations if not isinstance(op, CreateSchema | DropSchema)]
    return {table.id: table for table in tables if table.id >= 0}


def plan(transaction: Transaction, state: State, time_text: str) -> Plan:
    """The statements of a commit. `time_text` is when, in DuckLake's spelling."""
    planner = _Planner(state, time_text)
    for operation in transaction.operations:
        planner.apply(operation)
    return planner.finish(transaction)


class _Planner(FilePlanner):
    """Adds schemas, tables and columns to what a commit can change."""

    def apply(self, operation: Operation) -> None:
        _APPLY[type(operation)](self, operation)

    def create_schema(self, op: CreateSchema) -> None:
        name = op.schema.name.lower()
        if name in self.state.schema_ids:
            raise Conflict(f"expected no schema {op.schema.name!r}, found one")
        number = self._catalog_id()
        self.ids[op.schema.id] = self.state.schema_ids[name] = number
        path, relative = relative_to(self.state.data_path, op.schema.path)
        self.run(
            "INSERT INTO ducklake_schema VALUES (?, ?, ?, NULL, ?, ?, ?)",
            number, op.uuid, self.snapshot, op.schema.name, path, relative,
        )  # fmt: skip
        self.changes.add("created_schema", op.schema.name)
        self.schema_changed = True

    def drop_schema(self, op: DropSchema) -> None:
        inside = sorted(
            name for schema, name in self.state.entries if schema == op.schema.name.lower()
        )
        if inside:
            raise Rejected(
                f"expected schema {op.schema.name!r} to be empty, found {', '.join(inside)}"
            )
        self._end("ducklake_schema", "schema_id", op.schema.id)
        self.state.schema_ids.setdefault(op.schema.name.lower(), op.schema.id)
        self.changes.add("dropped_schema", op.schema.id)
        self.schema_changed = True

    def create_table(self, op: CreateTable) -> None:
        table = op.table
        self._claim(table, table.name)
        number = self._catalog_id()
        self.ids[table.id] = number
        self.state.tables[number] = TableState()
        self._insert_table(table, table.name)
        for column, parent in flat(table.columns):
            self._insert_column(number, column, parent)
        self.changes.add("created_table", table.schema.name, table.name)
        self._new_version(number, table.columns)

    def drop_table(self, op: DropTable) -> None:
        for name, column in _ENDED_WITH_TABLE:
            self._end(name, column, op.table.id)
        self.state.entries.discard((op.table.schema.name.lower(), op.table.name.lower()))
        self.changes.add("dropped_table", op.table.id)
        self.schema_changed = True

    def rename_table(self, op: RenameTable) -> None:
        number = self._id(op.table)
        self.state.entries.discard((op.table.schema.name.lower(), op.table.name.lower()))
        self._claim(op.table, op.name)
        self._end("ducklake_table", "table_id", number)
        self._insert_table(op.table, op.name)
        # DuckDB notes a rename as a creation: it is the new name that others may collide with.
        self.changes.add("created_table", op.table.schema.name, op.name)
        self.changes.add("altered_table", number)
        self._new_version(number, op.table.columns)

    def alter_columns(self, op: AlterColumns) -> None:
        number = self._id(op.table)
        for column_id in op.ended:
            self.run(
                "UPDATE ducklake_column SET end_snapshot = ? WHERE table_id = ? AND column_id = ? "
                "AND end_snapshot IS NULL",
                self.snapshot, number, column_id,
            )  # fmt: skip
        for column, parent in flat(op.begun):
            self._insert_column(number, column, parent)
        self.changes.add("altered_table", number)
        self._new_version(number, op.columns)

    def set_comment(self, op: SetComment) -> None:
        number = self._id(op.table)
        if op.column_id is None:
            table, keys, ids = "ducklake_tag", "object_id = ?", (number,)
        else:
            table, keys = "ducklake_column_tag", "table_id = ? AND column_id = ?"
            ids = (number, op.column_id)  # type: ignore[assignment]
        self.run(
            f"UPDATE {table} SET end_snapshot = ? WHERE {keys} AND key = 'comment' "
            "AND end_snapshot IS NULL",
            self.snapshot, *ids,
        )  # fmt: skip
        if op.text is not None:
            marks = ", ".join("?" * len(ids))
            self.run(
                f"INSERT INTO {table} VALUES ({marks}, ?, NULL, 'comment', ?)",
                *ids, self.snapshot, op.text,
            )  # fmt: skip
        if op.table.id >= 0:
            self.changes.add("altered_table", number)
        self.schema_changed = True

    def finish(self, transaction: Transaction) -> Plan:
        self.write_stats()
        if self.changes:
            version = self.schema_version + (1 if self.schema_changed else 0)
            for number, columns in sorted(self.new_version_of.items()):
                self._write_version(number, version, columns)
            self.run(
                "INSERT INTO ducklake_snapshot VALUES (?, ?, ?, ?, ?)",
                self.snapshot, self.time_text, version, self.next_catalog, self.next_file,
            )  # fmt: skip
            self.run(
                "INSERT INTO ducklake_snapshot_changes VALUES (?, ?, ?, ?, NULL)",
                self.snapshot, self.changes.text(), transaction.author, transaction.message,
            )  # fmt: skip
        return Plan(
            self.snapshot,
            self.made,
            self.changes,
            self.files_touched,
            self.tables_emptied,
            self.ids,
        )

    def _claim(self, table: TableInfo, name: str) -> None:
        entry = (table.schema.name.lower(), name.lower())
        if entry in self.state.entries:
            raise Conflict(
                f"expected no table or view {table.schema.name}.{name}, found one already"
            )
        if entry[0] not in self.state.schema_ids:
            raise Conflict(f"expected a schema {table.schema.name!r}, found none")
        self.state.entries.add(entry)

    def _new_version(self, number: int, columns: tuple[Column, ...]) -> None:
        self.schema_changed = True
        self.new_version_of[number] = columns

    def _write_version(self, number: int, version: int, columns: tuple[Column, ...]) -> None:
        self.run(
            "INSERT INTO ducklake_schema_versions VALUES (?, ?, ?)", self.snapshot, version, number
        )
        # DuckDB puts small inserts into the newest such table: it must have the new columns. One
        # that DuckDB makes when it needs it, after an alteration, it cannot read back itself.
        name = f"ducklake_inlined_data_{number}_{version}"
        self.run(inlined_table(self.state.kind, name, columns))
        self.run("INSERT INTO ducklake_inlined_data_tables VALUES (?, ?, ?)", number, name, version)

    def _insert_table(self, table: TableInfo, name: str) -> None:
        schema_id = table.schema.id if table.schema.id >= 0 else self.ids[table.schema.id]
        path, relative = relative_to(table.schema.path, table.path)
        self.run(
            "INSERT INTO ducklake_table VALUES (?, ?, ?, NULL, ?, ?, ?, ?)",
            self._id(table), table.uuid, self.snapshot, schema_id, name, path, relative,
        )  # fmt: skip

    def _insert_column(self, number: int, column: Column, parent: int | None) -> None:
        default = "NULL" if column.default is None else column.default
        self.run(
            "INSERT INTO ducklake_column VALUES (?, ?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'duckdb')",
            column.id, self.snapshot, number, column.id, column.name, column.type,
            column.initial_default, default, column.nulls_allowed, parent, column.default_type,
        )  # fmt: skip


_APPLY: Final[Mapping[type, Any]] = {
    CreateSchema: _Planner.create_schema,
    DropSchema: _Planner.drop_schema,
    CreateTable: _Planner.create_table,
    DropTable: _Planner.drop_table,
    RenameTable: _Planner.rename_table,
    AlterColumns: _Planner.alter_columns,
    SetComment: _Planner.set_comment,
    AddFiles: _Planner.add_files,
    EndFiles: _Planner.end_files,
    EndContents: _Planner.end_contents,
    DeletePositions: _Planner.delete_positions,
    AddDeleteFile: _Planner.add_delete_file,
    DeleteInlined: _Planner.delete_inlined,
    MergeFiles: _Planner.merge_files,
    RewriteFiles: _Planner.rewrite_files,
}
