"""What DuckDB writes, we read: inserts, updates, deletes, rows in the catalog, its maintenance."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.kernel.errors import Gone, Rejected
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.database import SqliteDatabase
from tests.integration.lake.agree import assert_same_changes, assert_same_tables, bag
from tests.integration.lake.duck import Duck

EVERY_TYPE = """SELECT * FROM (VALUES
    (1, true, 1::TINYINT, 300::SMALLINT, 7::UBIGINT, 1.5::FLOAT, 'nan'::DOUBLE, 1.25::DECIMAL(9,2),
     '2024-02-29'::DATE, '12:34:56.789'::TIME, '2024-02-29 01:02:03.4'::TIMESTAMP,
     '2024-02-29 01:02:03.456789+00'::TIMESTAMPTZ, '1969-12-31 23:59:59'::TIMESTAMP_S,
     '2024-02-29 01:02:03.123'::TIMESTAMP_MS, 'it''s "q", {x}'::VARCHAR, '\\x00\\xFFa'::BLOB,
     '{"a":1}'::JSON, [1, NULL, 3], {'x': 1, 'y': ['a,b', 'it''s', NULL, '']},
     MAP {'k=1': 1.5, 'null': NULL}, [{'z': 1}, NULL]),
    (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, NULL),
    (3, false, -1, -2, 18446744073709551615, -0.1, 1e300, -0.01, '0001-01-01', '00:00:00',
     '1900-01-01 00:00:00', '1969-12-31 23:59:59.999999+00', '2000-01-01 00:00:00',
     '1969-12-31 23:59:59.999', '', ''::BLOB, '[]', [], {'x': NULL, 'y': []}, MAP {}, [])
) v(n, flag, i8, i16, u64, f32, f64, de, day, clock, ts, tz, ts_s, ts_ms, text, raw, js, list,
    record, map, deep)"""


def test_rows_in_the_catalog_of_every_type_are_those_of_a_file(
    catalog: Catalog, duck: Duck
) -> None:
    duck.run(f"CREATE TABLE inlined AS {EVERY_TYPE}")
    duck.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    duck.run(f"CREATE TABLE filed AS {EVERY_TYPE}")
    inlined, filed = catalog.table_at("inlined"), catalog.table_at("filed")
    assert (inlined.files, inlined.inlined.rows.num_rows) == ((), 3)
    assert (len(filed.files), filed.inlined.rows.num_rows) == (1, 0)
    assert bag(catalog.scan("inlined")) == bag(catalog.scan("filed"))
    assert bag(catalog.scan("filed")) == bag(duck.run("SELECT * FROM filed"))


def test_a_life_of_inserts_updates_deletes_and_alterations(catalog: Catalog, duck: Duck) -> None:
    for statement in (
        "CREATE TABLE t (a INTEGER, b VARCHAR, s STRUCT(x INTEGER, y VARCHAR))",
        "INSERT INTO t VALUES (1, 'one', {'x': 1, 'y': 'u'}), (2, 'two', NULL)",
        "INSERT INTO t SELECT i, 'v' || i, {'x': i, 'y': 'w'} FROM range(10, 60) r(i)",
        "UPDATE t SET b = 'changed' WHERE a IN (1, 20)",
        "UPDATE t SET b = 'many' WHERE a BETWEEN 20 AND 45",
        "DELETE FROM t WHERE a = 2",
        "DELETE FROM t WHERE a = 30",
        "DELETE FROM t WHERE a BETWEEN 40 AND 55",
        "DELETE FROM t WHERE a BETWEEN 35 AND 42",
        "ALTER TABLE t ADD COLUMN n INTEGER DEFAULT 7",
        "INSERT INTO t VALUES (100, 'hundred', NULL, NULL)",
        "ALTER TABLE t RENAME COLUMN b TO name",
        "ALTER TABLE t ADD COLUMN s.z DOUBLE",
        "INSERT INTO t VALUES (101, 'x', {'x': 5, 'y': 'p', 'z': 1.5}, 8)",
        "ALTER TABLE t RENAME COLUMN s.x TO xx",
        "ALTER TABLE t DROP COLUMN s.y",
        "ALTER TABLE t ALTER COLUMN a TYPE BIGINT",
        "INSERT INTO t SELECT i, 'later', {'xx': i, 'z': i / 2}, i FROM range(200, 230) r(i)",
        "ALTER TABLE t DROP COLUMN n",
        "ALTER TABLE t RENAME TO u",
        "DELETE FROM u WHERE a > 100",
        "BEGIN; INSERT INTO u(a) VALUES (500); CREATE TABLE other AS SELECT 1 AS one; COMMIT",
        "CREATE VIEW v AS SELECT a FROM u",
        "DELETE FROM u",
    ):
        duck.run(statement)
        assert_same_tables(catalog, duck, newest=True)
    assert_same_tables(catalog, duck)
    assert [(view.name, view.dialect) for view in catalog.views()] == [("v", "duckdb")]


def test_changes_between_any_two_snapshots_agree(catalog: Catalog, duck: Duck) -> None:
    for statement in (
        "CREATE TABLE t (a INTEGER, b VARCHAR)",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three')",
        "INSERT INTO t SELECT i, 'v' || i FROM range(10, 60) r(i)",
        "UPDATE t SET b = 'changed' WHERE a IN (1, 20)",
        "DELETE FROM t WHERE a BETWEEN 40 AND 55",
        "UPDATE t SET b = 'again' WHERE a BETWEEN 15 AND 45",
        "DELETE FROM t WHERE a IN (2, 21)",
        "DELETE FROM t WHERE a BETWEEN 30 AND 50",
        "INSERT INTO t SELECT i, 'w' || i FROM range(20) r(i)",
    ):
        duck.run(statement)
    assert_same_changes(catalog, duck, "t")


@pytest.mark.parametrize(
    "maintenance",
    [
        ("CALL ducklake_flush_inlined_data('lake')",),
        ("CALL ducklake_merge_adjacent_files('lake')",),
        # Flushed first: of a file with deletes both in the catalog and in a file, DuckDB 1.5 tells
        # the deletes twice once it has rewritten it (what it reads is right).
        (
            "CALL ducklake_flush_inlined_data('lake')",
            "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)",
        ),
        (
            "CALL ducklake_flush_inlined_data('lake')",
            "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)",
            "CALL ducklake_merge_adjacent_files('lake')",
        ),
    ],
    ids=["flush", "merge", "rewrite", "all"],
)
def test_duckdbs_maintenance_changes_nothing_we_read(
    catalog: Catalog, duck: Duck, maintenance: tuple[str, ...]
) -> None:
    for statement in (
        "CREATE TABLE t (a INTEGER, b VARCHAR)",
        "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
        "INSERT INTO t VALUES (3, 'three')",
        "INSERT INTO t SELECT i, 'v' || i FROM range(10, 40) r(i)",
        "INSERT INTO t SELECT i, 'v' || i FROM range(40, 70) r(i)",
        "DELETE FROM t WHERE a IN (2, 15)",
        "DELETE FROM t WHERE a BETWEEN 20 AND 33",
        "UPDATE t SET b = 'changed' WHERE a BETWEEN 30 AND 36",
        "INSERT INTO t SELECT i, 'v' || i FROM range(70, 90) r(i)",
    ):
        duck.run(statement)
    last = catalog.latest().id
    before = {at: bag(catalog.scan("t", at)) for at in range(1, last + 1)}
    for statement in maintenance:
        duck.run(statement)
    assert {at: bag(catalog.scan("t", at)) for at in range(1, last + 1)} == before
    moved = catalog.changes("t", last)
    assert moved.is_empty
    duck.run("DELETE FROM t WHERE a IN (3, 12, 75)")
    duck.run("UPDATE t SET b = 'late' WHERE a = 80")
    assert_same_tables(catalog, duck)
    assert_same_changes(catalog, duck, "t")


def test_a_lake_that_duckdb_made_opens_and_takes_our_commits(address: str, tmp_path: Path) -> None:
    data = str(tmp_path / "made")
    with Duck(address, options=f"DATA_PATH '{data}'") as duck:
        duck.run("CREATE TABLE t (a INTEGER, b VARCHAR)")
        duck.run("INSERT INTO t VALUES (1, 'x')")
        with open_catalog(address, create=False) as catalog:
            transaction = catalog.begin()
            table = catalog.table("t")
            rows = pa.table({"b": ["y"], "a": pa.array([2], pa.int32())})
            transaction.add_files(table, [catalog.write(table, rows)])
            catalog.commit(transaction)
            assert_same_tables(catalog, duck)
            assert duck.value("SELECT count(*) FROM t") == 2
        with pytest.raises(Rejected, match="data path"):
            open_catalog(address, str(tmp_path / "elsewhere"))


def test_files_without_field_ids_are_read_by_name_on_both_sides(
    catalog: Catalog, duck: Duck, tmp_path: Path
) -> None:
    duck.run("CREATE TABLE t (a BIGINT, b VARCHAR, s STRUCT(q BIGINT[]), m MAP(VARCHAR, BIGINT))")
    plain = pa.table(
        {
            "b": ["x", "y"],
            "s": pa.array([{"q": [1, 2]}, None], pa.struct([("q", pa.list_(pa.int64()))])),
            "a": [1, 2],
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    for name in ("theirs", "ours"):
        pq.write_table(plain, tmp_path / f"{name}.parquet")
    duck.run(f"CALL ducklake_add_data_files('lake', 't', '{tmp_path}/theirs.parquet')")
    assert_same_tables(catalog, duck)
    transaction = catalog.begin()
    table = catalog.table("t")
    transaction.add_files(table, [catalog.describe(table, f"{tmp_path}/ours.parquet")])
    catalog.commit(transaction)
    assert catalog.scan("t").num_rows == 4
    assert_same_tables(catalog, duck)
    duck.run("ALTER TABLE t RENAME COLUMN a TO renamed")
    assert_same_tables(catalog, duck)
    pq.write_table(pa.table({"nobody": [1]}), tmp_path / "stranger.parquet")
    with pytest.raises(Rejected, match="nobody"):
        catalog.describe(table, f"{tmp_path}/stranger.parquet")


def test_partitions_and_sort_orders_of_duckdb_stay_as_they_are(
    catalog: Catalog, duck: Duck
) -> None:
    duck.run("CREATE TABLE t (day INTEGER, v INTEGER)")
    duck.run("ALTER TABLE t SET PARTITIONED BY (day)")
    duck.run("ALTER TABLE t SET SORTED BY (v ASC)")
    duck.run("INSERT INTO t SELECT i % 3, i FROM range(60) r(i)")
    table = catalog.table("t")
    transaction = catalog.begin()
    rows = pa.table({"day": pa.array([1], pa.int32()), "v": pa.array([1000], pa.int32())})
    transaction.add_files(table, [catalog.write(table, rows)])
    transaction.add_column(table, pa.field("note", pa.string()))
    catalog.commit(transaction)
    duck.run("INSERT INTO t SELECT i % 3, i, 'n' FROM range(60) r(i)")
    assert duck.value("SELECT count(*) FROM t WHERE day = 1") == 41
    assert_same_tables(catalog, duck)
    kept = catalog.query("SELECT count(*) FROM ducklake_partition_info WHERE end_snapshot IS NULL")
    assert kept == [(1,)]


def test_a_moment_names_the_same_snapshot_on_both_sides(catalog: Catalog, duck: Duck) -> None:
    duck.run("CREATE TABLE t (a INTEGER)")
    for number in range(4):
        duck.run(f"INSERT INTO t VALUES ({number})")
        transaction = catalog.begin()
        table = catalog.table("t")
        rows = pa.table({"a": pa.array([number + 10], pa.int32())})
        transaction.add_files(table, [catalog.write(table, rows)])
        catalog.commit(transaction)
    for snapshot in catalog.snapshots()[1:]:
        # DuckDB's time on PostgreSQL is that of a transaction's begin: equal moments may occur.
        found = catalog.snapshot(snapshot.time)
        moment = snapshot.time.isoformat(sep=" ")
        theirs = duck.run(f"SELECT * FROM t AT (TIMESTAMP => TIMESTAMPTZ '{moment}')")
        assert bag(catalog.scan("t", snapshot.time)) == bag(theirs)
        assert found.time == snapshot.time
    with pytest.raises(Gone, match="have expired"):
        catalog.snapshot(datetime(2000, 1, 1, tzinfo=UTC))
    with pytest.raises(Rejected, match="there is no snapshot 999"):
        catalog.scan("t", 999)
    with pytest.raises(Rejected, match="nobody"):
        catalog.scan("nobody")


def test_a_lake_that_duckdb_made_is_kept_in_a_write_ahead_log_once_we_have_opened_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "theirs.sqlite"
    with Duck(f"sqlite:{path}", options=f"DATA_PATH '{tmp_path / 'data'}'") as duck:
        duck.run("CREATE TABLE t AS SELECT 1 AS n")
        assert journal(path) == "delete"
        open_catalog(f"sqlite:{path}").close()
        assert journal(path) == "wal"
        duck.run("INSERT INTO t VALUES (2)")
        assert duck.value("SELECT sum(n) FROM t") == 3


def test_a_lake_of_duckdbs_that_is_being_written_is_opened_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with Duck(f"sqlite:{path}", options=f"DATA_PATH '{tmp_path / 'data'}'") as duck:
        duck.run("CREATE TABLE t AS SELECT 1 AS n")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    database = SqliteDatabase(str(path))
    database.use_wal()
    writer.execute("ROLLBACK")
    writer.close()
    assert journal(path) == "delete"
    database.use_wal()
    database.close()
    assert journal(path) == "wal"


def journal(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()
