"""An earlier member's result as later members read it: a version without a snapshot yet.

The commit will create a snapshot after the one that inputs were read at; here it is numbered as the
next one. Its final number does not matter to readers of these values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from penstock.kernel.errors import Gone
from penstock.lake.catalog import Catalog
from penstock.lake.changes import parse_all
from penstock.lake.model import DataFile, InlinedRows, NameMap, NewFile, Snapshot, TableVersion
from penstock.lake.ranges import ChangeRange, change_range
from penstock.tables.engine import Made, SourceRecreated


def pending_version(current: TableVersion | None, made: Made, base: Snapshot) -> TableVersion:
    """A table as it will be after its result is committed."""
    snapshot = replace(base, id=base.id + 1)
    if current is not None and not made.changed:
        return replace(current, snapshot=snapshot)
    files, mappings = _new_files(made.files, snapshot.id)
    if current is None or made.replace or current.table.id != made.table.id:
        empty = InlinedRows(made.table.arrow_schema.empty_table())
        return TableVersion(made.table, snapshot, tuple(files), empty, mappings)
    kept = [file for file in _ended(current.files, made, snapshot.id) if file.end is None]
    return TableVersion(
        made.table,
        snapshot,
        (*kept, *files),
        _left(_ended_inlined(current.inlined, made, snapshot.id)),
        {**current.mappings, **mappings},
    )


def pending_changes(lake: Catalog, after: int, made: Made, base: Snapshot) -> ChangeRange:
    """A table's inserts and deletes since a snapshot, including its uncommitted result."""
    if made.table.id < 0:
        raise SourceRecreated(f"expected the {made.table.name} of before, found it made anew")
    until = base.id + 1
    with lake.look() as reader:
        texts = reader.changes_after(after, base.id)
        if len(texts) < base.id - after:
            raise Gone(f"expected every snapshot from {after + 1} to {base.id}, found some expired")
        kinds = ("rewrite_delete", "compacted_table")
        rewrites = [n for n, text in texts if made.table.id in parse_all([text]).ids(*kinds)]
        files = reader.files(made.table, begun_by=base.id, not_ended_by=after)
        inlined = reader.inlined(made.table, begun_by=base.id, not_ended_by=after)
        known = reader.mappings(files)
    new, mappings = _new_files(made.files, until)
    version = TableVersion(
        made.table,
        replace(base, id=until),
        (*_ended(files, made, until), *new),
        _ended_inlined(inlined, made, until),
        {**known, **mappings},
    )
    return change_range(lake.storage, version, after, rewrites)


def _new_files(
    files: Iterable[NewFile], snapshot: int
) -> tuple[list[DataFile], dict[int, tuple[NameMap, ...]]]:
    """New files, under negative ids."""
    found, mappings = [], {}
    for number, file in enumerate(files):
        if not file.record_count:
            continue
        number_below = -1 - number
        if file.names is not None:
            mappings[number_below] = file.names
        found.append(
            DataFile(
                id=number_below,
                path=file.path,
                record_count=file.record_count,
                size_bytes=file.size_bytes,
                footer_bytes=file.footer_bytes,
                begin=snapshot,
                row_id_start=None if file.has_row_ids else 0,
                mapping_id=number_below if file.names is not None else None,
            )
        )
    return found, mappings


def _ended(files: Iterable[DataFile], made: Made, snapshot: int) -> list[DataFile]:
    """Files with the new deletes applied."""
    if not made.changed:
        return list(files)
    gone = {entry.file.id: entry.positions for entry in made.deletes if entry.count}
    found = []
    for file in files:
        if file.end is not None or (not made.replace and file.id not in gone):
            found.append(file)
        elif made.replace or (positions := gone[file.id]) is None:
            found.append(replace(file, end=snapshot))
        else:
            more = tuple((int(position), snapshot) for position in positions)
            found.append(replace(file, inlined_deletes=(*file.inlined_deletes, *more)))
    return found


def _ended_inlined(inlined: InlinedRows, made: Made, snapshot: int) -> InlinedRows:
    if not made.changed:
        return inlined
    gone = set(made.inlined_deletes)
    ends = tuple(
        snapshot if end is None and (made.replace or row_id in gone) else end
        for row_id, end in zip(inlined.row_ids, inlined.ends, strict=True)
    )
    return replace(inlined, ends=ends)


def _left(inlined: InlinedRows) -> InlinedRows:
    """The rows not yet deleted; a version contains no others."""
    at = [place for place, end in enumerate(inlined.ends) if end is None]
    return InlinedRows(
        inlined.rows.take(pa.array(at, pa.int64())),
        tuple(inlined.row_ids[place] for place in at),
        tuple(inlined.begins[place] for place in at),
        (None,) * len(at),
    )
