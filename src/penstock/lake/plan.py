"""Turn a transaction into the SQL that commits it on top of the latest snapshot.

Pure: takes the catalog's contents (`CatalogState`), returns the statements in order and the text of
the changes. Ids are assigned here, so a commit that starts over is planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.lake import plan_files, plan_schema
from penstock.lake.changes import Changes
from penstock.lake.draft import CatalogState, Draft
from penstock.lake.model import TableInfo
from penstock.lake.plan_stats import write_stats
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
    tables = [op.table for op in operations if not isinstance(op, CreateSchema | DropSchema)]
    return {table.id: table for table in tables if table.id >= 0}


def plan(transaction: Transaction, state: CatalogState, time_text: str) -> CommitPlan:
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


def _add_snapshot(draft: Draft, transaction: Transaction) -> None:
    version = draft.state.latest.schema_version + (1 if draft.schema_changed else 0)
    for number, columns in sorted(draft.new_version_of.items()):
        plan_schema.write_version(draft, number, version, columns)
    draft.run(
        "INSERT INTO ducklake_snapshot VALUES (?, ?, ?, ?, ?)",
        draft.snapshot, draft.time_text, version, draft.next_catalog, draft.next_file,
    )  # fmt: skip
    draft.run(
        "INSERT INTO ducklake_snapshot_changes VALUES (?, ?, ?, ?, NULL)",
        draft.snapshot, draft.changes.text(), transaction.author, transaction.message,
    )  # fmt: skip


_PLANNED_BY: Final[Mapping[type, Callable[[Draft, Any], None]]] = {
    CreateSchema: plan_schema.create_schema,
    DropSchema: plan_schema.drop_schema,
    CreateTable: plan_schema.create_table,
    DropTable: plan_schema.drop_table,
    RenameTable: plan_schema.rename_table,
    AlterColumns: plan_schema.alter_columns,
    SetComment: plan_schema.set_comment,
    AddFiles: plan_files.add_files,
    EndFiles: plan_files.end_files,
    EndContents: plan_files.end_contents,
    DeletePositions: plan_files.delete_positions,
    AddDeleteFile: plan_files.add_delete_file,
    DeleteInlined: plan_files.delete_inlined,
    MergeFiles: plan_files.merge_files,
    RewriteFiles: plan_files.rewrite_files,
}
