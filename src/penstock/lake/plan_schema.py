"""The part of a plan about definitions: schemas, tables, columns, comments."""

from __future__ import annotations

from typing import Final

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.columns import Column, flat
from penstock.lake.ddl import inlined_table
from penstock.lake.draft import Draft, TableState
from penstock.lake.model import TableInfo
from penstock.lake.paths import relative_to
from penstock.lake.transaction import (
    AlterColumns,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    RenameTable,
    SetComment,
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


def create_schema(draft: Draft, op: CreateSchema) -> None:
    """Create a schema."""
    name = op.schema.name.lower()
    if name in draft.state.schema_ids:
        raise Conflict(f"expected no schema {op.schema.name!r}, found one")
    number = draft.new_catalog_id()
    draft.ids[op.schema.id] = draft.state.schema_ids[name] = number
    path, relative = relative_to(draft.state.data_path, op.schema.path)
    draft.run(
        "INSERT INTO ducklake_schema VALUES (?, ?, ?, NULL, ?, ?, ?)",
        number, op.uuid, draft.snapshot, op.schema.name, path, relative,
    )  # fmt: skip
    draft.changes.add("created_schema", op.schema.name)
    draft.schema_changed = True


def drop_schema(draft: Draft, op: DropSchema) -> None:
    """End a schema; refused while it holds tables or views."""
    inside = sorted(
        name for schema, name in draft.state.entries if schema == op.schema.name.lower()
    )
    if inside:
        raise Rejected(f"expected schema {op.schema.name!r} to be empty, found {', '.join(inside)}")
    draft.end("ducklake_schema", "schema_id", op.schema.id)
    draft.state.schema_ids.setdefault(op.schema.name.lower(), op.schema.id)
    draft.changes.add("dropped_schema", op.schema.id)
    draft.schema_changed = True


def create_table(draft: Draft, op: CreateTable) -> None:
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


def drop_table(draft: Draft, op: DropTable) -> None:
    """End a table and everything that belongs to it."""
    for name, column in _ENDED_WITH_TABLE:
        draft.end(name, column, op.table.id)
    draft.state.entries.discard((op.table.schema.name.lower(), op.table.name.lower()))
    draft.changes.add("dropped_table", op.table.id)
    draft.schema_changed = True


def rename_table(draft: Draft, op: RenameTable) -> None:
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


def alter_columns(draft: Draft, op: AlterColumns) -> None:
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


def set_comment(draft: Draft, op: SetComment) -> None:
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
        raise Conflict(f"expected no table or view {table.schema.name}.{name}, found one already")
    if entry[0] not in draft.state.schema_ids:
        raise Conflict(f"expected a schema {table.schema.name!r}, found none")
    draft.state.entries.add(entry)


def _new_version(draft: Draft, number: int, columns: tuple[Column, ...]) -> None:
    draft.schema_changed = True
    draft.new_version_of[number] = columns


def write_version(draft: Draft, number: int, version: int, columns: tuple[Column, ...]) -> None:
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
