"""The part of a plan about statistics: counters and bounds of tables whose files change."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.lake.columns import leaves
from penstock.lake.draft import Draft, Learned
from penstock.lake.model import NewFile, TableInfo
from penstock.lake.stats import TableStats, first_stats, widened


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
