"""Spark's rows become files of a table: few of them, with bounds that are true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.lake.expire import sweep
from penstock.spark.lake.writing import WriteOptions, write_table
from tests.integration.lake.duck import Duck
from tests.integration.spark.agree import THERE, THERE_ONLY, WAYS, assert_agree, store
from tests.integration.spark.one import WRITES

NUMBERS = """SELECT id AS n, double(id) / 2 AS f, if(id = 3, double('NaN'), double(id)) AS odd,
    concat('k', lpad(string(id), 4, '0')) AS k, date_add(date'1500-01-01', int(id)) AS day,
    cast(id AS decimal(12,2)) AS de, named_struct('x', id, 'f', float(id)) AS s
    FROM range(0, 400, 1, 2)"""


@WAYS
def test_bounds_in_the_catalog_are_those_of_the_rows(
    spark: Any, lake: Catalog, options: WriteOptions
) -> None:
    table = store(spark, lake, "t", spark.sql(NUMBERS), options)
    ids = {column.name: column.id for column in table.columns}
    found = {
        row[0]: row[1:]
        for row in lake.query(
            "SELECT column_id, min_value, max_value, contains_null "
            "FROM ducklake_table_column_stats WHERE table_id = ?",
            (table.id,),
        )
    }
    assert found[ids["n"]][:2] == ("0", "399")
    assert found[ids["k"]][:2] == ("k0000", "k0399")
    assert found[ids["day"]][:2] == ("1500-01-01", "1501-02-04")
    assert found[ids["de"]][:2] == ("0.00", "399.00")
    assert found[ids["odd"]][:2] == (None, None)


@WAYS
def test_no_filter_of_duckdb_misses_a_row(
    spark: Any, lake: Catalog, duck: Duck, options: WriteOptions
) -> None:
    store(spark, lake, "t", spark.sql(NUMBERS), options)
    for condition, count in (
        ("n < 10", 10), ("n = 399", 1), ("odd > 399", 1), ("odd >= 399", 2), ("f > 199", 1),
        ("isnan(odd)", 1), ("k = 'k0200'", 1), ("day = '1501-02-04'", 1), ("de > 398.5", 1),
        ("s.x >= 398", 2), ("s.f > 398.5", 1),
    ):  # fmt: skip
        assert duck.value(f"SELECT count(*) FROM t WHERE {condition}") == count, condition


@WRITES
def test_a_small_result_is_one_file_and_a_large_one_is_written_by_tasks(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    small = store(spark, lake, "small", spark.sql(NUMBERS))
    (file,) = lake.table_at(small).files
    assert (file.record_count, file.mapping_id) == (400, None)
    large = spark.sql("SELECT id, uuid() AS u FROM range(0, 60000, 1, 3)")
    limits = WriteOptions(collect_bytes_max=100_000, small_bytes=1_000)
    store(spark, lake, "large", large, limits)
    files = lake.table_at("large").files
    assert [f.record_count for f in files] == [20_000] * 3
    assert len({str(Path(f.path).parent) for f in files}) == 1
    assert assert_agree(spark, lake, duck, "large").total() == 60_000


@WRITES
def test_small_files_of_many_tasks_are_put_together_before_anybody_sees_them(
    spark: Any, lake: Catalog
) -> None:
    table = store(spark, lake, "t", spark.sql("SELECT id FROM range(0, 900, 1, 9)"), THERE)
    (file,) = lake.table_at(table).files
    assert file.record_count == 900
    left = sorted(str(path) for path in Path(lake.data_path).rglob("*"))
    assert [path for path in left if path.endswith(".parquet")] == [file.path]
    assert [path for path in left if "part-" in path] == []
    assert [path for path in Path(lake.data_path).rglob("penstock-*") if path.is_dir()] == []


@pytest.mark.parametrize("options", [WriteOptions(), THERE])
def test_no_rows_are_no_files(spark: Any, lake: Catalog, options: WriteOptions) -> None:
    table = store(spark, lake, "t", spark.sql("SELECT id FROM range(10) WHERE id > 99"), options)
    assert lake.table_at(table).files == ()
    assert lake.scan("t").num_rows == 0


@pytest.mark.parametrize("options", [WriteOptions(), THERE])
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT 1L AS a", "found a"),
        ("SELECT 1L AS a, 'x' AS b, 2 AS c", "found a, b, c"),
        ("SELECT 1L AS a, 2 AS b", "column 'b'"),
        ("SELECT 1 AS a, 'x' AS b", "column 'a'"),
        ("SELECT 1L AS a, CAST(NULL AS STRING) AS b", "column 'b' has 1 NULLs"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    spark: Any, lake: Catalog, options: WriteOptions, query: str, found: str
) -> None:
    change = lake.begin()
    columns = pa.schema([("a", pa.int64()), pa.field("b", pa.string(), nullable=False)])
    table = change.create_table(lake.schema("main"), "t", columns)
    with pytest.raises(Rejected, match=found):
        write_table(lake.storage, table, spark.sql(query), options=options)


@WRITES
def test_names_fit_in_any_case_and_order(spark: Any, lake: Catalog, duck: Duck) -> None:
    change = lake.begin()
    columns = pa.schema([("Aa", pa.int64()), ("b b", pa.string())])
    table = change.create_table(lake.schema("main"), "t", columns)
    for options in (WriteOptions(), THERE_ONLY):
        frame = spark.sql("SELECT 'x' AS `B b`, 1L AS aA")
        change.add_files(table, write_table(lake.storage, table, frame, options=options).files)
    lake.commit(change)
    assert assert_agree(spark, lake, duck, "t") == {"[('Aa', 1), ('b b', 'x')]": 2}


@WRITES
def test_files_that_were_never_committed_are_swept_and_reserved_ones_are_not(
    spark: Any, lake: Catalog
) -> None:
    table = store(spark, lake, "t", spark.sql(NUMBERS))
    frame = spark.sql("SELECT * FROM range(10)")
    change = lake.begin(reserve_ms=600_000)
    other = change.create_table(lake.schema("main"), "u", pa.schema([("id", pa.int64())]))
    kept = write_table(lake.storage, other, frame, token=change.token, options=THERE_ONLY)
    lost = write_table(lake.storage, other, frame, options=THERE_ONLY)
    assert sorted(sweep(lake, grace_ms=-1_000)) == sorted(file.path for file in lost.files)
    change.add_files(other, kept.files)
    lake.commit(change)
    assert lake.scan("u").num_rows == 10
    assert lake.scan(table).num_rows == 400
