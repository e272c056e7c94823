"""Turn a transaction into the SQL that commits it on top of the latest snapshot.

Pure: takes the catalog's contents (`CatalogState`), returns the statements in order and the text of
the changes. Ids are assigned here, so a commit that starts over is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.kernel.errors import Conflict
from penstock.lake import plan_files
from penstock.lake.changes import Changes
from penstock.lake.columns import Column, flat
from penstock.lake.ddl import inlined_table
from penstock.lake.draft import CatalogState, Draft, TableState, write_stats
from penstock.lake.model import TableInfo, relative_to
from penstock.lake.transaction import (
    AddDeleteFile,
    AddFiles,
    AlterColumns,
    CreateSchema,
    CreateTable,
    DeleteInlined,
    DeletePositions,
    DropTable,
    EndContents,
    EndFiles,
    LakeTransaction,
    MergeFiles,
    Operation,
    RenameTable,
    RewriteFiles,
    SetComment,
    Statement,
)


@dataclass(slots=True)
class CommitPlan:
    """The statements to run, and what they change."""

    snapshot_id: int
    statements: list[Statement]
    changes: Changes
    files_touched: set[int]
    tables_emptied: set[int]
    table_ids: dict[int, int]


def touched_tables(operations: Iterable[Operation]) -> dict[int, TableInfo]:
    """The existing tables that operations touch."""
    tables = [op.table for op in operations if not isinstance(op, CreateSchema)]
    return {table.id: table for table in tables if table.id >= 0}


def plan(transaction: LakeTransaction, state: CatalogState, time_text: str) -> CommitPlan:
    """The statements of a commit. `time_text` is its time in DuckLake's format."""
    draft = Draft(state, time_text)
    for operation in transaction.operations:
        _PLANNED_BY[type(operation)](draft, operation)
    write_stats(draft)
    if draft.changes:
        _add_snapshot(draft, transaction)
    return CommitPlan(
        draft.snapshot,
        draft.statements,
        draft.changes,
        draft.files_touched,
        draft.tables_emptied,
        draft.ids,
    )


def _add_snapshot(draft: Draft, transaction: LakeTransaction) -> None:
    version = draft.state.latest.schema_version + (1 if draft.schema_changed else 0)
    for number, columns in sorted(draft.new_version_of.items()):
        _write_version(draft, number, version, columns)
    draft.run(
        "INSERT INTO ducklake_snapshot VALUES (?, ?, ?, ?, ?)",
        draft.snapshot, draft.time_text, version, draft.next_catalog, draft.next_file,
    )  # fmt: skip
    draft.run(
        "INSERT INTO ducklake_snapshot_changes VALUES (?, ?, ?, ?, NULL)",
        draft.snapshot, draft.changes.text(), transaction.author, transaction.message,
    )  # fmt: skip


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


def _create_schema(draft: Draft, op: CreateSchema) -> None:
    """Create a schema."""
    name = op.schema.name.lower()
    if name in draft.state.schema_ids:
        raise Conflict(f"there is a schema {op.schema.name!r} already")
    number = draft.new_catalog_id()
    draft.ids[op.schema.id] = draft.state.schema_ids[name] = number
    path, relative = relative_to(draft.state.data_path, op.schema.path)
    draft.run(
        "INSERT INTO ducklake_schema VALUES (?, ?, ?, NULL, ?, ?, ?)",
        number, op.uuid, draft.snapshot, op.schema.name, path, relative,
    )  # fmt: skip
    draft.changes.add("created_schema", op.schema.name)
    draft.schema_changed = True


def _create_table(draft: Draft, op: CreateTable) -> None:
    """Create a table with its columns."""
    table = op.table
    _claim(draft, table, table.name)
    number = draft.new_catalog_id()
    draft.ids[table.id] = number
    draft.state.tables[number] = TableState()
    _insert_table(draft, table, table.name)
    for column, parent in flat(table.columns):
        _insert_column(draft, number, column, parent)
    draft.changes.add("created_table", table.schema.name, table.name)
    _new_version(draft, number, table.columns)


def _drop_table(draft: Draft, op: DropTable) -> None:
    """End a table and everything that belongs to it."""
    for name, column in _ENDED_WITH_TABLE:
        draft.end(name, column, op.table.id)
    draft.state.entries.discard((op.table.schema.name.lower(), op.table.name.lower()))
    draft.changes.add("dropped_table", op.table.id)
    draft.schema_changed = True


def _rename_table(draft: Draft, op: RenameTable) -> None:
    """Rename a table."""
    number = draft.id_of(op.table)
    draft.state.entries.discard((op.table.schema.name.lower(), op.table.name.lower()))
    _claim(draft, op.table, op.name)
    draft.end("ducklake_table", "table_id", number)
    _insert_table(draft, op.table, op.name)
    # DuckDB records a rename as a creation, because the new name may collide with others.
    draft.changes.add("created_table", op.table.schema.name, op.name)
    draft.changes.add("altered_table", number)
    _new_version(draft, number, op.table.columns)


def _alter_columns(draft: Draft, op: AlterColumns) -> None:
    """End old columns and begin new ones."""
    number = draft.id_of(op.table)
    for column_id in op.ended:
        draft.run(
            "UPDATE ducklake_column SET end_snapshot = ? WHERE table_id = ? AND column_id = ? "
            "AND end_snapshot IS NULL",
            draft.snapshot, number, column_id,
        )  # fmt: skip
    for column, parent in flat(op.begun):
        _insert_column(draft, number, column, parent)
    draft.changes.add("altered_table", number)
    _new_version(draft, number, op.columns)


def _set_comment(draft: Draft, op: SetComment) -> None:
    """Set or end the comment of a table or a column."""
    number = draft.id_of(op.table)
    if op.column_id is None:
        table, keys, ids = "ducklake_tag", "object_id = ?", (number,)
    else:
        table, keys = "ducklake_column_tag", "table_id = ? AND column_id = ?"
        ids = (number, op.column_id)  # type: ignore[assignment]
    draft.run(
        f"UPDATE {table} SET end_snapshot = ? WHERE {keys} AND key = 'comment' "
        "AND end_snapshot IS NULL",
        draft.snapshot, *ids,
    )  # fmt: skip
    if op.text is not None:
        marks = ", ".join("?" * len(ids))
        draft.run(
            f"INSERT INTO {table} VALUES ({marks}, ?, NULL, 'comment', ?)",
            *ids, draft.snapshot, op.text,
        )  # fmt: skip
    if op.table.id >= 0:
        draft.changes.add("altered_table", number)
    draft.schema_changed = True


def _claim(draft: Draft, table: TableInfo, name: str) -> None:
    entry = (table.schema.name.lower(), name.lower())
    if entry in draft.state.entries:
        raise Conflict(f"there is a table or view {table.schema.name}.{name} already")
    if entry[0] not in draft.state.schema_ids:
        raise Conflict(f"there is no schema {table.schema.name!r}")
    draft.state.entries.add(entry)


def _new_version(draft: Draft, number: int, columns: tuple[Column, ...]) -> None:
    draft.schema_changed = True
    draft.new_version_of[number] = columns


def _write_version(draft: Draft, number: int, version: int, columns: tuple[Column, ...]) -> None:
    """Record a table's new columns, from this snapshot on."""
    draft.run(
        "INSERT INTO ducklake_schema_versions VALUES (?, ?, ?)", draft.snapshot, version, number
    )
    # DuckDB puts small inserts into the newest such table, so it must have the new columns. If
    # DuckDB creates it on demand after an alteration, DuckDB itself cannot read it back.
    name = f"ducklake_inlined_data_{number}_{version}"
    draft.run(inlined_table(draft.state.kind, name, columns))
    draft.run("INSERT INTO ducklake_inlined_data_tables VALUES (?, ?, ?)", number, name, version)


def _insert_table(draft: Draft, table: TableInfo, name: str) -> None:
    schema_id = table.schema.id if table.schema.id >= 0 else draft.ids[table.schema.id]
    path, relative = relative_to(table.schema.path, table.path)
    draft.run(
        "INSERT INTO ducklake_table VALUES (?, ?, ?, NULL, ?, ?, ?, ?)",
        draft.id_of(table), table.uuid, draft.snapshot, schema_id, name, path, relative,
    )  # fmt: skip


def _insert_column(draft: Draft, number: int, column: Column, parent: int | None) -> None:
    default = "NULL" if column.default is None else column.default
    draft.run(
        "INSERT INTO ducklake_column VALUES (?, ?, NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'duckdb')",
        column.id, draft.snapshot, number, column.id, column.name, column.type,
        column.initial_default, default, column.nulls_allowed, parent, column.default_type,
    )  # fmt: skip


_PLANNED_BY: Final[Mapping[type, Callable[[Draft, Any], None]]] = {
    CreateSchema: _create_schema,
    CreateTable: _create_table,
    DropTable: _drop_table,
    RenameTable: _rename_table,
    AlterColumns: _alter_columns,
    SetComment: _set_comment,
    AddFiles: plan_files.add_files,
    EndFiles: plan_files.end_files,
    EndContents: plan_files.end_contents,
    DeletePositions: plan_files.delete_positions,
    AddDeleteFile: plan_files.add_delete_file,
    DeleteInlined: plan_files.delete_inlined,
    MergeFiles: plan_files.merge_files,
    RewriteFiles: plan_files.rewrite_files,
}
