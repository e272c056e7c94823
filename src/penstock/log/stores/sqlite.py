"""The sqlite store: partitions over a fixed number of database files, WAL mode.

A group is one transaction in each file it touches; an error in one file fails only its partitions.
The number of files is fixed when the directory is first opened, since it determines the file of a
partition.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.kernel.errors import Rejected, Unavailable, without_traceback
from penstock.log.disk import lock_directory, make_directory, open_private
from penstock.log.store import (
    Append,
    Bounds,
    Compact,
    Damaged,
    DiskFull,
    HardState,
    InstallBoundary,
    LogEntry,
    Operation,
    ReadOnly,
    SetHardState,
    StoreClosed,
    StoreStatus,
    Sync,
    SyncFailed,
    Truncate,
    UnknownFormat,
)
from penstock.log.stores import rules

FORMAT_VERSION: Final = 1
_SCHEMA: Final = """
create table if not exists entry (
    partition integer not null, idx integer not null, term integer not null, payload blob not null,
    primary key (partition, idx)
) without rowid;
create table if not exists state (
    partition integer primary key, boundary_index integer not null, boundary_term integer not null,
    last_index integer not null, last_term integer not null,
    term integer not null, vote integer not null
);
create table if not exists pinned (name text primary key, value integer not null);
"""
_KEEP_STATE: Final = "insert or replace into state values (?, ?, ?, ?, ?, ?, ?)"
_CODE_MASK: Final = 0xFF
_LIMIT_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """`shards` files; fixed at the first open."""

    shards: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= 64:
            raise Rejected(f"shards must be from 1 to 64, not {self.shards}")


def open_sqlite(path: str | Path, **options: Any) -> SqliteStore:
    """A sqlite store in a directory of this machine."""
    return SqliteStore(Path(path), SqliteOptions(**options))


class SqliteStore:
    """Partition p is in file p modulo the number of files."""

    def __init__(self, path: Path, options: SqliteOptions | None = None) -> None:
        self._path = path
        self._options = options or SqliteOptions()
        make_directory(path)
        self._release = lock_directory(path)
        self._writing = threading.Lock()
        self._closed = False
        self._syncs = 0
        self._shards: list[_Shard] = []
        try:
            for number in range(self._options.shards):
                self._shards.append(_Shard(path / f"{number:02d}.sqlite", self._options.shards))
        except BaseException:
            self._let_go()
            raise

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Only checks the size: this store prepares nothing."""
        return group if rules.payload_bytes(group) <= bytes_max else None

    def begin(self, group: Sequence[Operation], *, sync: bool) -> None:
        """None: every write here is a call."""

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group, one transaction per file; see `Store.write`."""
        with self._writing:
            self._check_open()
            parts: dict[int, list[Operation]] = {}
            failed: dict[int, Exception] = {}
            for op in group:
                if 0 <= op.partition <= rules.PARTITION_MAX:
                    parts.setdefault(op.partition % len(self._shards), []).append(op)
                else:
                    failed |= rules.refusals([op], lambda _: Bounds())
            for number, part in parts.items():
                failed |= self._shards[number].write(part, sync=sync)
            self._syncs += len(parts) if sync else 0
            return failed

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Entries from an index on; see `Store.read`."""
        self._check_open()
        shard = self._shard(partition)
        return shard.read(partition, first_index, max(max_entries, 1), max_bytes)

    def term_at(self, partition: int, index: int) -> int:
        """The term of an entry or of the boundary."""
        self._check_open()
        return self._shard(partition).term_at(partition, index)

    def bounds(self, partition: int) -> Bounds:
        """Boundary and last entry."""
        self._check_open()
        return self._shard(partition).state(partition)[0]

    def hard_state(self, partition: int) -> HardState:
        """Term and vote."""
        self._check_open()
        return self._shard(partition).state(partition)[1]

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        self._check_open()
        return sorted(partition for shard in self._shards for partition in list(shard.states))

    def damaged(self) -> Mapping[int, Exception]:
        """Empty: damage is detected on read."""
        return {}

    def reclaim(self) -> int:
        """Returns 0: the space of compacted entries is reused."""
        return 0

    def status(self) -> StoreStatus:
        """A snapshot for people."""
        states = [state for shard in self._shards for state in list(shard.states.values())]
        reasons = [shard.refusal.message for shard in self._shards if shard.refusal]
        return StoreStatus(
            kind="sqlite",
            path=str(self._path),
            partitions=len(states),
            entries=sum(bounds.last_index - bounds.boundary_index for bounds, _ in states),
            bytes_on_disk=sum(file.stat().st_size for file in self._path.glob("*.sqlite*")),
            syncs=self._syncs,
            read_only_reason="; ".join(reasons) or None,
        )

    def close(self) -> None:
        """Close the files and release the lock."""
        with self._writing:
            if not self._closed:
                self._closed = True
                self._let_go()

    def _let_go(self) -> None:
        for shard in self._shards:
            shard.close()
        self._release()

    def _shard(self, partition: int) -> _Shard:
        return self._shards[partition % len(self._shards)]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store in {self._path} is closed")


class _Shard:
    """One database file. Bounds and hard states are also kept in memory, for status and checks."""

    def __init__(self, path: Path, shards: int) -> None:
        self._path = path
        self._lock = threading.Lock()  # one connection for reads, one for the writer
        self._sync = True
        self.refusal: ReadOnly | None = None
        self._writer = self._connect()
        self._reader: sqlite3.Connection | None = None
        try:
            with self._translated():
                self._check_format(shards)
                self._writer.execute("pragma synchronous=full")
                self._reader = self._connect()
                self.states = {
                    row[0]: (Bounds(*row[1:5]), HardState(*row[5:]))
                    for row in self._writer.execute("select * from state")
                }
        except BaseException:
            self.close()
            raise

    def write(self, part: Sequence[Operation], *, sync: bool) -> dict[int, Exception]:
        if isinstance(self.refusal, ReadOnly) and not isinstance(self.refusal, DiskFull):
            return rules.all_failed(part, without_traceback(self.refusal))
        failed = rules.refusals(part, lambda partition: self.state(partition)[0])
        admitted = [op for op in part if op.partition not in failed]
        changed: dict[int, tuple[Bounds, HardState]] = {}
        try:
            self._set_sync(sync)
            self._writer.execute("begin immediate")
            for op in admitted:
                if type(op) is Sync and op.partition not in self.states:
                    continue  # its partition has failed
                # A sync writes the current state again: SQLite does not sync an empty transaction.
                before = changed.get(op.partition) or self.state(op.partition)
                changed[op.partition] = self._apply(op, *before)
            rows = [(partition, *bounds, *hard) for partition, (bounds, hard) in changed.items()]
            self._writer.executemany(_KEEP_STATE, rows)
        except (sqlite3.Error, OverflowError) as error:
            self._roll_back()
            failed |= rules.all_failed(admitted, self._refuse(error))
            return failed
        try:
            self._writer.execute("commit")
        except sqlite3.Error as error:
            self._roll_back()
            failed |= rules.all_failed(admitted, self._not_committed(error))
            return failed
        self.refusal = None
        self.states = self.states | changed
        return failed

    def read(
        self, partition: int, first_index: int, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        with self._reading() as connection:
            bounds = self._stored(connection, partition)
            rules.check_read(partition, first_index, bounds.boundary_index)
            rows = connection.execute(
                "select idx, term, payload from entry where partition = ? and idx >= ? "
                "order by idx limit ?",
                (partition, min(first_index, rules.NUMBER_MAX), min(max_entries, _LIMIT_MAX)),
            )
            return rules.within((LogEntry(*row) for row in rows), max_bytes)

    def term_at(self, partition: int, index: int) -> int:
        with self._reading() as connection:
            bounds = self._stored(connection, partition)
            rules.check_term_at(partition, index, bounds)
            if index == bounds.boundary_index:
                return bounds.boundary_term
            return self._term_of(connection, partition, index)

    def state(self, partition: int) -> tuple[Bounds, HardState]:
        return self.states.get(partition) or (Bounds(), HardState())

    def close(self) -> None:
        with self._lock:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    with contextlib.suppress(sqlite3.Error):
                        connection.close()
            self._reader = None

    def _connect(self) -> sqlite3.Connection:
        if not self._path.exists():  # else a close here would release SQLite's locks on it
            with open(self._path, "wb", opener=open_private):
                pass
        return sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=32
        )

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The read connection in a transaction: bounds and entries are consistent."""
        with self._lock, self._translated():
            if self._reader is None:
                raise StoreClosed(f"the store in {self._path} is closed")
            self._reader.execute("begin")
            try:
                yield self._reader
            finally:
                self._reader.execute("rollback")

    def _stored(self, connection: sqlite3.Connection, partition: int) -> Bounds:
        row = connection.execute(
            "select boundary_index, boundary_term, last_index, last_term from state "
            "where partition = ?",
            (partition,),
        ).fetchone()
        return Bounds(*row) if row else Bounds()

    def _check_format(self, shards: int) -> None:
        self._writer.execute("pragma journal_mode=wal")
        found = self._writer.execute("pragma user_version").fetchone()[0]
        if found not in (0, FORMAT_VERSION):
            raise UnknownFormat(
                f"{self._path}: expected format version {FORMAT_VERSION}, found {found}"
            )
        self._writer.executescript(f"begin;{_SCHEMA}pragma user_version={FORMAT_VERSION};commit")
        self._writer.execute("insert or ignore into pinned values ('shards', ?)", (shards,))
        pinned = self._writer.execute("select value from pinned where name = 'shards'").fetchone()
        if pinned[0] != shards:
            raise Rejected(
                f"{self._path.parent} was made with shards={pinned[0]} and cannot be opened with "
                f"shards={shards}",
                expected=pinned[0],
                found=shards,
            )

    def _set_sync(self, sync: bool) -> None:
        if sync != self._sync:
            self._writer.execute(f"pragma synchronous={'full' if sync else 'normal'}")
            self._sync = sync

    def _apply(self, op: Operation, was: Bounds, hard: HardState) -> tuple[Bounds, HardState]:
        run = self._writer.execute
        match op:
            case Append(partition, entries):
                rows = [(partition, *entry) for entry in entries]
                self._writer.executemany("insert into entry values (?, ?, ?, ?)", rows)
                if rows:
                    was = was._replace(last_index=rows[-1][1], last_term=rows[-1][2])
            case SetHardState(_, term, vote):
                hard = HardState(term, vote)
            case Truncate(partition, from_index):
                if from_index <= was.last_index:
                    last = from_index - 1
                    term = was.boundary_term
                    if last > was.boundary_index:
                        term = self._term_of(self._writer, partition, last)
                    run("delete from entry where partition=? and idx>=?", (partition, from_index))
                    was = was._replace(last_index=last, last_term=term)
            case Compact(partition, upto):
                if upto > was.boundary_index:
                    term = self._term_of(self._writer, partition, upto)
                    run("delete from entry where partition=? and idx<=?", (partition, upto))
                    was = was._replace(boundary_index=upto, boundary_term=term)
            case InstallBoundary(partition, index, term):
                run("delete from entry where partition=?", (partition,))
                was = Bounds(index, term, index, term)
        return was, hard

    def _term_of(self, connection: sqlite3.Connection, partition: int, index: int) -> int:
        row = connection.execute(
            "select term from entry where partition = ? and idx = ?", (partition, index)
        ).fetchone()
        if row is None:
            raise Damaged(f"{self._path}: entry {index} of partition {partition} is missing")
        return int(row[0])

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._writer.in_transaction:
                self._writer.execute("rollback")

    def _not_committed(self, error: Exception) -> ReadOnly | SyncFailed:
        """The error of a commit: unless there was no space, SQLite may find it at the next open."""
        refusal = self._refuse(error)
        if isinstance(refusal, DiskFull):
            return refusal
        return SyncFailed(f"{refusal}; this group may or may not be durable")

    def _refuse(self, error: Exception) -> ReadOnly:
        # Extended codes have the primary code in their low byte.
        code = getattr(error, "sqlite_errorcode", 0) & _CODE_MASK
        if code == sqlite3.SQLITE_FULL:
            self.refusal = DiskFull(f"no space left for {self._path}: {error}")
        else:
            self.refusal = ReadOnly(f"{self._path} takes no more writes: {error}")
        return self.refusal

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & _CODE_MASK
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise Damaged(f"{self._path}: {error}", file=str(self._path)) from error
            raise Unavailable(f"{self._path}: {error}") from error
