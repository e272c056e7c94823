"""Compaction: merge small files and drop deleted rows from files, without changing any row.

Which files are worth it is a question of the policy alone, answered by `to_merge` and `to_rewrite`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.kernel.errors import Rejected
from penstock.lake.columns import Column
from penstock.lake.model import DataFile, NewFile, TableInfo, TableVersion
from penstock.lake.parquet import write_file
from penstock.lake.scan import Mappings, file_history, read_rows
from penstock.lake.selection import FileRows, live
from penstock.lake.transaction import LakeTransaction, MergeFiles, RewriteFiles

if TYPE_CHECKING:
    from penstock.lake.catalog import Catalog


Begin = Callable[[TableVersion], LakeTransaction]
MEBIBYTE: Final = 1 << 20


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

    def begin(version: TableVersion) -> LakeTransaction:
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
    # Only these lost rows; the others are not opened, however many and large they are.
    touched = [file for file in version.files if file.deletes or file.inlined_deletes]
    stories = {file.id: file_history(catalog.storage, file) for file in touched}
    candidates = [
        Candidate(file, file.record_count - live(stories[file.id], at).count, None)
        for file in touched
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
        raise ValueError("a merged file has no row ids")
    return values if rows.positions is None else values[rows.positions]


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When files are worth rewriting.

    Files below `small_bytes` are merged up to `target_bytes`, at least `files_min` at a time and
    at most `files_max` in one commit, which holds up other writers the longer the more they are;
    those below `least_bytes` are left to another policy. A file that lost `deleted_share_min` of
    its rows is rewritten without them.
    """

    target_bytes: int = 128 * MEBIBYTE
    small_bytes: int = 32 * MEBIBYTE
    files_min: int = 4
    deleted_share_min: float = 0.25
    files_max: int = 10_000
    least_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.least_bytes < self.small_bytes <= self.target_bytes:
            raise Rejected(
                f"expected small_bytes above {self.least_bytes} and at most {self.target_bytes}, "
                f"found {self.small_bytes}"
            )
        if not 2 <= self.files_min <= self.files_max:
            raise Rejected(
                f"expected to merge at least 2 and at most {self.files_max} files, "
                f"found {self.files_min}"
            )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live file, the number of its deleted rows, and its column shape.

    `shape` is the first snapshot of the schema version that all its rows belong to, or None if they
    belong to several.
    """

    file: DataFile
    deleted: int
    shape: int | None


def to_rewrite(candidates: Iterable[Candidate], policy: CompactionPolicy) -> list[list[DataFile]]:
    """Groups of files to rewrite without their deleted rows, each group as one file."""
    worn = [
        candidate
        for candidate in candidates
        if candidate.deleted
        and candidate.deleted >= policy.deleted_share_min * candidate.file.record_count
    ]
    groups: dict[object, list[DataFile]] = defaultdict(list)
    for candidate in worn:
        groups[candidate.file.partition_id, candidate.file.partition].append(candidate.file)
    return [pack for files in groups.values() for pack in _packs(files, policy.target_bytes)]


def to_merge(candidates: Iterable[Candidate], policy: CompactionPolicy) -> list[list[DataFile]]:
    """Groups of small files without deletes, of one shape and partition, oldest first."""
    groups: dict[object, list[DataFile]] = defaultdict(list)
    for candidate in candidates:
        file = candidate.file
        untouched = not file.deletes and not file.inlined_deletes
        is_small = policy.least_bytes <= file.size_bytes < policy.small_bytes
        if untouched and candidate.shape is not None and is_small:
            groups[candidate.shape, file.partition_id, file.partition].append(file)
    packs = [pack for files in groups.values() for pack in _packs(files, policy.target_bytes)]
    left, chosen = policy.files_max, []
    for pack in packs:
        if len(pack) >= policy.files_min and left >= policy.files_min:
            chosen.append(pack[:left])
            left -= len(chosen[-1])
    return chosen


def shape_of(file: DataFile, versions: Sequence[int]) -> int | None:
    """The schema version (its first snapshot) in which all rows of a file were written."""
    last = file.partial_max or file.begin
    before = [begin for begin in versions if begin <= file.begin]
    if not before or any(file.begin < begin <= last for begin in versions):
        return None
    return max(before)


def _packs(files: Iterable[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    pack: list[DataFile] = []
    size = 0
    for file in sorted(files, key=lambda file: (file.begin, file.id)):
        if pack and size + file.size_bytes > target_bytes:
            yield pack
            pack, size = [], 0
        pack.append(file)
        size += file.size_bytes
    if pack:
        yield pack
