"""The part of a commit that concerns files: rows of data files, deletes, statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.lake.changes import Changes
from penstock.lake.columns import Column, leaves
from penstock.lake.ddl import inlined_delete_table
from penstock.lake.model import DataFile, NameMap, NewFile, Snapshot, TableInfo
from penstock.lake.paths import relative_to
from penstock.lake.stats import ColumnStats, TableColumnStats, TableStats, first_stats, widened
from penstock.lake.transaction import (
    AddDeleteFile,
    AddFiles,
    DeleteInlined,
    DeletePositions,
    EndContents,
    EndFiles,
    MergeFiles,
    RewriteFiles,
    Statement,
)

_Learned = list[Mapping[int, ColumnStats]]


@dataclass(slots=True)
class TableState:
    """What the latest snapshot knows of a table that a transaction touches."""

    has_stats: bool = False
    counters: TableStats = field(default_factory=TableStats)
    columns: dict[int, TableColumnStats] = field(default_factory=dict)
    inlined_tables: tuple[str, ...] = ()
    has_inlined_rows: bool = False


@dataclass(slots=True)
class State:
    """What the catalog holds when a commit begins."""

    latest: Snapshot
    data_path: str
    kind: str
    tables: dict[int, TableState] = field(default_factory=dict)
    schema_ids: dict[str, int] = field(default_factory=dict)
    entries: set[tuple[str, str]] = field(default_factory=set)


class FilePlanner:
    """Gives ids and collects statements, operation by operation."""

    def __init__(self, state: State, time_text: str) -> None:
        self.state = state
        self.time_text = time_text
        self.snapshot = state.latest.id + 1
        self.next_catalog = state.latest.next_catalog_id
        self.next_file = state.latest.next_file_id
        self.schema_version = state.latest.schema_version
        self.new_version_of: dict[int, tuple[Column, ...]] = {}
        self.schema_changed = False
        self.ids: dict[int, int] = {}
        self.made: list[Statement] = []
        self.changes = Changes()
        self.files_touched: set[int] = set()
        self.tables_emptied: set[int] = set()
        self.counted: dict[int, TableInfo] = {}
        self.learned: dict[int, _Learned] = {}

    def run(self, sql: str, *parameters: Any, rows: int | None = None) -> None:
        self.made.append(Statement(sql, parameters, rows))

    def add_files(self, op: AddFiles) -> None:
        number = self._id(op.table)
        counters = self._stats(op.table)
        rows = counters.next_row_id
        for file in op.files:
            self._insert_file(op.table, file, self.snapshot, None if file.has_row_ids else rows)
            rows += file.record_count
        self._count(
            op.table,
            records=sum(file.record_count for file in op.files),
            size=sum(file.size_bytes for file in op.files),
            rows=rows - counters.next_row_id,
        )
        self._learn(op.table, op.files)
        self.changes.add("inserted_into_table", number)

    def end_files(self, op: EndFiles) -> None:
        for file_id in op.files:
            self._end_file(op.table, file_id)
        self.files_touched.update(op.files)
        self.changes.add("deleted_from_table", op.table.id)

    def end_contents(self, op: EndContents) -> None:
        number = self._id(op.table)
        self._end("ducklake_data_file", "table_id", number)
        state = self.state.tables[number]
        if state.has_inlined_rows:
            for name in state.inlined_tables:
                self.run(
                    f"UPDATE {name} SET end_snapshot = ? WHERE end_snapshot IS NULL", self.snapshot
                )
            self.changes.add("inlined_delete", number)
        counters = self._stats(op.table)
        self._count(op.table, records=-counters.record_count, size=-counters.file_size_bytes)
        if op.table.id >= 0:
            self.tables_emptied.add(number)
            self.changes.add("deleted_from_table", number)

    def delete_positions(self, op: DeletePositions) -> None:
        number = op.table.id
        name = f"ducklake_inlined_delete_{number}"
        create = inlined_delete_table(number)
        if not any(statement.sql == create for statement in self.made):
            self.run(create)
        for position in op.positions:
            self.run(
                f"INSERT INTO {name} VALUES (?, ?, ?)", op.data_file_id, position, self.snapshot
            )
        self.files_touched.add(op.data_file_id)
        # Both words: DuckDB's compaction looks only for the first, and would lose the delete.
        self.changes.add("deleted_from_table", number)
        self.changes.add("inlined_delete", number)

    def add_delete_file(self, op: AddDeleteFile) -> None:
        number = op.table.id
        begin, partial = self.snapshot, None
        if op.replaces is not None:
            begin, partial = op.replaces.begin, self.snapshot
            self.run(
                "DELETE FROM ducklake_delete_file WHERE delete_file_id = ?", op.replaces.id, rows=1
            )
            self._schedule(op.replaces.id, op.replaces.path)
        path, relative = relative_to(op.table.path, op.file.path)
        self.run(
            "INSERT INTO ducklake_delete_file VALUES "
            "(?, ?, ?, NULL, ?, ?, ?, 'parquet', ?, ?, ?, NULL, ?)",
            self._file_id(), number, begin, op.data_file_id, path, relative, op.file.record_count,
            op.file.size_bytes, op.file.footer_bytes, partial,
        )  # fmt: skip
        self.files_touched.add(op.data_file_id)
        self.changes.add("deleted_from_table", number)

    def delete_inlined(self, op: DeleteInlined) -> None:
        state = self.state.tables[op.table.id]
        for name in state.inlined_tables:
            for row_id in op.row_ids:
                self.run(
                    f"UPDATE {name} SET end_snapshot = ? WHERE row_id = ? AND end_snapshot IS NULL",
                    self.snapshot, row_id,
                )  # fmt: skip
        self.changes.add("inlined_delete", op.table.id)

    def merge_files(self, op: MergeFiles) -> None:
        first, *others = op.sources
        for source in others:
            self._forget(source)
        begin = min(source.begin for source in op.sources)
        last = max(source.partial_max or source.begin for source in op.sources)
        partial = last if last > begin else None
        self._replace_file(op.table, first, op.file, begin, op.row_id_start, partial)
        sizes = sum(source.size_bytes for source in op.sources)
        self._count(op.table, size=op.file.size_bytes - sizes)
        self.files_touched.update(source.id for source in op.sources)
        self.changes.add("merge_adjacent", op.table.id)

    def rewrite_files(self, op: RewriteFiles) -> None:
        for source in op.sources:
            self._end_file(op.table, source.id)
        records = -sum(source.record_count for source in op.sources)
        size = -sum(source.size_bytes for source in op.sources)
        if op.file is not None:
            self._insert_file(op.table, op.file, self.snapshot, None, op.sources[0])
            records += op.file.record_count
            size += op.file.size_bytes
        self._count(op.table, records=records, size=size)
        self.files_touched.update(source.id for source in op.sources)
        self.changes.add("rewrite_delete", op.table.id)

    def _id(self, table: TableInfo) -> int:
        return table.id if table.id >= 0 else self.ids[table.id]

    def _catalog_id(self) -> int:
        self.next_catalog += 1
        return self.next_catalog - 1

    def _file_id(self) -> int:
        self.next_file += 1
        return self.next_file - 1

    def _end(self, table: str, column: str, number: int) -> None:
        self.run(
            f"UPDATE {table} SET end_snapshot = ? WHERE {column} = ? AND end_snapshot IS NULL",
            self.snapshot, number,
        )  # fmt: skip

    def _end_file(self, table: TableInfo, file_id: int) -> None:
        """End a data file; its delete file goes on, as DuckDB expects when it flushes deletes."""
        self.run(
            "UPDATE ducklake_data_file SET end_snapshot = ? WHERE data_file_id = ? "
            "AND table_id = ? AND end_snapshot IS NULL",
            self.snapshot, file_id, table.id, rows=1,
        )  # fmt: skip

    def _insert_file(
        self,
        table: TableInfo,
        file: NewFile,
        begin: int,
        row_id_start: int | None,
        like: DataFile | None = None,
    ) -> None:
        number, file_id = self._id(table), self._file_id()
        path, relative = relative_to(table.path, file.path)
        mapping = None if file.names is None else self._mapping(number, file.names)
        values = like.partition if like is not None else file.partition
        partition = like.partition_id if like is not None else table.partition_id
        partition = None if values is None else partition
        self.run(
            "INSERT INTO ducklake_data_file VALUES "
            "(?, ?, ?, NULL, NULL, ?, ?, 'parquet', ?, ?, ?, ?, ?, NULL, ?, NULL)",
            file_id, number, begin, path, relative, file.record_count, file.size_bytes,
            file.footer_bytes, row_id_start, partition, mapping,
        )  # fmt: skip
        for stats in file.stats:
            self.run(
                "INSERT INTO ducklake_file_column_stats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                file_id, number, stats.column_id, stats.size_bytes, stats.value_count,
                stats.null_count, stats.min, stats.max, stats.contains_nan,
            )  # fmt: skip
        for index, value in enumerate(values or ()):
            self.run(
                "INSERT INTO ducklake_file_partition_value VALUES (?, ?, ?, ?)",
                file_id, number, index, value,
            )  # fmt: skip

    def _replace_file(
        self,
        table: TableInfo,
        source: DataFile,
        file: NewFile,
        begin: int,
        row_id_start: int | None,
        partial_max: int | None,
    ) -> None:
        """Put a file into the very rows that another one has in the catalog.

        DuckDB asks SQLite for the last row of a table before it begins to read. A file whose row
        came in between would be missed, at the moment when those that it stands for are gone.
        """
        number, file_id = self._id(table), self._file_id()
        path, relative = relative_to(table.path, file.path)
        mapping = None if file.names is None else self._mapping(number, file.names)
        self.run(
            "UPDATE ducklake_data_file SET data_file_id = ?, begin_snapshot = ?, path = ?, "
            "path_is_relative = ?, record_count = ?, file_size_bytes = ?, footer_size = ?, "
            "row_id_start = ?, mapping_id = ?, partial_max = ? WHERE data_file_id = ?",
            file_id, begin, path, relative, file.record_count, file.size_bytes,
            file.footer_bytes, row_id_start, mapping, partial_max, source.id, rows=1,
        )  # fmt: skip
        for place in ("ducklake_file_column_stats", "ducklake_file_partition_value"):
            self.run(
                f"UPDATE {place} SET data_file_id = ? WHERE data_file_id = ?", file_id, source.id
            )
        for stats in file.stats:
            self.run(
                "UPDATE ducklake_file_column_stats SET column_size_bytes = ?, value_count = ?, "
                "null_count = ?, min_value = ?, max_value = ?, contains_nan = ?, "
                "extra_stats = NULL WHERE data_file_id = ? AND column_id = ?",
                stats.size_bytes, stats.value_count, stats.null_count, stats.min, stats.max,
                stats.contains_nan, file_id, stats.column_id,
            )  # fmt: skip
            self.run(
                "INSERT INTO ducklake_file_column_stats SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL "
                "WHERE NOT EXISTS (SELECT 1 FROM ducklake_file_column_stats "
                "WHERE data_file_id = ? AND column_id = ?)",
                file_id, number, stats.column_id, stats.size_bytes, stats.value_count,
                stats.null_count, stats.min, stats.max, stats.contains_nan, file_id,
                stats.column_id,
            )  # fmt: skip
        self._schedule(source.id, source.path)

    def _mapping(self, number: int, names: tuple[NameMap, ...]) -> int:
        mapping = self._file_id()
        self.run(
            "INSERT INTO ducklake_column_mapping VALUES (?, ?, 'map_by_name')", mapping, number
        )
        at = 0

        def insert(entry: NameMap, parent: int | None) -> None:
            nonlocal at
            own, at = at, at + 1
            self.run(
                "INSERT INTO ducklake_name_mapping VALUES (?, ?, ?, ?, ?, ?)",
                mapping, own, entry.source, entry.field_id, parent, False,
            )  # fmt: skip
            for child in entry.children:
                insert(child, own)

        for entry in names:
            insert(entry, None)
        return mapping

    def _forget(self, file: DataFile) -> None:
        """Take a file out of the catalog at every snapshot; its bytes wait for the cleaning."""
        self.run("DELETE FROM ducklake_data_file WHERE data_file_id = ?", file.id, rows=1)
        self.run("DELETE FROM ducklake_file_column_stats WHERE data_file_id = ?", file.id)
        self.run("DELETE FROM ducklake_file_partition_value WHERE data_file_id = ?", file.id)
        self._schedule(file.id, file.path)

    def _schedule(self, file_id: int, whole: str) -> None:
        path, relative = relative_to(self.state.data_path, whole)
        self.run(
            "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (?, ?, ?, ?)",
            file_id, path, relative, self.time_text,
        )  # fmt: skip

    def _stats(self, table: TableInfo) -> TableStats:
        return self.state.tables[self._id(table)].counters

    def _count(self, table: TableInfo, *, records: int = 0, size: int = 0, rows: int = 0) -> None:
        old = self._stats(table)
        self.state.tables[self._id(table)].counters = TableStats(
            max(0, old.record_count + records),
            old.next_row_id + rows,
            max(0, old.file_size_bytes + size),
        )
        self.counted[self._id(table)] = table

    def _learn(self, table: TableInfo, files: Iterable[NewFile]) -> None:
        seen = [{stats.column_id: stats for stats in file.stats} for file in files]
        self.learned.setdefault(self._id(table), []).extend(seen)

    def write_stats(self) -> None:
        """Counters and bounds of every table whose files changed."""
        for number, table in self.counted.items():
            learned = self.learned.get(number, [])
            state = self.state.tables[number]
            if state.has_stats:
                self._update_stats(number, table, learned)
            elif learned:
                self._insert_stats(number, table, learned)

    def _update_stats(self, number: int, table: TableInfo, learned: _Learned) -> None:
        state = self.state.tables[number]
        self.run(
            "UPDATE ducklake_table_stats SET record_count = ?, next_row_id = ?, "
            "file_size_bytes = ? WHERE table_id = ?",
            *_counters(state.counters), number,
        )  # fmt: skip
        for column in leaves(table.columns):
            # A column without a row was added later: nothing is known of the rows before it.
            old = state.columns.get(column.id)
            new = None if old is None or not learned else widened(old, column, learned)
            if new is not None and new != old:
                self.run(
                    "UPDATE ducklake_table_column_stats SET contains_null = ?, contains_nan = ?, "
                    "min_value = ?, max_value = ? WHERE table_id = ? AND column_id = ?",
                    new.contains_null, new.contains_nan, new.min, new.max, number, column.id,
                )  # fmt: skip

    def _insert_stats(self, number: int, table: TableInfo, learned: _Learned) -> None:
        counters = self.state.tables[number].counters
        self.run(
            "INSERT INTO ducklake_table_stats VALUES (?, ?, ?, ?)", number, *_counters(counters)
        )
        for new in first_stats(leaves(table.columns), learned):
            self.run(
                "INSERT INTO ducklake_table_column_stats VALUES (?, ?, ?, ?, ?, ?, NULL)",
                number, new.column_id, new.contains_null, new.contains_nan, new.min, new.max,
            )  # fmt: skip


def _counters(stats: TableStats) -> tuple[int, int, int]:
    return stats.record_count, stats.next_row_id, stats.file_size_bytes
