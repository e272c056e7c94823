"""The SQLite side of a catalog's database: what is synced, and what is remembered."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import open_catalog
from penstock.lake.database import PostgresDatabase, SqliteDatabase, WriteConflict, open_database


@pytest.fixture
def database(tmp_path):
    database = SqliteDatabase(str(tmp_path / "catalog.sqlite"))
    database.use_wal()
    yield database
    database.close()


def synchronous(cursor) -> int:
    return cursor.execute("PRAGMA synchronous").fetchone()[0]


NORMAL, FULL = 1, 2


def test_only_a_transaction_that_may_wait_for_a_later_one_is_not_synced(database):
    seen = []
    for synced in (True, False, True):
        with database.write(synced=synced) as cursor:
            seen.append(synchronous(cursor))
    assert seen == [FULL, NORMAL, FULL]


def test_a_catalog_with_another_journal_is_always_synced(tmp_path):
    path = str(tmp_path / "plain.sqlite")
    sqlite3.connect(path).execute("PRAGMA journal_mode = DELETE").close()
    database = SqliteDatabase(path)
    with database.write(synced=False) as cursor:
        assert synchronous(cursor) == FULL
    database.close()


def test_what_is_not_synced_is_seen_by_others_at_once(database):
    with database.write(synced=False) as cursor:
        cursor.execute("CREATE TABLE t (n INTEGER)")
        cursor.execute("INSERT INTO t VALUES (1)")
    other = SqliteDatabase(database.path)
    with other.read() as cursor:
        assert cursor.execute("SELECT n FROM t").fetchall() == [(1,)]
    other.close()


def test_tables_that_others_make_are_found(database):
    other = SqliteDatabase(database.path)
    for name in ("one", "two"):
        with other.write() as cursor:
            cursor.execute(f"CREATE TABLE {name} (n INTEGER)")
        with database.read() as cursor:
            assert name in database.tables(cursor)
    other.close()


def test_a_table_that_was_rolled_back_is_not_remembered(database):
    with suppress(ZeroDivisionError), database.write() as cursor:
        cursor.execute("CREATE TABLE gone (n INTEGER)")
        assert database.tables(cursor) == {"gone"}
        raise ZeroDivisionError
    other = SqliteDatabase(database.path)
    with other.write() as cursor:
        cursor.execute("CREATE TABLE kept (n INTEGER)")
    other.close()
    with database.read() as cursor:
        assert database.tables(cursor) == {"kept"}


def test_a_writer_that_waits_too_long_is_told_to_try_again(database):
    patient = SqliteDatabase(database.path, timeout_ms=30)
    with database.write() as cursor:
        cursor.execute("CREATE TABLE t (n INTEGER)")
        with pytest.raises(WriteConflict), patient.write():
            pass
    with patient.write() as cursor:
        cursor.execute("INSERT INTO t VALUES (1)")
        assert cursor.execute("PRAGMA busy_timeout").fetchone() == (30,)
    patient.close()


def test_connections_of_threads_that_ended_are_closed(database):
    def look() -> None:
        with database.read() as cursor:
            cursor.execute("SELECT 1")

    for _ in range(20):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert len(open_descriptors(database.path)) <= 3  # this thread's, and the last one's


def open_descriptors(path: str) -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()) == path:
                found.append(entry.name)
    return found


@pytest.mark.parametrize("address", ["foo:bar", "mysql://x", "sqlite:", ""])
def test_an_address_of_another_kind_is_refused_with_those_there_are(address):
    with pytest.raises(Rejected, match=r"is not a catalog: use sqlite:<path> or postgres:<words>"):
        open_database(address)


@pytest.mark.parametrize("address", ["a.sqlite", "./a:b", "sqlite:a:b", "C:lake"])
def test_a_path_may_have_colons(address):
    assert open_database(address).path == address.removeprefix("sqlite:")


def test_a_lake_is_not_made_in_a_directory_that_is_not_there(tmp_path):
    with pytest.raises(Rejected, match=r"the lake .* there is no directory .*none"):
        open_catalog(f"sqlite:{tmp_path}/none/lake.sqlite")
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "text").write_text("no database of any kind\n" * 9)
    with pytest.raises(Rejected, match=r"text' cannot be opened as a SQLite file: file is not"):
        open_catalog(f"sqlite:{tmp_path}/text")


def test_only_marks_outside_quotes_are_parameters_for_postgres():
    database = PostgresDatabase("")
    asked = """SELECT "ok?", "a""?", '50%?' FROM t WHERE a = ? AND b LIKE '%' || ?"""
    made = """SELECT "ok?", "a""?", '50%%?' FROM t WHERE a = %s AND b LIKE '%%' || %s"""
    assert database.sql(asked) == made


def test_a_file_that_another_writes_to_for_long_takes_no_writes(database):
    assert database.takes_writes(0)
    other = SqliteDatabase(database.path)
    with other.write() as cursor:
        cursor.execute("CREATE TABLE t (n INTEGER)")
        assert not database.takes_writes(1)
    other.close()
    assert database.takes_writes(0)
    with database.write() as cursor:
        cursor.execute("INSERT INTO t VALUES (1)")
