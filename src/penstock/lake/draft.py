"""A commit being planned: assigned ids, the statements so far, what they change, and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.lake.changes import Changes
from penstock.lake.columns import Column, leaves
from penstock.lake.model import NewFile, Snapshot, TableInfo
from penstock.lake.stats import ColumnStats, TableColumnStats, TableStats, first_stats, widened
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


def counters_of(draft: Draft, table: TableInfo) -> TableStats:
    """The row and byte counters of a table."""
    return draft.state.tables[draft.id_of(table)].counters


def count(
    draft: Draft, table: TableInfo, *, records: int = 0, size: int = 0, rows: int = 0
) -> None:
    """Change the counters of a table."""
    old = counters_of(draft, table)
    draft.state.tables[draft.id_of(table)].counters = TableStats(
        max(0, old.record_count + records),
        old.next_row_id + rows,
        max(0, old.file_size_bytes + size),
    )
    draft.counted[draft.id_of(table)] = table


def learn(draft: Draft, table: TableInfo, files: Iterable[NewFile]) -> None:
    """Remember the statistics of new files, which may widen a table's bounds."""
    seen = [{stats.column_id: stats for stats in file.stats} for file in files]
    draft.learned.setdefault(draft.id_of(table), []).extend(seen)


def write_stats(draft: Draft) -> None:
    """Write counters and bounds of every table whose files changed."""
    for number, table in draft.counted.items():
        learned = draft.learned.get(number, [])
        state = draft.state.tables[number]
        if state.has_stats:
            _update_stats(draft, number, table, learned)
        elif learned:
            _insert_stats(draft, number, table, learned)


def _update_stats(draft: Draft, number: int, table: TableInfo, learned: Learned) -> None:
    state = draft.state.tables[number]
    draft.run(
        "UPDATE ducklake_table_stats SET record_count = ?, next_row_id = ?, "
        "file_size_bytes = ? WHERE table_id = ?",
        *_counters(state.counters), number,
    )  # fmt: skip
    for column in leaves(table.columns):
        # A column without a row was added later: nothing is known about the rows before it.
        old = state.columns.get(column.id)
        new = None if old is None or not learned else widened(old, column, learned)
        if new is not None and new != old:
            draft.run(
                "UPDATE ducklake_table_column_stats SET contains_null = ?, contains_nan = ?, "
                "min_value = ?, max_value = ? WHERE table_id = ? AND column_id = ?",
                new.contains_null, new.contains_nan, new.min, new.max, number, column.id,
            )  # fmt: skip


def _insert_stats(draft: Draft, number: int, table: TableInfo, learned: Learned) -> None:
    counters = draft.state.tables[number].counters
    draft.run("INSERT INTO ducklake_table_stats VALUES (?, ?, ?, ?)", number, *_counters(counters))
    for new in first_stats(leaves(table.columns), learned):
        draft.run(
            "INSERT INTO ducklake_table_column_stats VALUES (?, ?, ?, ?, ?, ?, NULL)",
            number, new.column_id, new.contains_null, new.contains_nan, new.min, new.max,
        )  # fmt: skip


def _counters(stats: TableStats) -> tuple[int, int, int]:
    return stats.record_count, stats.next_row_id, stats.file_size_bytes
