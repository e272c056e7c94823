"""Changes between two snapshots, ready to read: files with positions, and inlined rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.lake.model import TableInfo, TableVersion
from penstock.lake.scan import Mappings, file_history, read_rows
from penstock.lake.selection import FileRows, is_moved, net_changes
from penstock.lake.storage import Storage


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The net inserts and deletes of a table after one snapshot, up to and including another.

    Rows have the columns that the table has at `until`. An update is a delete and an insert. A row
    inserted and deleted within the range is neither.
    """

    table: TableInfo
    after: int
    until: int
    inserted: tuple[FileRows, ...]
    deleted: tuple[FileRows, ...]
    inlined_inserted: pa.Table
    inlined_deleted: pa.Table
    mappings: Mappings

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return self.count == 0

    @property
    def count(self) -> int:
        """The number of changed rows."""
        files = sum(rows.count for rows in (*self.inserted, *self.deleted))
        return files + len(self.inlined_inserted) + len(self.inlined_deleted)

    def read_inserted(self, storage: Storage) -> pa.Table:
        """The inserted rows."""
        return self._read(storage, self.inserted, self.inlined_inserted)

    def read_deleted(self, storage: Storage) -> pa.Table:
        """The deleted rows."""
        return self._read(storage, self.deleted, self.inlined_deleted)

    def _read(self, storage: Storage, files: Iterable[FileRows], inlined: pa.Table) -> pa.Table:
        pieces = [read_rows(storage, f, self.table.columns, self.mappings) for f in files]
        return pa.concat_tables([inlined, *pieces])


def change_range(
    storage: Storage, version: TableVersion, after: int, rewrites: list[int]
) -> ChangeRange:
    """The changes after a snapshot; `version` must include every file since then."""
    until = version.snapshot.id
    moves = frozenset(rewrites)
    stories = []
    for file in version.files:
        if _is_untouched(file.begin, file.end, file.partial_max, after, until) and not (
            file.deletes or file.inlined_deletes
        ):
            continue
        stories.append(file_history(storage, file, with_row_ids=is_moved(file, moves)))
    inserted, deleted = net_changes(stories, after, until, moves)
    facts = version.inlined
    came, went = [], []
    for place, (begin, end) in enumerate(zip(facts.begins, facts.ends, strict=True)):
        if after < begin <= until and (end is None or end > until):
            came.append(place)
        elif begin <= after and end is not None and after < end <= until:
            went.append(place)
    return ChangeRange(
        version.table, after, until, tuple(inserted), tuple(deleted),
        facts.rows.take(pa.array(came, pa.int64())), facts.rows.take(pa.array(went, pa.int64())),
        version.mappings,
    )  # fmt: skip


def _is_untouched(
    begin: int, end: int | None, partial_max: int | None, after: int, until: int
) -> bool:
    """Whether all rows of a file predate the range and the file did not end within it."""
    return (partial_max or begin) <= after and (end is None or end > until)
