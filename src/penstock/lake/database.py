"""The catalog's database: SQLite or PostgreSQL behind one small interface.

Write transactions are serialized: on SQLite by the file's lock, on PostgreSQL by an advisory lock.
DuckDB does not take that lock; conflicts with its writers surface as a duplicate primary key in the
snapshot table and are retried.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from penstock.kernel.errors import Corrupt, Rejected, Unavailable, Unknown

BEGIN_WRITE: Final = "BEGIN IMMEDIATE"
_PAUSE_S: Final = (0.000_2, 0.002)
"""Sleep between attempts to take the lock: first and maximum."""

_ADVISORY_LOCK: Final = 0x70656E73746F636B  # "penstock"
_PG_RETRIED: Final = ("40001", "40P01", "55P03")
_PG_TAKEN: Final = "23505"
_SQLITE_AWAY: Final = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PROTOCOL,
)
_CONNECT_S: Final = 10
"""Connect timeout, unless the address sets one."""
_WAL_WAIT_MS: Final = 250
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*")

Row = tuple[Any, ...]


class CatalogAway(Unavailable):
    """The catalog's database cannot be reached; nothing was changed, and it may come back."""

    code = "catalog_away"


class CatalogLocked(CatalogAway):
    """Other writers held the catalog for longer than the timeout; nothing was changed."""

    code = "catalog_locked"


class WriteConflict(Exception):
    """Another writer interfered; nothing was changed and a retry may succeed."""


class Database(Protocol):
    """What a catalog needs from a database. SQL uses `?` placeholders."""

    kind: str
    parameter: str

    def write(self, *, synced: bool = True) -> Any:
        """Context manager for a write transaction and its cursor; commits on exit.

        A power loss may undo a transaction with `synced=False`, but never a later synced one.
        """
        ...

    def read(self) -> Any:
        """Context manager for a consistent read view and its cursor."""
        ...

    def sql(self, text: str) -> str:
        """The text with this driver's placeholders."""
        ...

    def tables(self, cursor: Any) -> set[str]:
        """The names of all existing tables."""
        ...

    def integrity_error(self) -> type[Exception]:
        """What the driver raises on a duplicate key or a violated table constraint."""
        ...

    def close(self) -> None:
        """Close the connections of every thread."""
        ...


_POSTGRES: Final = ("postgres:", "postgresql:")


def open_database(address: str, *, timeout_ms: int = 10_000) -> Database:
    """Open a database by address: `sqlite:path`, a path, or `postgres:` and parameters."""
    check_address(address)
    if address.startswith(_POSTGRES):
        words = address if "://" in address else address.partition(":")[2]
        return PostgresDatabase(words, timeout_ms=timeout_ms)
    return SqliteDatabase(address.removeprefix("sqlite:"), timeout_ms=timeout_ms)


def check_address(address: str) -> None:
    """Reject a malformed database address, without checking that the database exists."""
    path = address.removeprefix("sqlite:")
    is_other = not path or "://" in path or (path == address and _KIND.match(address))
    if is_other and not address.startswith(_POSTGRES):
        raise Rejected(f"{address!r} is not a catalog: use sqlite:<path> or postgres:<words>")


def is_absent(database: Database) -> TypeGuard[SqliteDatabase]:
    """Whether the catalog's file would have to be created.

    A missing parent directory is an error: it is more likely a typo than intended.
    """
    if not isinstance(database, SqliteDatabase) or Path(database.path).exists():
        return False
    folder = Path(database.path).absolute().parent
    if not folder.is_dir():
        raise Rejected(f"the lake {database.path!r} cannot be made: there is no directory {folder}")
    return True


_KIND: Final = re.compile(r"[A-Za-z][\w+.-]+:")
"""The scheme of an address; at least two letters, because one letter may be a Windows drive."""


def time_text(at_ms: int) -> str:
    """A time as DuckDB writes it to SQLite; PostgreSQL accepts the same format."""
    return moment_text(datetime.fromtimestamp(at_ms / 1_000, UTC))


def moment_text(moment: datetime) -> str:
    """A time in the format that sorts chronologically as text in SQLite."""
    moment = moment.astimezone(UTC)
    text = moment.strftime("%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{moment.year:04d}-{text}+00"


def read_time(value: Any) -> datetime:
    """Parse a time as returned by either database."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return datetime.fromisoformat(f"{value}:00" if value[-3] in "+-" else value).astimezone(UTC)


class _Owned(NamedTuple):
    """A connection, and the thread and process that opened it."""

    connection: Any
    thread: threading.Thread
    pid: int

    @property
    def is_left(self) -> bool:
        """Whether its thread has ended. False after a fork: the parent owns the connection."""
        return self.pid == os.getpid() and not self.thread.is_alive()


class _Connections:
    """One connection per thread, and a new one after a fork."""

    def __init__(self, connect: Any) -> None:
        self._connect = connect
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: list[_Owned] = []

    def get(self) -> Any:
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.connection = self._connect()
            self._local.pid = os.getpid()
            self._keep(self._local.connection)
        return self._local.connection

    def drop(self) -> None:
        """Close and forget this thread's broken connection."""
        connection = self._local.connection
        self._local.pid = None
        with self._lock:
            self._all = [owned for owned in self._all if owned.connection is not connection]
        connection.close()

    def close(self) -> None:
        with self._lock:
            for owned in self._all:
                owned.connection.close()
            self._all.clear()
        self._local = threading.local()

    def _keep(self, connection: Any) -> None:
        """Register a new connection and close those of threads that have ended."""
        with self._lock:
            for owned in [owned for owned in self._all if owned.is_left]:
                self._all.remove(owned)
                owned.connection.close()
            self._all.append(_Owned(connection, threading.current_thread(), os.getpid()))


class _Connection(sqlite3.Connection):
    """A connection that caches its sync mode and the names of tables."""

    _synced = True
    _journal: str | None = None
    _tables: tuple[int, set[str]] = (-1, set())

    def sync(self, wanted: bool) -> None:
        """Sync each of the next transactions at its commit, or leave it to a later sync."""
        if self._journal is None:
            self._journal = str(self.execute("PRAGMA journal_mode").fetchone()[0])
        wanted = wanted or self._journal != "wal"  # other journal modes are unsafe without it
        if wanted is not self._synced:
            self.execute(f"PRAGMA synchronous = {'FULL' if wanted else 'NORMAL'}")
            self._synced = wanted

    def begin(self, cursor: sqlite3.Cursor, timeout_ms: int) -> None:
        """Begin to write once we hold the file's lock.

        SQLite backs off between attempts, up to 100 ms. Writers here hold the lock for about a
        millisecond, so short sleeps between attempts get it much sooner.
        """
        cursor.execute("PRAGMA busy_timeout = 0")
        until = time.monotonic() + timeout_ms / 1_000
        pause_s = _PAUSE_S[0]
        try:
            while True:
                try:
                    cursor.execute(BEGIN_WRITE)
                except sqlite3.OperationalError as error:
                    if not _is_locked(error) or time.monotonic() > until:
                        raise
                else:
                    return
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, _PAUSE_S[1])
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {timeout_ms}")

    def forget(self) -> None:
        """Clear the table cache: after a rollback, SQLite may reuse a schema version."""
        self._tables = (-1, set())

    def tables(self, cursor: sqlite3.Cursor) -> set[str]:
        """The names of all tables, reread when SQLite's schema version changes."""
        (version,) = cursor.execute("PRAGMA schema_version").fetchone()
        if self._tables[0] != version:
            cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self._tables = (version, {str(name) for (name,) in cursor.fetchall()})
        return self._tables[1]


class SqliteDatabase:
    """A catalog in one file on this machine."""

    kind = "sqlite"
    parameter = "?"

    def __init__(self, path: str, *, timeout_ms: int = 10_000) -> None:
        self.path = path
        self._timeout_ms = timeout_ms
        self._connections = _Connections(self._connect)

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.path,
                timeout=self._timeout_ms / 1_000,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
                factory=_Connection,
            )
        except sqlite3.OperationalError as error:
            raise Rejected(f"{self.path!r} cannot be opened as a SQLite file: {error}") from error
        try:
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError as error:
            connection.close()
            if isinstance(error, sqlite3.OperationalError):
                raise _sqlite_error(error) from error  # it may be free on the next attempt
            raise Rejected(f"{self.path!r} cannot be opened as a SQLite file: {error}") from error
        return connection

    def use_wal(self) -> None:
        """Switch to WAL, so that readers and the writer do not block each other, in any tool.

        A file that another tool is using right now stays as it is until next time: both journal
        modes are safe.
        """
        with suppress(sqlite3.OperationalError, WriteConflict):
            connection = self._connections.get()
            try:
                connection.execute(f"PRAGMA busy_timeout = {_WAL_WAIT_MS}")
                connection.execute("PRAGMA journal_mode = WAL")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {self._timeout_ms}")

    def takes_writes(self, within_ms: int) -> bool:
        """Whether a writer could take the file's lock in time. Writes nothing."""
        connection: _Connection = self._connections.get()
        try:
            connection.begin(connection.cursor(), within_ms)
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if not _is_locked(error):
                raise _sqlite_error(error) from error
            return False
        finally:
            connection.execute(f"PRAGMA busy_timeout = {self._timeout_ms}")
        return True

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[sqlite3.Cursor]:
        """A write transaction, begun once we hold the file's lock."""
        with self._transaction(BEGIN_WRITE, synced=synced) as cursor:
            yield cursor

    @contextmanager
    def read(self) -> Iterator[sqlite3.Cursor]:
        """A read transaction: a consistent view of the file."""
        with self._transaction("BEGIN") as cursor:
            yield cursor

    @contextmanager
    def _transaction(self, begin: str, *, synced: bool = True) -> Iterator[sqlite3.Cursor]:
        connection: _Connection = self._connections.get()
        cursor = connection.cursor()
        try:
            if begin == BEGIN_WRITE:
                connection.sync(synced)
                connection.begin(cursor, self._timeout_ms)
            else:
                cursor.execute(begin)
            yield cursor
            cursor.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.OperationalError):
                cursor.execute("ROLLBACK")
            connection.forget()
            if isinstance(error, sqlite3.DatabaseError):
                raise _sqlite_error(error) from error
            raise
        finally:
            cursor.close()

    def sql(self, text: str) -> str:
        """SQLite uses `?` natively."""
        return text

    def tables(self, cursor: Any) -> set[str]:
        """The names of all existing tables."""
        found: set[str] = cursor.connection.tables(cursor)
        return found

    def integrity_error(self) -> type[Exception]:
        """What the driver raises on a duplicate key or a violated table constraint."""
        return sqlite3.IntegrityError

    def close(self) -> None:
        """Close the connections of every thread."""
        self._connections.close()


class PostgresDatabase:
    """A catalog that several machines share. `schema` is the PostgreSQL schema of its tables."""

    kind = "postgres"
    parameter = "%s"

    def __init__(self, words: str, *, schema: str = "public", timeout_ms: int = 10_000) -> None:
        if not _NAME.fullmatch(schema):
            raise Rejected(f"{schema!r} is not a plain name for a schema")
        try:
            import psycopg  # noqa: F401 - everything below needs it
        except ImportError as error:
            raise Rejected(
                "a database on PostgreSQL needs psycopg, which is not installed: "
                "pip install 'penstock[postgres]'"
            ) from error
        self._words = words
        self._schema = schema
        self._timeout_ms = timeout_ms
        self._connections = _Connections(self._connect)
        self._texts: dict[str, str] = {}

    def _connect(self) -> Any:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        options = (
            f"-c search_path={self._schema} -c timezone=UTC -c lock_timeout={self._timeout_ms}"
        )
        try:
            given: dict[str, Any] = dict(conninfo_to_dict(self._words))
            words = make_conninfo(**{"connect_timeout": _CONNECT_S, **given})
            return psycopg.connect(words, autocommit=True, options=options)
        except psycopg.Error as error:
            raise _postgres_error(error) from error

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[Any]:
        """A write transaction, begun once we hold the advisory lock."""
        begin = "BEGIN" if synced else "BEGIN; SET LOCAL synchronous_commit = off"
        with self._transaction(begin) as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_ADVISORY_LOCK,))
            yield cursor

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A read transaction: a consistent view of the database."""
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as cursor:
            yield cursor

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Any]:
        import psycopg

        connection = self._begun(begin)
        try:
            with connection.cursor() as cursor:
                yield cursor
                _commit(cursor)
        except BaseException as error:
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
            if isinstance(error, psycopg.Error):
                raise _postgres_error(error) from error
            raise

    def _begun(self, begin: str) -> Any:
        """A connection with an open transaction; reconnects if the server closed the old one."""
        import psycopg

        connection = self._connections.get()
        try:
            connection.execute(begin)
        except psycopg.Error as error:
            if not connection.closed:
                raise _postgres_error(error) from error
            self._connections.drop()
            connection = self._connections.get()
            connection.execute(begin)
        return connection

    def sql(self, text: str) -> str:
        """The text with psycopg's placeholders."""
        made = self._texts.get(text)
        if made is None:
            made = self._texts[text] = _MARKS.sub(_marked, text.replace("%", "%%"))
        return made

    def tables(self, cursor: Any) -> set[str]:
        """The names of all existing tables."""
        cursor.execute(
            "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = %s",
            (self._schema,),
        )
        return {str(name) for (name,) in cursor.fetchall()}

    def integrity_error(self) -> type[Exception]:
        """What the driver raises on a duplicate key or a violated table constraint."""
        import psycopg

        return psycopg.errors.IntegrityError

    def close(self) -> None:
        """Close the connections of every thread."""
        self._connections.close()


_MARKS: Final = re.compile(r"""'[^']*'|"[^"]*"|\?""")
"""Placeholders, and quoted text, in which a question mark is not a placeholder."""


def _marked(found: re.Match[str]) -> str:
    return "%s" if found[0] == "?" else found[0]


def _postgres_error(error: Any) -> Exception:
    """Map a psycopg error: retryable conflict, server away, or the error itself."""
    import psycopg

    if _is_retried(error):
        return WriteConflict(_line(error))
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return CatalogAway(f"the catalog on PostgreSQL cannot be reached: {_line(error)}")
    found: Exception = error
    return found


def _sqlite_error(error: sqlite3.DatabaseError) -> Exception:
    """Map a SQLite error: retryable conflict, unusable file, or the error itself."""
    if _is_locked(error):
        return WriteConflict(str(error))
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _SQLITE_AWAY:
        return CatalogAway(f"the catalog's SQLite file cannot be used: {_line(error)}")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corrupt(f"the catalog's SQLite file is damaged: {_line(error)}")
    return error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_retried(error: Any) -> bool:
    """Serialization failures, and ids taken first by a writer that does not use our lock."""
    if error.sqlstate == _PG_TAKEN:
        return str(error.diag.table_name).startswith("ducklake_")
    return error.sqlstate in _PG_RETRIED


def _commit(cursor: Any) -> None:
    """COMMIT on PostgreSQL. If the connection breaks meanwhile, the outcome is unknown."""
    import psycopg

    try:
        cursor.execute("COMMIT")
    except psycopg.OperationalError as error:
        if error.sqlstate is None:
            raise Unknown(
                f"whether the commit landed is unknown, the connection broke: {error}"
            ) from error
        raise


def _is_locked(error: BaseException) -> bool:
    """SQLITE_BUSY, or a primary key taken first by a writer that does not use our lock."""
    if isinstance(error, sqlite3.IntegrityError):
        return "ducklake_snapshot" in str(error)
    if not isinstance(error, sqlite3.OperationalError):
        return False
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def fetch(database: Database, cursor: Any, text: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """The rows of a query."""
    cursor.execute(database.sql(text), tuple(parameters))
    return list(cursor.fetchall())
