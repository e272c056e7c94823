"""A commit being planned: assigned ids, the statements so far, and what they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.lake.changes import Changes
from penstock.lake.columns import Column
from penstock.lake.model import Snapshot, TableInfo
from penstock.lake.stats import ColumnStats, TableColumnStats, TableStats
from penstock.lake.transaction import Statement

Learned = list[Mapping[int, ColumnStats]]
"""Statistics of new files, by column."""


@dataclass(slots=True)
class TableState:
    """What the latest snapshot records about a table that a transaction touches."""

    has_stats: bool = False
    counters: TableStats = field(default_factory=TableStats)
    columns: dict[int, TableColumnStats] = field(default_factory=dict)
    inlined_tables: tuple[str, ...] = ()
    has_inlined_rows: bool = False


@dataclass(slots=True)
class CatalogState:
    """The catalog's contents when a commit begins."""

    latest: Snapshot
    data_path: str
    kind: str
    tables: dict[int, TableState] = field(default_factory=dict)
    schema_ids: dict[str, int] = field(default_factory=dict)
    entries: set[tuple[str, str]] = field(default_factory=set)


class Draft:
    """The state of one plan. Operations change it in order; `plan` turns it into a `CommitPlan`."""

    def __init__(self, state: CatalogState, time_text: str) -> None:
        self.state = state
        self.time_text = time_text
        self.snapshot = state.latest.id + 1
        self.next_catalog = state.latest.next_catalog_id
        self.next_file = state.latest.next_file_id
        self.new_version_of: dict[int, tuple[Column, ...]] = {}
        self.schema_changed = False
        self.ids: dict[int, int] = {}
        """The ids assigned to tables and schemas that have negative ids in the transaction."""
        self.statements: list[Statement] = []
        self.changes = Changes()
        self.files_touched: set[int] = set()
        self.tables_emptied: set[int] = set()
        self.counted: dict[int, TableInfo] = {}
        self.learned: dict[int, Learned] = {}

    def run(self, sql: str, *parameters: Any, rows: int | None = None) -> None:
        """Add a statement; with `rows` it must change exactly that many rows."""
        self.statements.append(Statement(sql, parameters, rows))

    def end(self, table: str, column: str, number: int) -> None:
        """Mark the rows of one object in a catalog table as ended."""
        self.run(
            f"UPDATE {table} SET end_snapshot = ? WHERE {column} = ? AND end_snapshot IS NULL",
            self.snapshot, number,
        )  # fmt: skip

    def id_of(self, table: TableInfo) -> int:
        """The id of a table, including one that this commit creates."""
        return table.id if table.id >= 0 else self.ids[table.id]

    def new_catalog_id(self) -> int:
        """An id for a schema or a table."""
        self.next_catalog += 1
        return self.next_catalog - 1

    def new_file_id(self) -> int:
        """An id for a file or a mapping."""
        self.next_file += 1
        return self.next_file - 1
