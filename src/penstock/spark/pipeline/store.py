"""The lake's side of a pipeline: its tables, and the commit that adds a batch and moves the cursor.

Tasks write the files. Before the commit each one is looked at here: where it lies, what its footer
says of names, ids and types of columns, how many rows it has. Files that no commit names do not
count, so a pipeline may die anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.kernel.errors import Conflict, Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.model import NewFile, TableInfo
from penstock.lake.parquet import describe_file, write_file
from penstock.lake.storage import Storage
from penstock.lake.transaction import LakeTransaction
from penstock.spark.lake.task_files import FilesDiffer
from penstock.spark.lake.types import for_lake
from penstock.spark.pipeline.chain import JobResult
from penstock.spark.pipeline.cursors import Cursor, Moved, TakenOver, cursor_of, move
from penstock.spark.pipeline.definition import DEAD_LETTERS, Pipeline
from penstock.spark.pipeline.fetch import FetchedBatch
from penstock.spark.pipeline.space import Basis
from penstock.spark.pipeline.task import DeadRow, TargetTable, TaskReport

RESERVE_MS: Final = 600_000
_TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """What a batch left in the lake; no snapshot if it left nothing but a moved cursor."""

    snapshot: int | None
    rows: int
    dead: int


@dataclass(frozen=True, slots=True)
class LakeTables:
    """The tables of a pipeline as a job writes for them, and the columns that each takes."""

    tables: tuple[TableInfo, ...]
    names: tuple[tuple[str, ...], ...]
    letters: TableInfo

    @property
    def targets(self) -> tuple[TargetTable, ...]:
        """The same, for tasks."""
        pairs = zip(self.tables, self.names, strict=True)
        return tuple(TargetTable(table.path, table.columns, names) for table, names in pairs)


class Store:
    """The tables and commits of one pipeline. For one thread at a time."""

    def __init__(self, lake: Catalog, pipeline: Pipeline) -> None:
        self._lake = lake
        self._pipeline = pipeline

    def tables(self, schema: pa.Schema) -> LakeTables:
        """The tables for rows of these columns; those that are not there are created.

        `Rejected` if `evaluate` leaves out a column that a target takes, or gives another type.
        """
        pipeline = self._pipeline
        names = [
            taken_columns(schema.names, wanted, "evaluate") for wanted in pipeline.targets.values()
        ]
        wanted = {
            **{name: pa.schema([schema.field(each) for each in listed])
               for name, listed in zip(pipeline.targets, names, strict=True)},
            pipeline.dead_letters: DEAD_LETTERS,
        }  # fmt: skip
        found = find_tables(self._lake, wanted, f"pipeline {pipeline.name}")
        made = tuple(found[name] for name in pipeline.targets)
        return LakeTables(made, tuple(map(tuple, names)), found[pipeline.dead_letters])

    def reserve(self) -> str:
        """A token that keeps the files of a batch from being swept until its commit."""
        return self._lake.reserve(RESERVE_MS)

    def keep(self, token: str) -> bool:
        """Reserve the files for longer; False if they may be swept already."""
        return self._lake.extend(token, RESERVE_MS)

    def commit(
        self,
        batch: FetchedBatch,
        result: JobResult | None,
        tables: LakeTables | None,
        cursor: Cursor,
        *,
        token: str | None = None,
        basis: Basis | None = None,
    ) -> Stored:
        """Commit a batch: its files, its dead letters, and the cursor.

        A batch of nothing but duplicates has no result. `TakenOver` if the cursor is not where the
        batch began: another process moved it. `FilesDiffer` if the files are not what tasks wrote.
        """
        lake = self._lake
        transaction = lake.begin()
        transaction.token = token
        now_ms = lake.clock.now_ms()
        rows = dead = 0
        if result is not None and tables is not None:
            check_unchanged(lake, transaction, (*tables.tables, tables.letters))
            add_written(lake, transaction, tables.tables, tables.targets, result.reports)
            letters = dead_letters(self._pipeline.name, result.dead, batch, now_ms)
            add_rows(lake, transaction, tables.letters, letters)
            rows, dead = result.rows, letters.num_rows
        moved = Moved(batch.after, batch.upto, batch.count, batch.duplicates, rows, dead, basis)
        move(transaction, cursor, moved, now_ms)
        transaction.author = "penstock"
        transaction.message = f"pipeline {self._pipeline.name}: up to seq {batch.upto}"
        try:
            done = lake.commit(transaction)
        except Conflict as error:
            now = cursor_of(lake, cursor.name)
            if now is None or (now.holder, now.seq) != (cursor.holder, batch.after):
                raise TakenOver(
                    f"pipeline {cursor.name!r} was ours at seq {batch.after}, and is now at "
                    f"{now and now.seq}, held by {now and now.holder!r}: another process runs it"
                ) from error
            raise
        return Stored(None if done.snapshot is None else done.snapshot.id, rows, dead)


class TablesChanged(Conflict):
    """A table of a pipeline was altered or dropped while a batch was on its way to it."""

    code = "tables_changed"


def find_tables(
    lake: Catalog, wanted: Mapping[str, pa.Schema], message: str
) -> dict[str, TableInfo]:
    """Tables by name, which must take these columns; those that are missing are made, at once."""
    for tries in range(1, _TRIES_MAX + 1):
        transaction = lake.begin()
        there = {table.qualified: table for table in lake.tables(transaction.base)}
        found = {name: there[_qualified(name)] for name in wanted if _qualified(name) in there}
        missing = [name for name in wanted if name not in found]
        if not missing:
            for name, columns in wanted.items():
                for_lake(columns.empty_table(), found[name].columns)  # refuses what does not fit
            return found
        for name in missing:
            namespace, _, plain = _qualified(name).rpartition(".")
            transaction.create_table(lake.schema(namespace), plain, wanted[name])
        transaction.author = "penstock"
        transaction.message = f"{message}: {', '.join(missing)}"
        try:
            lake.commit(transaction)
        except Conflict:  # another process made one of them; look again
            if tries == _TRIES_MAX:
                raise
    return find_tables(lake, wanted, message)


def check_unchanged(
    lake: Catalog, transaction: LakeTransaction, tables: Iterable[TableInfo]
) -> None:
    """Refuse to add files to a table that has other columns now, or is another one."""
    now = {table.id: table for table in lake.tables(transaction.base)}
    for table in tables:
        if now.get(table.id) != table:
            raise TablesChanged(f"table {table.qualified} was changed while a batch was made")


def add_written(
    lake: Catalog,
    transaction: LakeTransaction,
    tables: Sequence[TableInfo],
    targets: Sequence[TargetTable],
    reports: Iterable[TaskReport],
) -> None:
    """Have a commit add the files that tasks wrote, once they are known to be here as reported."""
    for number, file in checked_files(lake.storage, targets, reports):
        transaction.add_files(tables[number], [file])


def checked_files(
    storage: Storage, targets: Sequence[TargetTable], reports: Iterable[TaskReport]
) -> list[tuple[int, NewFile]]:
    """The files of a batch as they are in storage, if they are what the tasks say they wrote.

    A task may run where the table's directory is another disk, so that its file is not here; and
    readers find a column by its field id, so a wrong one would show them other values.
    """
    listed = list(reports)
    found: list[tuple[int, NewFile]] = []
    for report in listed:
        for number, file in report.files:
            found.append((number, _checked_file(storage, targets[number], file)))
    paths = {file.path for _, file in found}
    rows = sum(report.rows for report in listed)
    for number, target in enumerate(targets):
        held = sum(file.record_count for each, file in found if each == number)
        if held != rows or len(paths) < len(found):
            raise _differ(target.directory, f"tasks wrote {rows} rows, the files here hold {held}")
    return found


def _checked_file(storage: Storage, target: TargetTable, told: NewFile) -> NewFile:
    if not told.path.startswith(target.directory):
        raise _differ(told.path, f"it lies outside of {target.directory}")
    try:
        seen = describe_file(storage, told.path, target.columns, is_ours=True)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise _differ(told.path, f"a file that a task wrote is not here ({error})") from error
    nans = {entry.column_id: entry.contains_nan for entry in told.stats}
    stats = tuple(replace(e, contains_nan=nans.get(e.column_id)) for e in seen.stats)
    seen = replace(seen, stats=stats)
    if seen != told:
        raise _differ(told.path, f"a task wrote {told.record_count} rows there, this file differs")
    return seen


def _differ(path: str, what: str) -> FilesDiffer:
    return FilesDiffer(
        f"{what}: keep the lake on storage that this process and every executor share ({path}); "
        "nothing was committed",
        path=path,
    )


def add_rows(lake: Catalog, transaction: LakeTransaction, table: TableInfo, rows: pa.Table) -> None:
    """Write a few rows here, as a file of a table."""
    if rows.num_rows:
        file = write_file(lake.storage, table.path, table.columns, rows, token=transaction.token)
        transaction.add_files(table, [file])


def dead_letters(name: str, dead: Sequence[DeadRow], batch: FetchedBatch, now_ms: int) -> pa.Table:
    """Dead rows as dead letters, with the bytes of the messages that they come from."""
    if not dead:
        return DEAD_LETTERS.empty_table()
    messages = batch.messages
    seqs = pa.array([row.seq for row in dead], pa.int64())
    places = pc.index_in(seqs, value_set=messages.column("_seq").combine_chunks())
    if places.null_count:
        raise Rejected("a step changed _seq: it must keep the _seq of the message")
    origin = messages.take(places)
    sent = pc.cast(origin.column("payload"), pa.binary()).to_pylist()
    payloads = [batch.unread.get(row.seq, data) for row, data in zip(dead, sent, strict=True)]
    count = len(dead)
    columns: dict[str, Any] = {
        "pipeline": pa.array([name] * count),
        "seq": seqs,
        "row_no": pa.array([row.row for row in dead], pa.int32()),
        "stage": pa.array([row.stage for row in dead]),
        "reason": pa.array([row.reason for row in dead]),
        "device": origin.column("device"),
        "message_id": origin.column("message_id"),
        "received_at": origin.column("received_at"),
        "payload": pa.array(payloads, pa.binary()),
        "failed_at": pa.array([now_ms * 1_000] * count, pa.int64()).cast(
            DEAD_LETTERS.field("failed_at").type
        ),
    }
    return pa.table([columns[f.name].cast(f.type) for f in DEAD_LETTERS], schema=DEAD_LETTERS)


def _qualified(name: str) -> str:
    return name if "." in name else f"main.{name}"


def taken_columns(found: Sequence[str], wanted: Sequence[str] | None, giver: str) -> list[str]:
    """The columns that a target takes of those that there are; None takes all."""
    if wanted is None:
        return list(found)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise Rejected(
            f"{giver} does not give {', '.join(missing)}: a target takes the columns "
            f"{', '.join(wanted)}"
        )
    return list(wanted)
