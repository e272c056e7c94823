"""Queries on the catalog: snapshots, schemas, tables, files, and inlined rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from penstock.kernel.errors import Corrupt, Gone, Rejected
from penstock.lake.columns import Column, arrow_type, is_held, plain_type
from penstock.lake.database import Database, Row, fetch, moment_text, read_time
from penstock.lake.ddl import quoted
from penstock.lake.model import (
    DataFile,
    DeleteFile,
    InlinedRows,
    NameMap,
    SchemaInfo,
    Snapshot,
    TableInfo,
    ViewInfo,
    resolve,
)
from penstock.lake.values import read_default, read_value

_ALIVE: Final = "? >= {0}begin_snapshot AND ({0}end_snapshot IS NULL OR ? < {0}end_snapshot)"
_SPAN: Final = (
    "f.table_id = ? AND f.begin_snapshot <= ? AND (f.end_snapshot IS NULL OR f.end_snapshot > ?)"
)
_SNAPSHOT: Final = (
    "SELECT s.snapshot_id, s.snapshot_time, s.schema_version, s.next_catalog_id, s.next_file_id, "
    "c.changes_made, c.author, c.commit_message FROM ducklake_snapshot s "
    "LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = s.snapshot_id "
)


class KnownTables:
    """Cache of table lookups for the most recent schema versions.

    Every change to a schema, table or column creates a new version, so entries for a version never
    become stale. Thread-safe.
    """

    VERSIONS_MAX: Final = 4

    def __init__(self) -> None:
        self._versions: dict[int, dict[str, TableInfo]] = {}

    def get(self, version: int, name: str) -> TableInfo | None:
        """A table by name, spelled as in `put`."""
        return self._versions.get(version, {}).get(name)

    def put(self, version: int, name: str, table: TableInfo) -> None:
        """Cache a table; evicts the oldest version when there are too many."""
        self._versions.setdefault(version, {})[name] = table
        while len(self._versions) > self.VERSIONS_MAX:
            self._versions.pop(min(self._versions), None)


@dataclass(frozen=True, slots=True)
class Reader:
    """One consistent view of the catalog."""

    database: Database
    cursor: Any
    data_path: str
    known: KnownTables = field(default_factory=KnownTables)

    def rows(self, sql: str, *parameters: Any) -> list[Row]:
        """The rows of a query."""
        return fetch(self.database, self.cursor, sql, parameters)

    # snapshots

    def latest(self) -> Snapshot:
        """The newest snapshot."""
        found = self.rows(_SNAPSHOT + "ORDER BY s.snapshot_id DESC LIMIT 1")
        if not found:
            raise Corrupt("the catalog has no snapshot")
        return _snapshot(found[0])

    def snapshot(self, number: int) -> Snapshot:
        """One snapshot by its id."""
        found = self.rows(_SNAPSHOT + "WHERE s.snapshot_id = ?", number)
        if found:
            return _snapshot(found[0])
        latest = self.latest()
        if number > latest.id or number < 0:
            raise Rejected(f"there is no snapshot {number}: the newest is {latest.id}")
        raise Gone(f"snapshot {number} has expired", snapshot=number)

    def snapshot_at(self, moment: datetime) -> Snapshot:
        """The newest snapshot at a given time."""
        found = self.rows(
            _SNAPSHOT + "WHERE s.snapshot_time <= ? ORDER BY s.snapshot_id DESC LIMIT 1",
            moment_text(moment),
        )
        if found:
            return _snapshot(found[0])
        raise Gone(f"snapshots of {moment.isoformat()} and before have expired")

    def snapshots(self) -> list[Snapshot]:
        """All retained snapshots, oldest first."""
        return [_snapshot(row) for row in self.rows(_SNAPSHOT + "ORDER BY s.snapshot_id")]

    def snapshots_before(self, moment: datetime, most: int) -> list[int]:
        """The ids of the oldest snapshots before a time; never includes the newest snapshot."""
        found = self.rows(
            "SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_time < ? AND snapshot_id < "
            "(SELECT max(snapshot_id) FROM ducklake_snapshot) ORDER BY snapshot_id LIMIT ?",
            moment_text(moment), most,
        )  # fmt: skip
        return [number for (number,) in found]

    # schemas, tables, views

    def changes_after(self, after: int, until: int | None = None) -> list[Row]:
        """Snapshot ids and the text of each one's changes, in order."""
        end = "" if until is None else f" AND snapshot_id <= {int(until)}"
        return self.rows(
            "SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes "
            f"WHERE snapshot_id > ?{end} ORDER BY snapshot_id",
            after,
        )

    def oldest_changes(self) -> int:
        """The oldest snapshot whose changes have not expired."""
        ((oldest,),) = self.rows("SELECT min(snapshot_id) FROM ducklake_snapshot_changes")
        return oldest or 0

    def created_in(self, table_id: int) -> int | None:
        """The snapshot that created a table."""
        return self._one(
            "SELECT min(begin_snapshot) FROM ducklake_table WHERE table_id = ?", table_id
        )

    def last_defined_in(self, table_id: int) -> int | None:
        """The snapshot that created or last renamed a table."""
        return self._one(
            "SELECT max(begin_snapshot) FROM ducklake_table WHERE table_id = ?", table_id
        )

    def last_filled_in(self, table_id: int) -> int | None:
        """The newest snapshot that added a file to a table."""
        sql = "SELECT max(begin_snapshot) FROM ducklake_data_file WHERE table_id = ?"
        return self._one(sql, table_id)

    def tables_of_many_files(self, files_min: int) -> set[int]:
        """The ids of tables that currently have at least `files_min` files."""
        found = self.rows(
            "SELECT table_id FROM ducklake_data_file WHERE end_snapshot IS NULL "
            "GROUP BY table_id HAVING count(*) >= ?",
            files_min,
        )
        return {number for (number,) in found}

    def tables_of_worn_files(self, rows_min: int, share: float) -> set[int]:
        """The ids of tables with a large file of which delete files remove a share of the rows."""
        found = self.rows(
            "SELECT DISTINCT f.table_id FROM ducklake_data_file f JOIN ducklake_delete_file d "
            "ON d.data_file_id = f.data_file_id AND d.end_snapshot IS NULL "
            "WHERE f.end_snapshot IS NULL AND f.record_count >= ? "
            "AND d.delete_count >= f.record_count * ?",
            rows_min, share,
        )  # fmt: skip
        return {number for (number,) in found}

    def _one(self, sql: str, *parameters: Any) -> int | None:
        ((found,),) = self.rows(sql, *parameters)
        return None if found is None else int(found)

    def schemas(self, at: int) -> dict[int, SchemaInfo]:
        """The schemas of a snapshot, by id."""
        found = self.rows(
            "SELECT schema_id, schema_name, path, path_is_relative FROM ducklake_schema "
            f"WHERE {_alive()} ORDER BY schema_id",
            at, at,
        )  # fmt: skip
        return {
            number: SchemaInfo(number, name, resolve(self.data_path, path or "", bool(relative)))
            for number, name, path, relative in found
        }

    def tables(
        self, at: int, *, name: tuple[str, str] | None = None, number: int | None = None
    ) -> list[TableInfo]:
        """The tables of a snapshot, with their columns: all of them, or one by name or id."""
        schemas = self.schemas(at)
        condition = _alive()
        more: list[int | str] = [at, at]
        if number is not None:
            condition, more = f"table_id = ? AND {condition}", [number, *more]
        elif name is not None:
            wanted = [i for i, s in schemas.items() if s.name.lower() == name[0].lower()]
            condition = f"schema_id = ? AND lower(table_name) = ? AND {condition}"
            more = [wanted[0] if wanted else -1, name[1].lower(), *more]
        found = self.rows(
            "SELECT table_id, table_uuid, schema_id, table_name, path, path_is_relative "
            f"FROM ducklake_table WHERE {condition} ORDER BY table_id",
            *more,
        )
        columns = self.columns(at, [row[0] for row in found])
        partitions = self._partitions(at)
        comments = self._comments(at)
        used = self._column_ids_used([row[0] for row in found])
        return [
            TableInfo(
                number, str(uuid), schemas[schema_id], name_,
                resolve(schemas[schema_id].path, path or "", bool(relative)),
                tuple(column for column in columns.get(number, ()) if is_held(column)),
                comments.get(number), partitions.get(number), used.get(number, 0),
                tuple(column for column in columns.get(number, ()) if not is_held(column)),
            )
            for number, uuid, schema_id, name_, path, relative in found
        ]  # fmt: skip

    def table(self, name: str, at: Snapshot) -> TableInfo:
        """One table, as `table` (in `main`) or `schema.table`."""
        known = self.known.get(at.schema_version, name)
        if known is not None:
            return known
        schema, _, bare = name.rpartition(".")
        found = self.tables(at.id, name=(schema or "main", bare))
        if not found:
            raise Rejected(f"there is no table {name!r} in snapshot {at.id}", table=name)
        self.known.put(at.schema_version, name, found[0])
        return found[0]

    def views(self, at: int) -> list[ViewInfo]:
        """The views of a snapshot."""
        schemas = self.schemas(at)
        found = self.rows(
            "SELECT view_id, schema_id, view_name, dialect, sql FROM ducklake_view "
            f"WHERE {_alive()} ORDER BY view_id",
            at, at,
        )  # fmt: skip
        return [ViewInfo(row[0], schemas[row[1]], *row[2:]) for row in found]

    def columns(self, at: int, tables: Sequence[int]) -> dict[int, tuple[Column, ...]]:
        """The columns of tables at a snapshot, as trees."""
        if not tables:
            return {}
        marks = ", ".join("?" * len(tables))
        found = self.rows(
            "SELECT table_id, column_id, column_name, column_type, nulls_allowed, parent_column, "
            "initial_default, default_value, default_value_type FROM ducklake_column "
            f"WHERE table_id IN ({marks}) AND {_alive()} "
            "ORDER BY table_id, column_order, column_id",
            *tables, at, at,
        )  # fmt: skip
        below: dict[tuple[int, int | None], list[Row]] = defaultdict(list)
        for row in found:
            below[row[0], row[5]].append(row)
        return {table: _nest(below, table, None) for table in tables}

    def _partitions(self, at: int) -> dict[int, int]:
        found = self.rows(
            f"SELECT table_id, partition_id FROM ducklake_partition_info WHERE {_alive()}", at, at
        )
        return {table: number for table, number in found if number is not None}

    def _comments(self, at: int) -> dict[int, str]:
        found = self.rows(
            f"SELECT object_id, value FROM ducklake_tag WHERE key = 'comment' AND {_alive()}",
            at,
            at,
        )
        return {number: text for number, text in found if text is not None}

    def _column_ids_used(self, tables: Sequence[int]) -> dict[int, int]:
        if not tables:
            return {}
        marks = ", ".join("?" * len(tables))
        found = self.rows(
            f"SELECT table_id, max(column_id) FROM ducklake_column WHERE table_id IN ({marks}) "
            "GROUP BY table_id",
            *tables,
        )
        return {table: int(number) for table, number in found}

    # files

    def files(self, table: TableInfo, *, begun_by: int, not_ended_by: int) -> list[DataFile]:
        """Files begun at or before one snapshot and not yet ended at the other."""
        span = (table.id, begun_by, not_ended_by)
        found = self.rows(
            "SELECT data_file_id, path, path_is_relative, record_count, file_size_bytes, "
            "footer_size, begin_snapshot, end_snapshot, row_id_start, partial_max, mapping_id, "
            f"partition_id FROM ducklake_data_file f WHERE {_SPAN} ORDER BY data_file_id",
            *span,
        )
        deletes = self._delete_files(table, span)
        inlined = self._inlined_deletes(table, span)
        values = self._partition_values(table) if any(row[11] is not None for row in found) else {}
        return [
            DataFile(
                id=row[0],
                path=resolve(table.path, row[1], bool(row[2])),
                record_count=row[3],
                size_bytes=row[4],
                footer_bytes=row[5],
                begin=row[6],
                end=row[7],
                row_id_start=row[8],
                partial_max=row[9],
                mapping_id=row[10],
                partition_id=row[11],
                partition=values.get(row[0]),
                deletes=tuple(deletes.get(row[0], ())),
                inlined_deletes=tuple(inlined.get(row[0], ())),
            )
            for row in found
        ]

    def _delete_files(self, table: TableInfo, span: Row) -> dict[int, list[DeleteFile]]:
        found = self.rows(
            "SELECT d.delete_file_id, d.data_file_id, d.path, d.path_is_relative, d.delete_count, "
            "d.begin_snapshot, d.end_snapshot, d.partial_max FROM ducklake_delete_file d "
            f"JOIN ducklake_data_file f ON f.data_file_id = d.data_file_id WHERE {_SPAN} "
            "ORDER BY d.begin_snapshot, d.delete_file_id",
            *span,
        )
        made: dict[int, list[DeleteFile]] = defaultdict(list)
        for number, data, path, relative, count, begin, end, partial in found:
            whole = resolve(table.path, path, bool(relative))
            made[data].append(DeleteFile(number, data, whole, count, begin, end, partial))
        return made

    def _inlined_deletes(self, table: TableInfo, span: Row) -> dict[int, list[tuple[int, int]]]:
        name = f"ducklake_inlined_delete_{table.id}"
        made: dict[int, list[tuple[int, int]]] = defaultdict(list)
        if name in self.database.tables(self.cursor):
            rows = self.rows(
                f"SELECT d.file_id, d.row_id, d.begin_snapshot FROM {name} d "
                f"JOIN ducklake_data_file f ON f.data_file_id = d.file_id WHERE {_SPAN}",
                *span,
            )
            for file_id, position, begin in rows:
                made[file_id].append((int(position), int(begin)))
        return made

    def _partition_values(self, table: TableInfo) -> dict[int, tuple[str | None, ...]]:
        found = self.rows(
            "SELECT data_file_id, partition_value FROM ducklake_file_partition_value "
            "WHERE table_id = ? ORDER BY data_file_id, partition_key_index",
            table.id,
        )
        made: dict[int, list[str | None]] = defaultdict(list)
        for file_id, value in found:
            made[file_id].append(value)
        return {file_id: tuple(values) for file_id, values in made.items()}

    def mappings(self, files: Iterable[DataFile]) -> dict[int, tuple[NameMap, ...]]:
        """The name mappings that files need."""
        wanted = sorted({file.mapping_id for file in files if file.mapping_id is not None})
        made = {}
        for mapping in wanted:
            found = self.rows(
                "SELECT column_id, source_name, target_field_id, parent_column "
                "FROM ducklake_name_mapping WHERE mapping_id = ? ORDER BY column_id",
                mapping,
            )
            below: dict[int | None, list[Row]] = defaultdict(list)
            for row in found:
                below[row[3]].append(row)
            made[mapping] = _name_maps(below, None)
        return made

    # rows inside the catalog

    def inlined_tables(self, table_id: int) -> list[tuple[str, int]]:
        """The catalog tables that store a table's inlined rows, with the schema version of each."""
        found = self.rows(
            "SELECT table_name, schema_version FROM ducklake_inlined_data_tables "
            "WHERE table_id = ? ORDER BY schema_version",
            table_id,
        )
        present = self.database.tables(self.cursor) if found else set()
        return [(name, version) for name, version in found if name in present]

    def inlined(self, table: TableInfo, *, begun_by: int, not_ended_by: int) -> InlinedRows:
        """Inlined rows begun at or before one snapshot and not yet ended at the other."""
        pieces: list[pa.Table] = []
        facts: list[Row] = []
        for name, version in self.inlined_tables(table.id):
            held = self._columns_of_version(table, version)
            found = self._inlined_rows(name, held, begun_by, not_ended_by)
            if found:
                facts += [row[:3] for row in found]
                pieces.append(_inlined_table(table, held, found))
        empty = pa.Table.from_batches([], schema=table.arrow_schema)
        return InlinedRows(
            pa.concat_tables([empty, *pieces]),
            tuple(row[0] for row in facts),
            tuple(row[1] for row in facts),
            tuple(row[2] for row in facts),
        )

    def _inlined_rows(
        self, name: str, held: Sequence[Column], begun_by: int, not_ended_by: int
    ) -> list[Row]:
        words = ["row_id", "begin_snapshot", "end_snapshot", *(quoted(c.name) for c in held)]
        return self.rows(
            f"SELECT {', '.join(words)} FROM {name} WHERE begin_snapshot <= ? "
            "AND (end_snapshot IS NULL OR end_snapshot > ?) ORDER BY row_id, begin_snapshot",
            begun_by, not_ended_by,
        )  # fmt: skip

    def _columns_of_version(self, table: TableInfo, version: int) -> tuple[Column, ...]:
        """The columns of the table when that schema version began."""
        found = self.rows(
            "SELECT max(begin_snapshot) FROM ducklake_schema_versions "
            "WHERE table_id = ? AND schema_version <= ?",
            table.id, version,
        )  # fmt: skip
        begin = found[0][0]
        columns = () if begin is None else self.columns(begin, [table.id])[table.id]
        return tuple(column for column in columns if is_held(column)) or table.columns


def _snapshot(row: Row) -> Snapshot:
    number, time, version, catalog, file, changes, author, message = row
    return Snapshot(number, read_time(time), version, catalog, file, changes, author, message)


def _alive(prefix: str = "") -> str:
    return _ALIVE.format(prefix)


def _nest(
    below: dict[tuple[int, int | None], list[Row]], table: int, parent: int | None
) -> tuple[Column, ...]:
    return tuple(
        Column(
            id=row[1],
            name=row[2],
            type=row[3],
            nulls_allowed=bool(row[4]),
            children=_nest(below, table, row[1]),
            initial_default=row[6],
            default=None if row[7] == "NULL" and row[8] != "expression" else row[7],
            default_type=row[8] if row[8] is not None else "literal",
        )
        for row in below.get((table, parent), ())
    )


def _name_maps(below: dict[int | None, list[Row]], parent: int | None) -> tuple[NameMap, ...]:
    return tuple(
        NameMap(row[1], row[2], _name_maps(below, row[0])) for row in below.get(parent, ())
    )


def _inlined_table(table: TableInfo, held: Sequence[Column], found: list[Row]) -> pa.Table:
    """Convert rows from an older schema of the table to its current one."""
    places = {column.id: (at, column) for at, column in enumerate(held, start=3)}
    arrays = []
    for column in table.columns:
        at, old = places.get(column.id, (None, column))
        if at is None:
            values = [read_default(column)] * len(found)
        else:
            values = [_moved(old, column, read_value(old, row[at])) for row in found]
        kind = plain_type(arrow_type(column))
        arrays.append(_array(values, kind))
    return pa.Table.from_arrays(arrays, schema=table.arrow_schema)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def _moved(old: Column, new: Column, value: Any) -> Any:
    """A nested value, adapted to fields renamed, added or dropped since."""
    if value is None or not new.is_nested or old == new:
        return value
    if new.type == "struct":
        fields = {child.id: child for child in old.children}
        return {
            child.name: _moved(fields[child.id], child, value.get(fields[child.id].name))
            if child.id in fields
            else read_default(child)
            for child in new.children
        }
    if new.type == "list":
        return [_moved(old.children[0], new.children[0], item) for item in value]
    return [(key, _moved(old.children[1], new.children[1], item)) for key, item in value]
