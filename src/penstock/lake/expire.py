"""Remove expired snapshots, unreferenced files, and files whose deletion is due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.lake.database import Row, read_time, time_text
from penstock.lake.feed import feed_paths
from penstock.lake.model import relative_to, resolve
from penstock.lake.reader import Reader

if TYPE_CHECKING:
    from penstock.lake.catalog import Catalog

SNAPSHOTS_KEPT_MS: Final = 86_400_000
"""How long snapshots are kept by default, in a lake that Penstock made."""
STEP_SNAPSHOTS: Final = 1_000
"""Maximum snapshots expired in one transaction."""
STEP_FILES: Final = 200
"""Maximum files forgotten in one transaction."""

_OURS: Final = (".parquet", ".crc", "_SUCCESS")
"""Suffixes of files that writers of the lake leave behind; the sweep removes no others."""

_DEAD: Final = (
    "end_snapshot IS NOT NULL AND NOT EXISTS (SELECT 1 FROM ducklake_snapshot s "
    "WHERE s.snapshot_id >= {0}.begin_snapshot AND s.snapshot_id < {0}.end_snapshot)"
)
_BY_FILE: Final = (
    "ducklake_file_column_stats",
    "ducklake_file_partition_value",
    "ducklake_file_variant_stats",
)
_BY_TABLE: Final = (
    "ducklake_table_stats",
    "ducklake_table_column_stats",
    "ducklake_column",
    "ducklake_column_tag",
    "ducklake_partition_info",
    "ducklake_partition_column",
    "ducklake_sort_info",
    "ducklake_sort_expression",
    "ducklake_schema_versions",
    "ducklake_inlined_data_tables",
)


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of an expiry."""

    snapshots: tuple[int, ...]
    files_scheduled: int


def expire(catalog: Catalog, *, older_than: datetime) -> Expired:
    """Remove snapshots older than a time, but never the newest one.

    Files that only they reference are scheduled for deletion (see `clean`); everything visible in a
    retained snapshot stays. The oldest go first, in steps small enough that concurrent commits do
    not wait for long.
    """
    snapshots: list[int] = []
    files = 0
    while True:
        step = _expire_some(catalog, older_than)
        snapshots += step.snapshots
        files += step.files_scheduled
        if len(step.snapshots) < STEP_SNAPSHOTS:
            return Expired(tuple(snapshots), files)


def _expire_some(catalog: Catalog, older_than: datetime) -> Expired:
    def work(cursor: Any) -> Expired:
        reader = Reader(catalog.database, cursor, catalog.data_path)
        gone = reader.snapshots_before(older_than, STEP_SNAPSHOTS)
        for note in catalog.before_expiry if gone else ():
            note(reader)
        for number in gone:
            _run(reader, "DELETE FROM ducklake_snapshot WHERE snapshot_id = ?", number)
            _run(reader, "DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = ?", number)
        if not gone:
            return Expired((), 0)
        files = _bury_files(reader, time_text(catalog.clock.now_ms()))
        _bury_inlined_rows(reader)
        _bury_entries(reader)
        return Expired(tuple(gone), files)

    result: Expired = catalog.retrying(work)
    return result


def clean(catalog: Catalog, *, older_than: datetime) -> list[str]:
    """Remove files scheduled for deletion before a given time; returns their paths.

    In steps of `STEP_FILES`: an hour of a pipeline schedules some ten thousands, and concurrent
    commits would wait for all of them.
    """
    with catalog.look() as reader:
        found = reader.rows(
            "SELECT data_file_id, path, path_is_relative, schedule_start "
            "FROM ducklake_files_scheduled_for_deletion"
        )
    due = [row[:3] for row in found if read_time(row[3]) < older_than]
    removed: list[str] = []
    for first in range(0, len(due), STEP_FILES):
        removed += _remove(catalog, due[first : first + STEP_FILES])
    return removed


def _remove(catalog: Catalog, due: list[Row]) -> list[str]:
    """Remove files, then their entries; if that is cut short they are removed again."""
    paths = [resolve(catalog.data_path, path, bool(relative)) for _, path, relative in due]
    for path in paths:
        catalog.storage.remove(path)
    forgotten = catalog.database.sql(
        "DELETE FROM ducklake_files_scheduled_for_deletion WHERE data_file_id = ? AND path = ?"
    )

    def work(cursor: Any) -> None:
        cursor.executemany(forgotten, [row[:2] for row in due])

    catalog.retrying(work, synced=False)
    return paths


def sweep(catalog: Catalog, *, grace_ms: int) -> list[str]:
    """Remove files older than the grace period that no snapshot references; returns their paths.

    Storage is listed before the catalog is read, so a file committed meanwhile is seen as
    referenced. Files with the token of a valid reservation stay. Expired reservations are revoked
    first, and a commit that still relies on one is refused.
    """
    now_ms = catalog.clock.now_ms()
    stored = [
        file.path
        for file in catalog.storage.files(catalog.data_path)
        if file.changed_at_ms < now_ms - grace_ms and file.path.endswith(_OURS)
    ]

    def take_back(cursor: Any) -> None:
        reader = Reader(catalog.database, cursor, catalog.data_path)
        _run(reader, "DELETE FROM penstock_lake_writers WHERE expires_at_ms < ?", now_ms)

    if not stored:
        return []
    catalog.retrying(take_back)
    with catalog.look() as reader:
        named = set(named_files(reader))
        tokens = [row[0] for row in reader.rows("SELECT token FROM penstock_lake_writers")]
    orphans = [
        path for path in stored if path not in named and not any(token in path for token in tokens)
    ]
    return [path for path in orphans if catalog.storage.remove(path)]


def before(catalog: Catalog, age_ms: int) -> datetime:
    """The time `age_ms` ago, by the catalog's clock."""
    return datetime.fromtimestamp((catalog.clock.now_ms() - age_ms) / 1_000, UTC)


def named_files(reader: Reader) -> Iterator[str]:
    """Every path in the catalog: in any snapshot, in a change feed, or scheduled for deletion."""
    yield from feed_paths(reader)
    places = _table_places(reader)
    for source in ("ducklake_data_file", "ducklake_delete_file"):
        for table_id, path, relative in reader.rows(
            f"SELECT table_id, path, path_is_relative FROM {source}"
        ):
            yield resolve(places.get(table_id, reader.data_path), path, bool(relative))
    for path, relative in reader.rows(
        "SELECT path, path_is_relative FROM ducklake_files_scheduled_for_deletion"
    ):
        yield resolve(reader.data_path, path, bool(relative))


def _table_places(reader: Reader) -> dict[int, str]:
    """The directory of every table, including dropped ones."""
    found = reader.rows(
        "SELECT t.table_id, s.path, s.path_is_relative, t.path, t.path_is_relative "
        "FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id"
    )
    return {
        number: resolve(
            resolve(reader.data_path, schema or "", bool(schema_relative)),
            path or "",
            bool(relative),
        )
        for number, schema, schema_relative, path, relative in found
    }


def _bury_files(reader: Reader, now_text: str) -> int:
    """Schedule files that no retained snapshot references, along with their delete files."""
    places = _table_places(reader)
    data = reader.rows(
        "SELECT data_file_id, table_id, path, path_is_relative FROM ducklake_data_file f "
        f"WHERE {_DEAD.format('f')}"
    )
    deletes = reader.rows(
        "SELECT delete_file_id, table_id, path, path_is_relative FROM ducklake_delete_file f "
        f"WHERE {_DEAD.format('f')}"
    )
    present = reader.database.tables(reader.cursor)
    for number, table_id, _, _ in data:
        deletes += reader.rows(
            "SELECT delete_file_id, table_id, path, path_is_relative FROM ducklake_delete_file "
            "WHERE data_file_id = ?",
            number,
        )
        for name in _BY_FILE:
            _run(reader, f"DELETE FROM {name} WHERE data_file_id = ?", number)
        if f"ducklake_inlined_delete_{table_id}" in present:
            _run(
                reader, f"DELETE FROM ducklake_inlined_delete_{table_id} WHERE file_id = ?", number
            )
        _run(reader, "DELETE FROM ducklake_data_file WHERE data_file_id = ?", number)
    unique = {row[0]: row for row in deletes}
    for number in unique:
        _run(reader, "DELETE FROM ducklake_delete_file WHERE delete_file_id = ?", number)
    _schedule(reader, [*data, *unique.values()], places, now_text)
    return len(data) + len(unique)


def _schedule(reader: Reader, rows: Iterable[Row], places: dict[int, str], now_text: str) -> None:
    for number, table_id, path, relative in rows:
        whole = resolve(places.get(table_id, reader.data_path), path, bool(relative))
        kept, is_relative = relative_to(reader.data_path, whole)
        _run(
            reader,
            "INSERT INTO ducklake_files_scheduled_for_deletion VALUES (?, ?, ?, ?)",
            number, kept, is_relative, now_text,
        )  # fmt: skip


def _bury_inlined_rows(reader: Reader) -> None:
    present = reader.database.tables(reader.cursor)
    for (name,) in reader.rows("SELECT table_name FROM ducklake_inlined_data_tables"):
        if name in present:
            _run(reader, f"DELETE FROM {name} WHERE {_DEAD.format(name)}")


def _bury_entries(reader: Reader) -> None:
    """Delete tables, views and schemas in no retained snapshot; surviving tables keep columns."""
    ended = reader.rows(
        "SELECT table_id FROM ducklake_table GROUP BY table_id "
        "HAVING count(end_snapshot) = count(*)"
    )
    dropped = [row[0] for row in ended]
    _run(reader, f"DELETE FROM ducklake_table WHERE {_DEAD.format('ducklake_table')}")
    left = {row[0] for row in reader.rows("SELECT table_id FROM ducklake_table")}
    present = reader.database.tables(reader.cursor)
    for number in (number for number in dropped if number not in left):
        for (name,) in reader.rows(
            "SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = ?", number
        ):
            _run(reader, f"DROP TABLE IF EXISTS {name}")
        if f"ducklake_inlined_delete_{number}" in present:
            _run(reader, f"DROP TABLE ducklake_inlined_delete_{number}")
        for name in _BY_TABLE:
            _run(reader, f"DELETE FROM {name} WHERE table_id = ?", number)
    for name in ("ducklake_view", "ducklake_schema", "ducklake_tag"):
        _run(reader, f"DELETE FROM {name} WHERE {_DEAD.format(name)}")


def _run(reader: Reader, sql: str, *parameters: Any) -> None:
    reader.cursor.execute(reader.database.sql(sql), parameters)
