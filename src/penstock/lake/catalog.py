"""Open a lake: read any snapshot, commit transactions, and store Penstock's own rows with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final, Self
from uuid import uuid4

import pyarrow as pa

from penstock.flow.backoff import Backoff
from penstock.kernel.clock import Clock
from penstock.kernel.errors import Gone, Rejected
from penstock.kernel.system import SystemClock
from penstock.lake import ddl
from penstock.lake.bell import BellRinger, bell_address
from penstock.lake.changes import parse
from penstock.lake.commit import CommitResult, commit, retried
from penstock.lake.database import (
    CatalogLocked,
    Database,
    Row,
    SqliteDatabase,
    WriteConflict,
    fetch,
    is_absent,
    open_database,
    time_text,
)
from penstock.lake.model import (
    NewFile,
    SchemaInfo,
    Snapshot,
    TableInfo,
    TableVersion,
    ViewInfo,
    directory,
)
from penstock.lake.parquet import Materialiser, describe_file, write_file
from penstock.lake.reader import KnownTables, Reader
from penstock.lake.scan import ChangeRange, ChangeSpan, scan
from penstock.lake.storage import Storage, check_credentials
from penstock.lake.transaction import LakeTransaction

RETRIES: Final = Backoff(base_ms=1, cap_ms=100, jitter=0.5, window_ms=20_000)

At = int | datetime | Snapshot | None
"""Selects a snapshot: an id, a time, the snapshot itself, or None for the newest."""


class Catalog:
    """A DuckLake catalog and its file storage. Thread-safe."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        data_path: str,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        retries: Backoff = RETRIES,
    ) -> None:
        self.database = database
        self.storage = storage
        self.data_path = data_path
        self.clock: Clock = clock or SystemClock()
        self.before_expiry: list[Callable[[Reader], None]] = []
        """Called by `expire` inside its transaction, before the expiring rows are deleted."""
        self.bell: BellRinger | None = BellRinger(bell_address(database, data_path))
        """Rung after each commit; None where others tell of it."""
        self._random = random or Random()
        self._retries = retries
        self._known = KnownTables()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of every thread."""
        if self.bell is not None:
            self.bell.close()
        self.database.close()

    # looking

    @contextmanager
    def look(self) -> Iterator[Reader]:
        """A consistent read view for several queries."""
        try:
            with self.database.read() as cursor:
                yield Reader(self.database, cursor, self.data_path, self._known)
        except WriteConflict as error:
            raise CatalogLocked(f"the catalog is locked by other writers: {error}") from error

    def is_ours(self) -> bool:
        """Whether Penstock created this lake, rather than DuckDB or another tool."""
        made_by = self.query("SELECT value FROM ducklake_metadata WHERE key = 'created_by'")
        return any(str(maker).startswith("Penstock ") for (maker,) in made_by)

    def latest(self) -> Snapshot:
        """The newest snapshot."""
        with self.look() as reader:
            return reader.latest()

    def snapshots(self) -> list[Snapshot]:
        """All retained snapshots, oldest first."""
        with self.look() as reader:
            return reader.snapshots()

    def snapshot(self, at: At = None) -> Snapshot:
        """One snapshot, by id or by time."""
        with self.look() as reader:
            return _resolve(reader, at)

    def schemas(self, at: At = None) -> list[SchemaInfo]:
        """The schemas of a snapshot."""
        with self.look() as reader:
            return list(reader.schemas(_resolve(reader, at).id).values())

    def schema(self, name: str, at: At = None) -> SchemaInfo:
        """One schema by name."""
        for schema in self.schemas(at):
            if schema.name.lower() == name.lower():
                return schema
        raise Rejected(f"there is no schema {name!r}")

    def tables(self, at: At = None) -> list[TableInfo]:
        """The tables of a snapshot."""
        with self.look() as reader:
            return reader.tables(_resolve(reader, at).id)

    def views(self, at: At = None) -> list[ViewInfo]:
        """The views of a snapshot. Only the tool that created a view can run it."""
        with self.look() as reader:
            return reader.views(_resolve(reader, at).id)

    def table(self, name: str, at: At = None) -> TableInfo:
        """One table, as `table` (in `main`) or `schema.table`."""
        with self.look() as reader:
            return reader.table(name, _resolve(reader, at))

    def table_at(self, table: str | TableInfo, at: At = None) -> TableVersion:
        """A table at one snapshot: its schema, its exact files, and its inlined rows."""
        with self.look() as reader:
            snapshot = _resolve(reader, at)
            info = _table(reader, table, snapshot)
            files = reader.files(info, begun_by=snapshot.id, not_ended_by=snapshot.id)
            inlined = reader.inlined(info, begun_by=snapshot.id, not_ended_by=snapshot.id)
            return TableVersion(info, snapshot, tuple(files), inlined, reader.mappings(files))

    def changes(self, table: str | TableInfo, after: int, until: int | None = None) -> ChangeRange:
        """The net inserts and deletes after one snapshot, up to and including another."""
        return self.change_span(table, after, until).read(self.storage)

    def change_span(
        self, table: str | TableInfo, after: int, until: int | None = None
    ) -> ChangeSpan:
        """The same before any file is read: how many rows changed, by the catalog."""
        with self.look() as reader:
            newest = _resolve(reader, until)
            if not 0 <= after <= newest.id:
                raise Rejected(f"there is no snapshot {after}: they go from 0 to {newest.id}")
            info = _table(reader, table, newest)
            texts = reader.rows(
                "SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes "
                "WHERE snapshot_id > ? AND snapshot_id <= ?",
                after, newest.id,
            )  # fmt: skip
            if len(texts) < newest.id - after:
                raise Gone(
                    f"{newest.id - after - len(texts)} of the snapshots from {after + 1} to "
                    f"{newest.id} have expired"
                )
            kinds = ("rewrite_delete", "compacted_table")
            rewrites = frozenset(n for n, text in texts if info.id in parse(text).ids(*kinds))
            files = reader.files(info, begun_by=newest.id, not_ended_by=after)
            inlined = reader.inlined(info, begun_by=newest.id, not_ended_by=after)
            version = TableVersion(info, newest, tuple(files), inlined, reader.mappings(files))
        return ChangeSpan(version, after, rewrites)

    def scan(
        self, table: str | TableInfo, at: At = None, *, columns: Iterable[str] | None = None
    ) -> pa.Table:
        """All rows of a table at a snapshot, read in this process."""
        return scan(self.storage, self.table_at(table, at), columns)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """The rows of a query on Penstock's own tables, with `?` placeholders."""
        with self.look() as reader:
            return reader.rows(sql, *parameters)

    # changing

    def begin(
        self, *, at: Snapshot | None = None, reserve_ms: int | None = None, owner: str = ""
    ) -> LakeTransaction:
        """A transaction based on the newest snapshot, or on the one its inputs were read at.

        With `reserve_ms`, the sweep spares files that carry its token for that long.
        """
        token = None if reserve_ms is None else self.reserve(reserve_ms, owner)
        return LakeTransaction(
            at or self.latest(), self.data_path, token=token, columns_max=self.columns_max
        )

    @property
    def columns_max(self) -> int:
        """The maximum number of columns in a table."""
        return ddl.COLUMNS_MAX[self.database.kind]

    def commit(self, transaction: LakeTransaction) -> CommitResult:
        """Commit everything in a transaction, or nothing.

        Raises `Conflict` if another writer changed the same objects, `CatalogLocked` if the
        database stayed locked, and `CatalogAway` if it cannot be reached. A transaction without
        changes to the lake commits only Penstock's own rows.
        """
        deletes = Materialiser(self.storage, transaction)
        deletes(transaction.base.id + 1)  # before we hold the lock; kept if the id stays

        def attempt(cursor: Any, tries: int) -> CommitResult:
            snapshot, made = commit(
                self.database,
                cursor,
                transaction,
                data_path=self.data_path,
                now_ms=self.clock.now_ms(),
                materialise=deletes if deletes.is_needed else None,
            )
            return CommitResult(snapshot, made.table_ids, tries)

        done: CommitResult = retried(
            self.database, self.clock, attempt, self._retries, self._random
        )
        if self.bell is not None and done.snapshot is not None:
            self.bell.ring()
        return done

    @contextmanager
    def transact(self, *, synced: bool = True) -> Iterator[Any]:
        """A write transaction on Penstock's own tables: yields the cursor and commits on exit.

        With `synced=False` it does not wait for the disk. A power loss may then undo it, together
        with everything committed after it; a process crash undoes nothing.
        """
        try:
            with self.database.write(synced=synced) as cursor:
                yield cursor
        except WriteConflict as error:
            raise CatalogLocked(f"the catalog is locked by other writers: {error}") from error

    def retrying(self, work: Callable[[Any], Any], *, synced: bool = True) -> Any:
        """Run work with the cursor of a write transaction, retrying on write conflicts."""
        return retried(
            self.database, self.clock, lambda cursor, _: work(cursor), self._retries, self._random,
            synced=synced,
        )  # fmt: skip

    def migrate(self, name: str, version: int, statements: Sequence[str]) -> None:
        """Migrate a group of `penstock_*` tables to a version; the first process runs it."""

        def work(cursor: Any) -> None:
            key = f"version:{name}"
            question = "SELECT value FROM penstock_meta WHERE key = ?"
            found = fetch(self.database, cursor, question, (key,))
            have = int(found[0][0]) if found else 0
            if have > version:
                raise Rejected(
                    f"tables of {name} have version {have}, this Penstock knows up to {version}: "
                    "upgrade it"
                )
            if have == version:
                return
            for statement in statements:
                cursor.execute(statement)
            cursor.execute(
                self.database.sql(
                    "INSERT INTO penstock_meta (key, value) VALUES (?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
                ),
                (key, str(version)),
            )

        self.retrying(work)

    # files

    def write(self, table: TableInfo, rows: pa.Table, *, token: str | None = None) -> NewFile:
        """Write rows as a file of the table, for a transaction to add."""
        return write_file(self.storage, table.path, table.columns, rows, token=token)

    def describe(self, table: TableInfo, path: str, *, read_nans: bool = False) -> NewFile:
        """Describe a file that another program wrote, for a transaction to add."""
        return describe_file(self.storage, path, table.columns, read_nans=read_nans)

    def reserve(self, for_ms: int, owner: str = "") -> str:
        """Reserve a token: the sweep spares files with it in their path until the time is over.

        The token starts with the owner's prefix, so that the owner's successor can find it.
        """
        token, now_ms = owner + uuid4().hex, self.clock.now_ms()

        def work(cursor: Any) -> None:
            cursor.execute(
                self.database.sql("INSERT INTO penstock_lake_writers VALUES (?, ?, ?)"),
                (token, now_ms, now_ms + for_ms),
            )

        self.retrying(work)
        return token

    def extend(self, token: str, for_ms: int) -> bool:
        """Extend a reservation; False if it expired and was revoked."""

        def work(cursor: Any) -> bool:
            cursor.execute(
                self.database.sql(
                    "UPDATE penstock_lake_writers SET expires_at_ms = ? WHERE token = ?"
                ),
                (self.clock.now_ms() + for_ms, token),
            )
            return bool(cursor.rowcount == 1)

        return bool(self.retrying(work))


def open_catalog(
    address: str,
    data_path: str | None = None,
    *,
    create: bool = True,
    clock: Clock | None = None,
    timeout_ms: int = 10_000,
) -> Catalog:
    """Open a lake by the address of its catalog, or create one if none exists.

    The address is `sqlite:path` or `postgres:host=… dbname=…`. `data_path` is where a new lake
    stores its files (by default beside the SQLite file); for an existing lake it must match.
    """
    if data_path is not None:
        check_credentials(data_path)  # before a catalog exists that refers to it
    database = open_database(address, timeout_ms=timeout_ms)
    if is_absent(database) and not create:
        raise Rejected(f"there is no lake at {address!r}")
    if isinstance(database, SqliteDatabase):
        database.use_wal()
    wanted = _data_path(database, data_path)
    now_ms = (clock or SystemClock()).now_ms()
    found = _opened(database, lambda cursor: _prepare(database, cursor, wanted, create, now_ms))
    if data_path is not None and directory(wanted or "") != found:
        database.close()
        raise Rejected(f"the data path of this lake is {found!r}, not {data_path!r}: leave it out")
    retries = replace(RETRIES, window_ms=2 * timeout_ms)
    return Catalog(database, Storage(found), found, clock=clock, retries=retries)


def _opened(database: Database, work: Callable[[Any], str]) -> str:
    result: str = retried(
        database, SystemClock(), lambda cursor, _: work(cursor), RETRIES, Random()
    )
    return result


def _data_path(database: Database, given: str | None) -> str | None:
    if given is None and isinstance(database, SqliteDatabase):
        given = f"{database.path}.files"
    if given is None or "://" in given:
        return given
    return str(Path(given).absolute())


def _prepare(
    database: Database, cursor: Any, data_path: str | None, create: bool, now_ms: int
) -> str:
    """Check or create the catalog's tables and Penstock's own; returns the data path."""
    if "ducklake_metadata" not in database.tables(cursor):
        if not create:
            raise Rejected("the database has no DuckLake catalog")
        if data_path is None:
            raise Rejected("a new lake needs a data path")
        _create(database, cursor, directory(data_path), now_ms)
    for statement in (*ddl.own_tables(), *ddl.indexes()):
        cursor.execute(statement)
    question = "SELECT key, value FROM ducklake_metadata WHERE scope IS NULL"
    facts = {str(key): str(value) for key, value in fetch(database, cursor, question)}
    if facts.get("version") != ddl.VERSION:
        raise Rejected(
            f"this is a DuckLake of version {facts.get('version')}, and Penstock reads version "
            f"{ddl.VERSION}"
        )
    if facts.get("encrypted", "false") != "false":
        raise Rejected("the files of this DuckLake are encrypted, which Penstock cannot read")
    return _whole(directory(facts["data_path"]))


def _whole(data_path: str) -> str:
    """The absolute data path. DuckDB may store one relative to the working directory."""
    if "://" in data_path or data_path.startswith("/"):
        return data_path
    return directory(str(Path(data_path).absolute()))


def _create(database: Database, cursor: Any, data_path: str, now_ms: int) -> None:
    for statement in ddl.lake_tables(database.kind):
        cursor.execute(statement)
    run: Callable[..., Any] = lambda sql, *values: cursor.execute(database.sql(sql), values)  # noqa: E731
    from penstock import __version__

    for key, value in (
        ("version", ddl.VERSION),
        ("created_by", f"Penstock {__version__}"),
        ("data_path", data_path),
        ("encrypted", "false"),
    ):
        run("INSERT INTO ducklake_metadata VALUES (?, ?, NULL, NULL)", key, value)
    run("INSERT INTO ducklake_snapshot VALUES (0, ?, 0, 1, 0)", time_text(now_ms))
    run(
        "INSERT INTO ducklake_snapshot_changes VALUES (0, ?, NULL, NULL, NULL)",
        'created_schema:"main"',
    )
    run(
        "INSERT INTO ducklake_schema VALUES (0, ?, 0, NULL, 'main', 'main/', ?)",
        str(uuid4()), True,
    )  # fmt: skip


def _resolve(reader: Reader, at: At) -> Snapshot:
    if at is None:
        return reader.latest()
    if isinstance(at, Snapshot):
        return at
    if isinstance(at, datetime):
        return reader.snapshot_at(at.replace(tzinfo=UTC) if at.tzinfo is None else at)
    return reader.snapshot(at)


def _table(reader: Reader, table: str | TableInfo, at: Snapshot) -> TableInfo:
    if isinstance(table, str):
        return reader.table(table, at)
    found = reader.tables(at.id, number=table.id)
    if not found:
        raise Rejected(f"there is no table {table.qualified} in snapshot {at.id}")
    return found[0]
