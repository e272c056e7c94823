"""The part of a plan about files: data files, delete files, and rows inside the catalog."""

from __future__ import annotations

from penstock.lake.ddl import inlined_delete_table
from penstock.lake.draft import Draft, count, counters_of, learn
from penstock.lake.model import DataFile, NameMap, NewFile, TableInfo, relative_to
from penstock.lake.transaction import (
    AddDeleteFile,
    AddFiles,
    DeleteInlined,
    DeletePositions,
    EndContents,
    EndFiles,
    MergeFiles,
    RewriteFiles,
)


def add_files(draft: Draft, op: AddFiles) -> None:
    """Add data files; row ids follow the order of the files."""
    number = draft.id_of(op.table)
    counters = counters_of(draft, op.table)
    rows = counters.next_row_id
    for file in op.files:
        _insert_file(draft, op.table, file, draft.snapshot, None if file.has_row_ids else rows)
        rows += file.record_count
    count(
        draft,
        op.table,
        records=sum(file.record_count for file in op.files),
        size=sum(file.size_bytes for file in op.files),
        rows=rows - counters.next_row_id,
    )
    learn(draft, op.table, op.files)
    draft.changes.add("inserted_into_table", number)


def end_files(draft: Draft, op: EndFiles) -> None:
    """End whole files."""
    for file_id in op.files:
        _end_file(draft, op.table, file_id)
    draft.files_touched.update(op.files)
    draft.changes.add("deleted_from_table", op.table.id)


def end_contents(draft: Draft, op: EndContents) -> None:
    """End all contents of a table."""
    number = draft.id_of(op.table)
    draft.end("ducklake_data_file", "table_id", number)
    state = draft.state.tables[number]
    if state.has_inlined_rows:
        for name in state.inlined_tables:
            draft.run(
                f"UPDATE {name} SET end_snapshot = ? WHERE end_snapshot IS NULL", draft.snapshot
            )
        draft.changes.add("inlined_delete", number)
    counters = counters_of(draft, op.table)
    count(draft, op.table, records=-counters.record_count, size=-counters.file_size_bytes)
    if op.table.id >= 0:
        draft.tables_emptied.add(number)
        draft.changes.add("deleted_from_table", number)


def delete_positions(draft: Draft, op: DeletePositions) -> None:
    """Record deleted positions in the catalog itself."""
    number = op.table.id
    name = f"ducklake_inlined_delete_{number}"
    create = inlined_delete_table(number)
    if not any(statement.sql == create for statement in draft.statements):
        draft.run(create)
    for position in op.positions:
        draft.run(f"INSERT INTO {name} VALUES (?, ?, ?)", op.data_file_id, position, draft.snapshot)
    draft.files_touched.add(op.data_file_id)
    # Record both: DuckDB's compaction checks only for the first, and would lose the delete.
    draft.changes.add("deleted_from_table", number)
    draft.changes.add("inlined_delete", number)


def add_delete_file(draft: Draft, op: AddDeleteFile) -> None:
    """Add a delete file, replacing any earlier one."""
    number = op.table.id
    begin, partial = draft.snapshot, None
    if op.replaces is not None:
        begin, partial = op.replaces.begin, draft.snapshot
        draft.run(
            "DELETE FROM ducklake_delete_file WHERE delete_file_id = ?", op.replaces.id, rows=1
        )
        _schedule(draft, op.replaces.id, op.replaces.path)
    path, relative = relative_to(op.table.path, op.file.path)
    draft.run(
        "INSERT INTO ducklake_delete_file VALUES "
        "(?, ?, ?, NULL, ?, ?, ?, 'parquet', ?, ?, ?, NULL, ?)",
        draft.new_file_id(), number, begin, op.data_file_id, path, relative, op.file.record_count,
        op.file.size_bytes, op.file.footer_bytes, partial,
    )  # fmt: skip
    draft.files_touched.add(op.data_file_id)
    draft.changes.add("deleted_from_table", number)


def delete_inlined(draft: Draft, op: DeleteInlined) -> None:
    """End rows stored inside the catalog."""
    state = draft.state.tables[op.table.id]
    for name in state.inlined_tables:
        for row_id in op.row_ids:
            draft.run(
                f"UPDATE {name} SET end_snapshot = ? WHERE row_id = ? AND end_snapshot IS NULL",
                draft.snapshot, row_id,
            )  # fmt: skip
    draft.changes.add("inlined_delete", op.table.id)


def merge_files(draft: Draft, op: MergeFiles) -> None:
    """Replace several files by one, at every snapshot."""
    first, *others = op.sources
    for source in others:
        _forget(draft, source)
    begin = min(source.begin for source in op.sources)
    last = max(source.partial_max or source.begin for source in op.sources)
    partial = last if last > begin else None
    _replace_file(draft, op.table, first, op.file, begin, op.row_id_start, partial)
    sizes = sum(source.size_bytes for source in op.sources)
    count(draft, op.table, size=op.file.size_bytes - sizes)
    draft.files_touched.update(source.id for source in op.sources)
    draft.changes.add("merge_adjacent", op.table.id)


def rewrite_files(draft: Draft, op: RewriteFiles) -> None:
    """Replace several files by one with their remaining rows, from this snapshot on."""
    for source in op.sources:
        _end_file(draft, op.table, source.id)
    records = -sum(source.record_count for source in op.sources)
    size = -sum(source.size_bytes for source in op.sources)
    if op.file is not None:
        _insert_file(draft, op.table, op.file, draft.snapshot, None, op.sources[0])
        records += op.file.record_count
        size += op.file.size_bytes
    count(draft, op.table, records=records, size=size)
    draft.files_touched.update(source.id for source in op.sources)
    draft.changes.add("rewrite_delete", op.table.id)


def _end_file(draft: Draft, table: TableInfo, file_id: int) -> None:
    """End a data file. Its delete file stays, as DuckDB expects when it flushes deletes."""
    draft.run(
        "UPDATE ducklake_data_file SET end_snapshot = ? WHERE data_file_id = ? "
        "AND table_id = ? AND end_snapshot IS NULL",
        draft.snapshot, file_id, table.id, rows=1,
    )  # fmt: skip


def _insert_file(
    draft: Draft,
    table: TableInfo,
    file: NewFile,
    begin: int,
    row_id_start: int | None,
    like: DataFile | None = None,
) -> None:
    number, file_id = draft.id_of(table), draft.new_file_id()
    path, relative = relative_to(table.path, file.path)
    mapping = None if file.names is None else _mapping(draft, number, file.names)
    values = like.partition if like is not None else file.partition
    partition = like.partition_id if like is not None else table.partition_id
    partition = None if values is None else partition
    draft.run(
        "INSERT INTO ducklake_data_file VALUES "
        "(?, ?, ?, NULL, NULL, ?, ?, 'parquet', ?, ?, ?, ?, ?, NULL, ?, NULL)",
        file_id, number, begin, path, relative, file.record_count, file.size_bytes,
        file.footer_bytes, row_id_start, partition, mapping,
    )  # fmt: skip
    for stats in file.stats:
        draft.run(
            "INSERT INTO ducklake_file_column_stats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            file_id, number, stats.column_id, stats.size_bytes, stats.value_count,
            stats.null_count, stats.min, stats.max, stats.contains_nan,
        )  # fmt: skip
    for index, value in enumerate(values or ()):
        draft.run(
            "INSERT INTO ducklake_file_partition_value VALUES (?, ?, ?, ?)",
            file_id, number, index, value,
        )  # fmt: skip


def _replace_file(
    draft: Draft,
    table: TableInfo,
    source: DataFile,
    file: NewFile,
    begin: int,
    row_id_start: int | None,
    partial_max: int | None,
) -> None:
    """Reuse the catalog rows of an old file for its replacement.

    DuckDB asks SQLite for the last row of a table before it starts to read. It would miss a file
    whose row was inserted in between, while the files that it replaces are already gone.
    """
    number, file_id = draft.id_of(table), draft.new_file_id()
    path, relative = relative_to(table.path, file.path)
    mapping = None if file.names is None else _mapping(draft, number, file.names)
    draft.run(
        "UPDATE ducklake_data_file SET data_file_id = ?, begin_snapshot = ?, path = ?, "
        "path_is_relative = ?, record_count = ?, file_size_bytes = ?, footer_size = ?, "
        "row_id_start = ?, mapping_id = ?, partial_max = ? WHERE data_file_id = ?",
        file_id, begin, path, relative, file.record_count, file.size_bytes,
        file.footer_bytes, row_id_start, mapping, partial_max, source.id, rows=1,
    )  # fmt: skip
    for place in ("ducklake_file_column_stats", "ducklake_file_partition_value"):
        draft.run(f"UPDATE {place} SET data_file_id = ? WHERE data_file_id = ?", file_id, source.id)
    for stats in file.stats:
        draft.run(
            "UPDATE ducklake_file_column_stats SET column_size_bytes = ?, value_count = ?, "
            "null_count = ?, min_value = ?, max_value = ?, contains_nan = ?, "
            "extra_stats = NULL WHERE data_file_id = ? AND column_id = ?",
            stats.size_bytes, stats.value_count, stats.null_count, stats.min, stats.max,
            stats.contains_nan, file_id, stats.column_id,
        )  # fmt: skip
        draft.run(
            "INSERT INTO ducklake_file_column_stats SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL "
            "WHERE NOT EXISTS (SELECT 1 FROM ducklake_file_column_stats "
            "WHERE data_file_id = ? AND column_id = ?)",
            file_id, number, stats.column_id, stats.size_bytes, stats.value_count,
            stats.null_count, stats.min, stats.max, stats.contains_nan, file_id,
            stats.column_id,
        )  # fmt: skip
    _schedule(draft, source.id, source.path)


def _mapping(draft: Draft, number: int, names: tuple[NameMap, ...]) -> int:
    mapping = draft.new_file_id()
    draft.run("INSERT INTO ducklake_column_mapping VALUES (?, ?, 'map_by_name')", mapping, number)
    at = 0

    def insert(entry: NameMap, parent: int | None) -> None:
        nonlocal at
        own, at = at, at + 1
        draft.run(
            "INSERT INTO ducklake_name_mapping VALUES (?, ?, ?, ?, ?, ?)",
            mapping, own, entry.source, entry.field_id, parent, False,
        )  # fmt: skip
        for child in entry.children:
            insert(child, own)

    for entry in names:
        insert(entry, None)
    return mapping


def _forget(draft: Draft, file: DataFile) -> None:
    """Remove a file from the catalog at every snapshot, and schedule its deletion."""
    draft.run("DELETE FROM ducklake_data_file WHERE data_file_id = ?", file.id, rows=1)
    draft.run("DELETE FROM ducklake_file_column_stats WHERE data_file_id = ?", file.id)
    draft.run("DELETE FROM ducklake_file_partition_value WHERE data_file_id = ?", file.id)
    _schedule(draft, file.id, file.path)


def _schedule(draft: Draft, file_id: int, whole: str) -> None:
    path, relative = relative_to(draft.state.data_path, whole)
    draft.run(
        "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (?, ?, ?, ?)",
        file_id, path, relative, draft.time_text,
    )  # fmt: skip
