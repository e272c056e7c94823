"""Every type that Spark and the lake share, there and back, at its edges."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException

from penstock.lake.catalog import Catalog
from penstock.spark.errors import UnsharedType
from penstock.spark.lake.reading import read_table
from penstock.spark.lake.writing import WriteOptions, write_table
from tests.integration.lake.agree import bag
from tests.integration.lake.duck import Duck
from tests.integration.lake.test_duckdb_writes import EVERY_TYPE
from tests.integration.spark.agree import THERE, WAYS, assert_agree, rows_of, store
from tests.integration.spark.one import WRITES

SHARED = """
SELECT * FROM VALUES
  (1, true, 1Y, 300S, 9223372036854775807L, float(1.5), double('NaN'),
   cast(1.25 as decimal(9,2)), cast('99999999999999999999999999999999999.999' as decimal(38,3)),
   date'0001-01-01', timestamp_ntz'0001-01-01 00:00:00', timestamp'0001-01-01 00:00:00Z',
   'it''s "q", {x}', X'00FF61', array(1, NULL, 3),
   named_struct('x', 1, 'y', array('a', NULL)), map('k', 1.5D, 'n', NULL),
   array(named_struct('z', 1), NULL), map('m', map(1, named_struct('d', date'1582-10-14')))),
  (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   NULL, NULL, NULL),
  (3, false, -128Y, -32768S, -9223372036854775808L, float('-Infinity'), double('-0.0'),
   cast(-9999999.99 as decimal(9,2)), cast(-0.001 as decimal(38,3)),
   date'1582-10-04', timestamp_ntz'1582-10-10 12:34:56.123456',
   timestamp'1499-12-31 23:59:59.999999Z', '', X'', array(), named_struct('x', NULL, 'y', array()),
   map(), array(), map()),
  (4, true, 127Y, 32767S, 0L, float('NaN'), double('Infinity'), 0.00, 0.000,
   date'9999-12-31', timestamp_ntz'9999-12-31 23:59:59.999999',
   timestamp'1969-12-31 23:59:59.999999Z', 'ümläut 😀', X'F0', array(NULL),
   named_struct('x', 2, 'y', NULL), map('', 0D), array(named_struct('z', NULL)),
   map('e', NULL))
AS t(n, flag, i8, i16, i64, f32, f64, de, big, day, ts, tz, text, raw, list, record, map, deep,
     deeper)"""


@WAYS
def test_what_spark_writes_of_every_type_is_what_everybody_reads(
    spark: Any, lake: Catalog, duck: Duck, options: WriteOptions
) -> None:
    frame = spark.sql(SHARED)
    store(spark, lake, "t", frame, options)
    found = assert_agree(spark, lake, duck, "t")
    assert found == bag(rows_of(frame))
    assert found.total() == 4


def test_what_duckdb_writes_of_every_type_spark_reads(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    more = """uuid() AS u, 4::UINTEGER AS u32, 255::UTINYINT AS u8, 65535::USMALLINT AS u16,
        5::HUGEINT AS huge,
        '1969-12-31 23:59:59.123456789'::TIMESTAMP_NS AS ns, '12:34:56+00'::TIMETZ AS clock_tz"""
    duck.run(f"CREATE TABLE inlined AS SELECT *, {more} FROM ({EVERY_TYPE})")
    duck.run("CALL lake.set_option('data_inlining_row_limit', 0)")
    duck.run("CREATE TABLE filed AS SELECT * FROM inlined")
    assert lake.table_at("inlined").inlined.rows.num_rows == 3
    assert lake.table_at("filed").inlined.rows.num_rows == 0
    inlined = assert_agree(spark, lake, duck, "inlined")
    assert assert_agree(spark, lake, duck, "filed") == inlined
    duck.run("CREATE TABLE deep AS SELECT [uuid(), NULL] AS us, {'u': uuid()} AS su, "
             "MAP {uuid(): ['2020-01-01'::TIMESTAMP_NS]} AS mu FROM range(2)")  # fmt: skip
    assert assert_agree(spark, lake, duck, "deep").total() == 2


@WRITES
def test_spark_writes_into_tables_of_types_it_does_not_have(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    duck.run("CREATE TABLE t (u UUID, n UBIGINT, s TIMESTAMP_S, c TIME, m TIMESTAMP_MS)")
    duck.run("INSERT INTO t SELECT uuid(), 18446744073709551615, '2020-01-01', '01:02:03', "
             "'2020-01-01 00:00:00.123' FROM range(4)")  # fmt: skip
    frame = read_table(spark, lake.storage, lake.table_at("t"))
    change = lake.begin()
    written = write_table(lake.storage, lake.table("t"), frame, options=THERE)
    change.add_files(lake.table("t"), written.files)
    lake.commit(change)
    found = assert_agree(spark, lake, duck, "t")
    assert sorted(found.values()) == [2, 2, 2, 2]


def test_a_type_that_only_one_side_has_is_refused_by_name(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    duck.run("CREATE TABLE t AS SELECT 1 AS n, INTERVAL 3 DAY AS span")
    whole = read_table(spark, lake.storage, lake.table_at("t"))
    assert rows_of(whole.select("n")).to_pylist() == [{"n": 1}]
    with pytest.raises(PySparkException, match="'span' has the type INTERVAL"):
        rows_of(whole)
    kept = read_table(spark, lake.storage, lake.table_at("t"), ["n"])
    assert rows_of(kept).to_pylist() == [{"n": 1}]
    with pytest.raises(UnsharedType, match="'gap'"):
        store(spark, lake, "u", spark.sql("SELECT INTERVAL '1' DAY AS gap"))
    with pytest.raises(UnsharedType, match="CAST"):
        store(spark, lake, "u", spark.sql("SELECT NULL AS nothing"))
