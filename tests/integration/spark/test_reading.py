"""Spark reads a snapshot just as it is: inserts, deletes, rows in the catalog, alterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.kernel.errors import Rejected
from penstock.lake import Compaction, FileRows
from penstock.lake.shell import Catalog, compact, open_catalog
from penstock.spark.reading import read_deleted, read_inserted, read_table
from penstock.spark.types import for_spark
from tests.integration.lake.agree import bag
from tests.integration.lake.duck import Duck
from tests.integration.spark.agree import assert_agree, rows_of, spark_bag

LIFE = (
    "CREATE TABLE t (a INTEGER, b VARCHAR, s STRUCT(x INTEGER, y VARCHAR))",
    "INSERT INTO t VALUES (1, 'one', {'x': 1, 'y': 'u'}), (2, 'two', NULL)",
    "INSERT INTO t SELECT i, 'v' || i, {'x': i, 'y': 'w'} FROM range(10, 1200) r(i)",
    "UPDATE t SET b = 'changed' WHERE a IN (1, 20)",
    "UPDATE t SET b = 'many' WHERE a BETWEEN 20 AND 450",
    "DELETE FROM t WHERE a = 2",
    "DELETE FROM t WHERE a BETWEEN 40 AND 55",
    "DELETE FROM t WHERE a BETWEEN 500 AND 1150",
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
    "ALTER TABLE t DROP COLUMN s.xx",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', 't')",
    "DELETE FROM t WHERE a > 20",
)


def test_a_life_of_inserts_updates_deletes_and_alterations(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    for statement in LIFE:
        duck.run(statement)
    born = next(s.id for s in lake.snapshots() if "created_table" in (s.changes or ""))
    snapshots = [s.id for s in lake.snapshots() if s.id >= born]
    assert_agree(spark, lake, duck, "t", [*snapshots[::2], snapshots[-1]])


def test_our_compaction_changes_no_snapshot(spark: Any, lake: Catalog, duck: Duck) -> None:
    for statement in LIFE[:8]:
        duck.run(statement)
    at = [s.id for s in lake.snapshots()][2:]
    before = [spark_bag(spark, lake, "t", number) for number in at]
    done = compact(lake, "t", Compaction(files_min=2, deleted_share_min=0.01))
    assert done.files_rewritten
    assert [spark_bag(spark, lake, "t", number) for number in at] == before
    assert_agree(spark, lake, duck, "t")


def test_changes_between_snapshots(spark: Any, lake: Catalog, duck: Duck) -> None:
    for statement in LIFE[:8]:
        duck.run(statement)
    first, last = lake.snapshots()[3].id, lake.latest().id
    changes = lake.changes("t", first, last)
    columns = changes.table.columns
    came = rows_of(read_inserted(spark, lake.storage, changes))
    went = rows_of(read_deleted(spark, lake.storage, changes))
    assert bag(came) == bag(for_spark(changes.read_inserted(lake.storage), columns))
    assert bag(went) == bag(for_spark(changes.read_deleted(lake.storage), columns))
    assert came.num_rows
    assert went.num_rows


def test_defaults_stand_in_files_older_than_their_column(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    duck.run("CREATE TABLE t AS SELECT i AS a FROM range(9) r(i)")
    for kind, value in (
        ("VARCHAR", "it''s"), ("TIMESTAMP", "2020-01-02 03:04:05.6"), ("DATE", "1500-01-01"),
        ("TIMESTAMPTZ", "2020-01-02 03:04:05+00"), ("DECIMAL(9,2)", "1.25"), ("DOUBLE", "nan"),
        ("UUID", "12345678-1234-5678-1234-567812345678"), ("BOOLEAN", "true"),
        ("UBIGINT", "18446744073709551615"), ("TIME", "01:02:03"),
    ):  # fmt: skip
        name = kind.partition("(")[0].lower()
        duck.run(f"ALTER TABLE t ADD COLUMN c_{name} {kind} DEFAULT '{value}'")
    duck.run("INSERT INTO t (a) VALUES (100), (101)")
    duck.run("INSERT INTO t (a) SELECT * FROM range(200, 210)")
    assert_agree(spark, lake, duck, "t")


def test_files_that_are_mapped_by_name_follow_renames(
    spark: Any, lake: Catalog, duck: Duck, tmp_path: Path
) -> None:
    rows = pa.table({
        "A": pa.array([1, 2], pa.int32()), "s": pa.array([{"x": 1, "y": "a"}, None]),
        "l": pa.array([[{"z": 1}], [None]]), "m": pa.array([[("k", {"w": 1})], None],
        pa.map_(pa.string(), pa.struct([("w", pa.int64())]))),
    })  # fmt: skip
    pq.write_table(rows, tmp_path / "foreign.parquet")
    duck.run("CREATE TABLE t (a INTEGER, s STRUCT(x BIGINT, y VARCHAR), l STRUCT(z BIGINT)[], "
             "m MAP(VARCHAR, STRUCT(w BIGINT)))")  # fmt: skip
    duck.run(f"CALL ducklake_add_data_files('lake', 't', '{tmp_path}/foreign.parquet')")
    assert_agree(spark, lake, duck, "t")
    for change in (
        "RENAME COLUMN a TO aa", "RENAME COLUMN s.x TO xx", "ADD COLUMN s.q INTEGER",
        "DROP COLUMN s.y", "ADD COLUMN n INTEGER DEFAULT 3",
    ):  # fmt: skip
        duck.run(f"ALTER TABLE t {change}")
    duck.run("INSERT INTO t (aa) SELECT * FROM range(5)")
    assert_agree(spark, lake, duck, "t")


def test_a_reader_sees_its_snapshot_while_others_commit(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    duck.run("CREATE TABLE t AS SELECT i AS a FROM range(100) r(i)")
    frame = read_table(spark, lake.storage, lake.table_at("t"))
    for statement in (
        "INSERT INTO t SELECT * FROM range(1000, 1100)", "DELETE FROM t WHERE a < 50",
        "UPDATE t SET a = -a WHERE a > 1000", "ALTER TABLE t RENAME COLUMN a TO b",
        "DROP TABLE t",
    ):  # fmt: skip
        duck.run(statement)
        assert frame.agg({"a": "sum"}).collect()[0][0] == sum(range(100))


def test_no_character_of_a_path_is_a_pattern(spark: Any, tmp_path: Path) -> None:
    place = tmp_path / "a[1] {b,c} *? d%20\\e"
    with open_catalog(f"sqlite:{tmp_path}/odd.sqlite", str(place)) as lake:
        change = lake.begin()
        table = change.create_table(lake.schema("main"), "t", pa.schema([("a", pa.int64())]))
        change.add_files(table, [lake.write(table, pa.table({"a": [n, n]})) for n in range(3)])
        lake.commit(change)
        change, version = lake.begin(), lake.table_at("t")
        change.delete_rows(version.table, [FileRows(version.files[0], np.array([0], np.int64))])
        lake.commit(change)
        assert rows_of(read_table(spark, lake.storage, lake.table_at("t"))).num_rows == 5


def test_columns_are_chosen_by_name_in_any_case(spark: Any, lake: Catalog, duck: Duck) -> None:
    duck.run("CREATE TABLE t AS SELECT i AS a, 'x' AS \"B b\", i AS c FROM range(9) r(i)")
    version = lake.table_at("t")
    chosen = read_table(spark, lake.storage, version, ["b b", "A"])
    assert rows_of(chosen).column_names == ["B b", "a"]
    with pytest.raises(Rejected, match="found 'd'"):
        read_table(spark, lake.storage, version, ["d"])


def test_a_table_without_rows_has_its_columns(spark: Any, lake: Catalog, duck: Duck) -> None:
    duck.run("CREATE TABLE t (a INTEGER, b STRUCT(x DATE)[])")
    found = rows_of(read_table(spark, lake.storage, lake.table_at("t")))
    assert (found.num_rows, found.column_names) == (0, ["a", "b"])
