"""Commit a transaction: one SQL transaction, retried while other writers interfere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random
from typing import Any

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Conflict
from penstock.lake.changes import check_conflicts, parse_all
from penstock.lake.database import CatalogLocked, Database, WriteConflict, fetch, time_text
from penstock.lake.draft import CatalogState, TableState
from penstock.lake.model import Snapshot
from penstock.lake.plan import CommitPlan, plan, touched_tables
from penstock.lake.reader import Reader
from penstock.lake.stats import TableColumnStats, TableStats
from penstock.lake.transaction import (
    SNAPSHOT,
    CreateSchema,
    CreateTable,
    DeleteInlined,
    EndContents,
    Expectation,
    LakeTransaction,
    RenameTable,
    Statement,
)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit. `snapshot` is None if only Penstock's own rows changed."""

    snapshot: Snapshot | None
    table_ids: dict[int, int]
    tries: int


def retried(
    database: Database,
    clock: Clock,
    work: Any,
    backoff: Backoff,
    random: Random,
    *,
    synced: bool = True,
) -> Any:
    """Run work in a write transaction, with retries; raises `CatalogLocked` when out of time."""
    began_ms = clock.monotonic_ms()
    tries = 0
    while True:
        tries += 1
        try:
            with database.write(synced=synced) as cursor:
                return work(cursor, tries)
        except WriteConflict as error:
            elapsed_ms = clock.monotonic_ms() - began_ms
            delay_ms = backoff.next_ms(tries, elapsed_ms=elapsed_ms, random=random)
            if delay_ms is None:
                raise CatalogLocked(
                    f"other writers held the catalog for {elapsed_ms} ms, in {tries} tries: {error}"
                ) from error
            time.sleep(delay_ms / 1_000)


def commit(
    database: Database,
    cursor: Any,
    transaction: LakeTransaction,
    *,
    data_path: str,
    now_ms: int,
    materialise: Any = None,
) -> tuple[Snapshot | None, CommitPlan]:
    """One attempt: read, check, plan, write. The caller's SQL transaction makes it atomic."""
    reader = Reader(database, cursor, data_path)
    for expectation in transaction.expectations:
        _check_expectation(database, cursor, expectation)
    latest = reader.latest()
    if materialise is not None:
        transaction = replace(transaction, operations=materialise(latest.id + 1))
    state = _state(reader, transaction, latest)
    moment = time_text(max(now_ms, int(latest.time.timestamp() * 1_000)))
    made = plan(transaction, state, moment)
    if latest.id != transaction.base.id:
        _check_conflicts(reader, transaction, made, state)
    run(database, cursor, made.statements, made.snapshot_id)
    try:
        run(database, cursor, transaction.statements, made.snapshot_id)
    except database.integrity_error() as error:
        raise Conflict(f"rows of the commit do not fit their tables: {error}") from error
    if transaction.token is not None:
        _spend(database, cursor, transaction.token)
    return (reader.latest() if made.changes else None), made


def run(database: Database, cursor: Any, statements: Iterable[Statement], snapshot_id: int) -> None:
    """Run statements in order, batching consecutive ones with the same text."""
    for text, group in groupby(statements, key=lambda statement: statement.sql):
        listed = list(group)
        rows = [
            tuple(snapshot_id if value is SNAPSHOT else value for value in statement.parameters)
            for statement in listed
        ]
        if len(listed) > 1 and all(statement.rows is None for statement in listed):
            cursor.executemany(database.sql(text), rows)
            continue
        for statement, parameters in zip(listed, rows, strict=True):
            cursor.execute(database.sql(text), parameters)
            if statement.rows is not None and cursor.rowcount != statement.rows:
                raise Conflict(f"{text!r} changed {cursor.rowcount} rows, not {statement.rows}")


def _check_expectation(database: Database, cursor: Any, expectation: Expectation) -> None:
    rows = fetch(database, cursor, expectation.sql, expectation.parameters)
    found = rows[0][0] if rows else None
    if found != expectation.value:
        raise Conflict(
            f"expected {expectation.value!r} from {expectation.sql!r}, found {found!r}",
            expected=expectation.value,
            found=found,
        )


def _spend(database: Database, cursor: Any, token: str) -> None:
    """Release a reservation. If it is gone, the sweep may have removed the files."""
    cursor.execute(database.sql("DELETE FROM penstock_lake_writers WHERE token = ?"), (token,))
    if cursor.rowcount != 1:
        raise Conflict(
            f"the reservation {token} has expired, and its files may be gone: write them again"
        )


def _state(reader: Reader, transaction: LakeTransaction, latest: Snapshot) -> CatalogState:
    """The part of the catalog that the plan needs, and no more."""
    state = CatalogState(latest, reader.data_path, reader.database.kind)
    tables = touched_tables(transaction.operations)
    inlined = {
        op.table.id
        for op in transaction.operations
        if isinstance(op, EndContents | DeleteInlined) and op.table.id >= 0
    }
    for number in tables:
        state.tables[number] = _table_state(reader, number, with_inlined=number in inlined)
    named = (CreateSchema, CreateTable, RenameTable)
    if any(isinstance(op, named) for op in transaction.operations):
        schemas = reader.schemas(latest.id)
        state.schema_ids = {schema.name.lower(): schema.id for schema in schemas.values()}
        state.entries = _entries(reader)
    return state


def _table_state(reader: Reader, number: int, *, with_inlined: bool) -> TableState:
    state = TableState()
    counters = reader.rows(
        "SELECT record_count, next_row_id, file_size_bytes FROM ducklake_table_stats "
        "WHERE table_id = ?",
        number,
    )
    if counters:
        state.has_stats = True
        state.counters = TableStats(*(int(value or 0) for value in counters[0]))
        found = reader.rows(
            "SELECT column_id, contains_null, contains_nan, min_value, max_value "
            "FROM ducklake_table_column_stats WHERE table_id = ?",
            number,
        )
        state.columns = {
            row[0]: TableColumnStats(row[0], _flag(row[1]), _flag(row[2]), row[3], row[4])
            for row in found
        }
    if with_inlined:
        names = [name for name, _ in reader.inlined_tables(number)]
        state.inlined_tables = tuple(names)
        state.has_inlined_rows = any(
            reader.rows(f"SELECT 1 FROM {name} WHERE end_snapshot IS NULL LIMIT 1")
            for name in names
        )
    return state


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _entries(reader: Reader) -> set[tuple[str, str]]:
    """The (schema, name) pairs of all tables and views."""
    found = []
    for table, name in (("ducklake_table", "table_name"), ("ducklake_view", "view_name")):
        found += reader.rows(
            f"SELECT s.schema_name, t.{name} FROM {table} t JOIN ducklake_schema s "
            "ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL WHERE t.end_snapshot IS NULL"
        )
    return {(schema.lower(), name.lower()) for schema, name in found}


def _check_conflicts(
    reader: Reader, transaction: LakeTransaction, made: CommitPlan, state: CatalogState
) -> None:
    base = transaction.base.id
    texts = reader.rows(
        "SELECT changes_made FROM ducklake_snapshot_changes WHERE snapshot_id > ?", base
    )
    if len(texts) < state.latest.id - base:
        raise Conflict(f"some snapshots since {base} have expired: read again and commit again")
    theirs = parse_all(text for (text,) in texts)
    deleted = theirs.ids("deleted_from_table")
    emptied = made.tables_emptied & deleted
    if emptied:
        raise Conflict(
            f"another commit deleted from table {min(emptied)} since snapshot {base}: read again "
            "and commit again"
        )
    files: set[int] = set()
    if deleted & made.changes.ids("deleted_from_table"):
        files = _files_deleted_since(reader, base)
    check_conflicts(
        made.changes,
        theirs,
        schema_ids=state.schema_ids,
        our_files=made.files_touched,
        their_files=files,
    )


def _files_deleted_since(reader: Reader, base: int) -> set[int]:
    found = reader.rows(
        "SELECT data_file_id FROM ducklake_delete_file WHERE begin_snapshot > ? OR partial_max > ?",
        base, base,
    ) + reader.rows(
        "SELECT data_file_id FROM ducklake_data_file WHERE end_snapshot > ?", base
    )  # fmt: skip
    return {row[0] for row in found}
