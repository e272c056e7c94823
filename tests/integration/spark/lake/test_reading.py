"""Spark reads a snapshot just as it is: inserts, deletes, rows in the catalog, alterations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog, open_catalog
from penstock.lake.compact import CompactionPolicy, compact
from penstock.lake.model import TableVersion
from penstock.lake.selection import FileRows
from penstock.spark.lake.reading import read_deleted, read_inserted, read_table
from penstock.spark.lake.types import for_spark
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
    done = compact(lake, "t", CompactionPolicy(files_min=2, deleted_share_min=0.01))
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


@pytest.mark.parametrize("each", [20, 200])  # 60 places are part of the query, 600 a table
@pytest.mark.parametrize("is_most", [False, True])
def test_rows_are_left_out_of_files_of_one_size_and_of_others(
    spark: Any, lake: Catalog, each: int, is_most: bool
) -> None:
    one, other = (pa.table({"a": range(0, 20 * each, step)}) for step in (1, 2))
    change = lake.begin()
    table = change.create_table(lake.schema("main"), "t", one.schema)
    change.add_files(table, [lake.write(table, rows) for rows in (one, one, other)])
    lake.commit(change)
    whole = lake.table_at("t")
    sizes = [file.size_bytes for file in whole.files]
    assert sizes[0] == sizes[1] != sizes[2]
    gone = np.arange(0, 19 * each) if is_most else np.arange(0, each)
    change = lake.begin()
    change.delete_rows(
        whole.table, [FileRows(f, gone[gone < f.record_count - 1]) for f in whole.files]
    )
    lake.commit(change)
    version = lake.table_at("t")
    assert bag(rows_of(read_table(spark, lake.storage, version))) == bag(lake.scan("t"))
    huge = [replace(file, size_bytes=(1 << 31) + at) for at, file in enumerate(version.files)]
    by_name = read_table(spark, lake.storage, replace(version, files=tuple(huge)))
    assert bag(rows_of(by_name)) == bag(lake.scan("t")), "sizes beyond what a number holds"


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
    with pytest.raises(Rejected, match="there is no column 'd'"):
        read_table(spark, lake.storage, version, ["d"])


def test_a_table_without_rows_has_its_columns(spark: Any, lake: Catalog, duck: Duck) -> None:
    duck.run("CREATE TABLE t (a INTEGER, b STRUCT(x DATE)[])")
    found = rows_of(read_table(spark, lake.storage, lake.table_at("t")))
    assert (found.num_rows, found.column_names) == (0, ["a", "b"])


NAMES = (
    "plain", "my file", "a%20b", "a#b", "a?b", "a+b&c=d", "ü\u2003x", "a[1]{2}*", "a'b\"c", "a\\b",
)  # fmt: skip


@pytest.mark.parametrize("deleted", [(0, 1), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_rows_deleted_from_files_of_any_name_are_gone_and_no_others(
    spark: Any, lake: Catalog, tmp_path: Path, deleted: tuple[int, ...]
) -> None:
    version = _with_files(lake, tmp_path, NAMES)
    assert rows_of(read_table(spark, lake.storage, version)).num_rows == 10 * len(NAMES)
    change = lake.begin()
    gone = [FileRows(file, np.array(deleted, np.int64)) for file in version.files]
    change.delete_rows(version.table, gone)
    lake.commit(change)
    assert bag(rows_of(read_table(spark, lake.storage, lake.table_at("t")))) == bag(lake.scan("t"))


@pytest.mark.parametrize("name", ["_hidden", ".hidden", "a:b"])
def test_a_file_that_spark_would_not_see_is_refused(
    spark: Any, lake: Catalog, tmp_path: Path, name: str
) -> None:
    version = _with_files(lake, tmp_path, [name])
    with pytest.raises(Rejected, match=f"{name}.parquet"):
        read_table(spark, lake.storage, version)


@pytest.mark.parametrize("deleted", [1, 300])
def test_a_column_may_have_the_name_of_sparks_own(spark: Any, lake: Catalog, deleted: int) -> None:
    rows = pa.table({"_metadata": range(700), "b": range(700)})
    change = lake.begin()
    table = change.create_table(lake.schema("main"), "t", rows.schema)
    change.add_files(table, [lake.write(table, rows)])
    lake.commit(change)
    version, change = lake.table_at("t"), lake.begin()
    change.delete_rows(version.table, [FileRows(version.files[0], np.arange(deleted))])
    lake.commit(change)
    assert bag(rows_of(read_table(spark, lake.storage, lake.table_at("t")))) == bag(lake.scan("t"))


def _with_files(lake: Catalog, home: Path, names: Iterable[str]) -> TableVersion:
    """A table of files that another tool named, ten rows in each."""
    change = lake.begin()
    change.create_table(lake.schema("main"), "t", pa.schema([("a", pa.int64())]))
    lake.commit(change)
    table, change = lake.table("t"), lake.begin()
    for number, name in enumerate(names):
        path = home / "theirs" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"a": range(number * 10, number * 10 + 10)}), path)
        change.add_files(table, [lake.describe(table, str(path))])
    lake.commit(change)
    return lake.table_at("t")
