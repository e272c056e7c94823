"""What the lake holds: snapshots, tables, columns and files. Reads the catalog: off the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.protocol.errors import RelationNotFound
from penstock.protocol.lake_answers import (
    LakeColumn,
    LakeFile,
    LakeFiles,
    LakeSnapshot,
    LakeSnapshots,
    LakeState,
    LakeTable,
    LakeTables,
)

if TYPE_CHECKING:
    from penstock.lake.model import DataFile, Snapshot, TableInfo, TableVersion
    from penstock.tables.warehouse import Warehouse

FILES_MAX: Final = 1_000
_CHANGED: Final = {
    "inserted_into_table": "rows into",
    "inlined_insert": "rows into",
    "deleted_from_table": "rows out of",
    "inlined_delete": "rows out of",
    "inline_flush": "rows of the catalog into files of",
    "compacted_table": "fewer files of",
    "merge_adjacent": "fewer files of",
    "rewrite_delete": "fewer files of",
    "created_table": "made",
    "created_schema": "made the schema",
    "dropped_table": "dropped",
    "altered_table": "other columns of",
}
"""The kinds of change of a snapshot, in words."""


def lake_state(warehouse: Warehouse) -> LakeState:
    """The newest snapshot, and what it holds."""
    lake, tables = warehouse.lake, lake_tables(warehouse)
    newest, count = lake.latest(), len(lake.snapshots())
    return LakeState(
        kind=lake.database.kind,
        data_path=lake.data_path,
        snapshot=newest.id,
        snapshot_at=_ms(newest),
        snapshots=count,
        tables=len(tables.tables),
        files=sum(table.files for table in tables.tables),
        bytes=sum(table.bytes for table in tables.tables),
        rows=sum(table.rows for table in tables.tables),
        command=open_command(warehouse, newest.id),
    )


def lake_snapshots(warehouse: Warehouse, limit: int, before: int | None) -> LakeSnapshots:
    """Snapshots, the newest first."""
    known = warehouse.lake.snapshots()[::-1]
    found = [each for each in known if before is None or each.id < before]
    page = found[:limit]
    names = table_names(warehouse.lake.tables())
    return LakeSnapshots(
        snapshots=[
            LakeSnapshot(
                snapshot=each.id, at=_ms(each), schema_version=each.schema_version,
                changes=each.changes, text=changes_text(each.changes, names), author=each.author,
                message=each.message,
            )
            for each in page
        ],
        total=len(known),
        next_before=page[-1].id if len(found) > limit else None,
    )  # fmt: skip


def table_names(tables: Iterable[TableInfo]) -> dict[int, str]:
    """What the tables of the lake are called, by their ids."""
    from penstock.tables.query.names import relation_name

    return {table.id: relation_name([table.schema.name, table.name]) for table in tables}


def changes_text(changes: str | None, names: Mapping[int, str]) -> str:
    """What a snapshot changed, in words; a table that is gone has its number.

    >>> changes_text("inserted_into_table:2,inserted_into_table:3,inlined_delete:4", {2: "a"})
    'rows into a, table 3; rows out of table 4'
    >>> changes_text('created_table:"main"."a,b"', {})
    'made a,b'
    """
    from penstock.lake.changes import parse

    told: dict[str, list[str]] = {}
    for kind, values in parse(changes).made.items():
        words = told.setdefault(_CHANGED.get(kind, kind.replace("_", " ")), [])
        for value in sorted(values, key=str):
            words.append(
                names.get(value, f"table {value}") if isinstance(value, int) else value[-1]
            )
    return "; ".join(f"{verb} {', '.join(words)}" for verb, words in told.items())


def lake_tables(warehouse: Warehouse, at: int | None = None) -> LakeTables:
    """The tables of a snapshot, by name."""
    snapshot = warehouse.lake.snapshot(at)
    refreshed = set(warehouse.definitions().graph.tables)
    found = [
        _table(name, warehouse.lake.table_at(full, snapshot.id), name in refreshed)
        for name, full in sorted(warehouse.lake_names(snapshot.id).items())
    ]
    return LakeTables(snapshot=snapshot.id, tables=found)


def lake_table(warehouse: Warehouse, name: str, at: int | None = None) -> LakeTable:
    """One table at a snapshot."""
    plain, version = _version(warehouse, name, at)
    return _table(plain, version, plain in warehouse.definitions().graph.tables)


def lake_files(warehouse: Warehouse, name: str, at: int | None = None) -> LakeFiles:
    """The data files of a table at a snapshot, the newest first."""
    plain, version = _version(warehouse, name, at)
    base = warehouse.lake.data_path
    files = sorted(version.files, key=lambda file: -file.begin)
    return LakeFiles(
        table=plain,
        snapshot=version.snapshot.id,
        files=[
            LakeFile(
                path=file.path.removeprefix(base), rows=file.record_count,
                deleted=_deleted(file, version.snapshot.id), bytes=file.size_bytes,
                since=file.begin,
            )
            for file in files[:FILES_MAX]
        ],
        total=len(files),
        inlined_rows=version.inlined.rows.num_rows,
    )  # fmt: skip


def open_command(warehouse: Warehouse, snapshot: int) -> str:
    """A command that opens a snapshot in DuckDB; words of PostgreSQL are left to fill in."""
    database = warehouse.lake.database
    path = getattr(database, "path", None)
    place = f"sqlite:{path}" if path else f"{database.kind}:…"
    return f"duckdb -cmd \"ATTACH 'ducklake:{place}' AS lake (SNAPSHOT_VERSION {snapshot})\""


def _version(warehouse: Warehouse, name: str, at: int | None) -> tuple[str, TableVersion]:
    from penstock.tables.query.names import relation_name

    snapshot = warehouse.lake.snapshot(at)
    plain = relation_name(name.split("."))
    full = warehouse.lake_names(snapshot.id).get(plain)
    if full is None:
        raise RelationNotFound(f"the lake has no table {plain!r} at snapshot {snapshot.id}")
    return plain, warehouse.lake.table_at(full, snapshot.id)


def _table(name: str, version: TableVersion, refreshed: bool) -> LakeTable:
    deleted = sum(_deleted(file, version.snapshot.id) for file in version.files)
    rows = sum(file.record_count for file in version.files) - deleted
    return LakeTable(
        name=name,
        columns=[
            LakeColumn(name=column.name, type=column.type, nullable=column.nulls_allowed)
            for column in version.table.columns
        ],
        rows=rows + version.inlined.rows.num_rows,
        files=len(version.files),
        bytes=sum(file.size_bytes for file in version.files),
        refreshed=refreshed,
        comment=version.table.comment,
        snapshot=version.snapshot.id,
    )


def _deleted(file: DataFile, at: int) -> int:
    """How many rows of a file were deleted by a snapshot, as its delete files count them."""
    in_files = sum(
        each.count
        for each in file.deletes
        if each.begin <= at and (each.end is None or each.end > at)
    )
    return in_files + sum(deleted <= at for _, deleted in file.inlined_deletes)


def _ms(snapshot: Snapshot) -> int:
    return int(snapshot.time.timestamp() * 1_000)
