"""Compaction: merge small files and drop deleted rows from files, without changing any row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.lake.columns import Column
from penstock.lake.merging import Candidate, CompactionPolicy, shape_of, to_merge, to_rewrite
from penstock.lake.model import NewFile, TableInfo, TableVersion
from penstock.lake.parquet import write_file
from penstock.lake.scan import Mappings, file_history, read_rows
from penstock.lake.selection import FileRows, live
from penstock.lake.transaction import MergeFiles, RewriteFiles, Transaction

if TYPE_CHECKING:
    from penstock.lake.catalog import Catalog

Begin = Callable[[TableVersion], Transaction]


@dataclass(frozen=True, slots=True)
class CompactResult:
    """What a compaction did."""

    files_rewritten: int = 0
    files_merged: int = 0
    files_written: int = 0
    rows_dropped: int = 0


def compact(
    catalog: Catalog,
    table: str | TableInfo,
    policy: CompactionPolicy,
    *,
    reserve_ms: int = 600_000,
    owner: str = "",
) -> CompactResult:
    """Compact one table. `Conflict` means that another writer changed it; nothing is lost."""

    def begin(version: TableVersion) -> Transaction:
        return catalog.begin(at=version.snapshot, reserve_ms=reserve_ms, owner=owner)

    worn = _rewrite(catalog, table, policy, begin)
    merged = _merge(catalog, table, policy, begin)
    return CompactResult(
        worn.files_rewritten,
        merged.files_merged,
        worn.files_written + merged.files_written,
        worn.rows_dropped,
    )


def _rewrite(
    catalog: Catalog, table: str | TableInfo, policy: CompactionPolicy, begin: Begin
) -> CompactResult:
    version = catalog.table_at(table)
    at = version.snapshot.id
    stories = {file.id: file_history(catalog.storage, file) for file in version.files}
    candidates = [
        Candidate(file, file.record_count - live(stories[file.id], at).count, None)
        for file in version.files
    ]
    groups = to_rewrite(candidates, policy)
    if not groups:
        return CompactResult()
    transaction = begin(version)
    written = dropped = 0
    for files in groups:
        selected = [live(stories[file.id], at) for file in files]
        dropped += sum(f.record_count for f in files) - sum(rows.count for rows in selected)
        file = _write(
            catalog, version.table, version.table.columns, selected, version.mappings,
            transaction.token,
        )  # fmt: skip
        written += file is not None
        transaction.operations.append(RewriteFiles(version.table, tuple(files), file))
    catalog.commit(transaction)
    return CompactResult(sum(map(len, groups)), 0, written, dropped)


def _merge(
    catalog: Catalog, table: str | TableInfo, policy: CompactionPolicy, begin: Begin
) -> CompactResult:
    version = catalog.table_at(table)
    versions = [
        row[0]
        for row in catalog.query(
            "SELECT begin_snapshot FROM ducklake_schema_versions WHERE table_id = ?",
            (version.table.id,),
        )
    ]
    candidates = [Candidate(file, 0, shape_of(file, versions)) for file in version.files]
    groups = to_merge(candidates, policy)
    if not groups:
        return CompactResult()
    transaction = begin(version)
    for files in groups:
        columns = _columns_at(catalog, version.table, shape_of(files[0], versions))
        selected = [FileRows(file) for file in files]
        merged = _write(
            catalog, version.table, columns, selected, version.mappings, transaction.token,
            with_snapshots=True,
        )  # fmt: skip
        if merged is not None:
            transaction.operations.append(MergeFiles(version.table, tuple(files), merged))
    catalog.commit(transaction)
    return CompactResult(0, sum(map(len, groups)), len(groups))


def _columns_at(catalog: Catalog, table: TableInfo, begin: int | None) -> tuple[Column, ...]:
    """The columns of files of a shape, including dropped ones, which older snapshots still need."""
    with catalog.look() as reader:
        return reader.columns(begin or 0, [table.id])[table.id] or table.columns


def _write(
    catalog: Catalog,
    table: TableInfo,
    columns: tuple[Column, ...],
    selected: list[FileRows],
    mappings: Mappings,
    token: str | None,
    *,
    with_snapshots: bool = False,
) -> NewFile | None:
    """Write the selected rows of several files as one file, keeping their row ids."""
    rows = pa.concat_tables([read_rows(catalog.storage, s, columns, mappings) for s in selected])
    if not len(rows):
        return None
    stories = [file_history(catalog.storage, s.file, with_row_ids=True) for s in selected]
    row_ids = np.concatenate([_taken(h.row_ids, s) for h, s in zip(stories, selected, strict=True)])
    snapshots = None
    if with_snapshots:
        snapshots = np.concatenate([story.begins for story in stories])
        snapshots = snapshots if len(np.unique(snapshots)) > 1 else None
    return write_file(
        catalog.storage, table.path, columns, rows,
        token=token, row_ids=row_ids, snapshots=snapshots,
    )  # fmt: skip


def _taken(values: np.ndarray | None, rows: FileRows) -> np.ndarray:
    if values is None:
        raise ValueError("expected row ids, found none")
    return values if rows.positions is None else values[rows.positions]
