"""What Spark's tasks write is the table's: its columns by id, all its rows, and nothing beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.app.tables import Warehouse
from penstock.lake.catalog import Catalog
from penstock.lake.columns import Column, columns_of
from penstock.lake.footer import WrongFields, check_fields
from penstock.lake.storage import Storage, StoredFile
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.spark.lake import task_files
from penstock.spark.lake.task_files import FilesDiffer
from penstock.spark.lake.types import lake_schema
from penstock.spark.lake.writing import WriteOptions, write_table
from penstock.spark.options import SparkOptions
from penstock.spark.refresh import query_frame, shared
from tests.integration.lake.agree import bag
from tests.integration.lake.duck import Duck
from tests.integration.spark.agree import THERE, THERE_ONLY, assert_agree
from tests.integration.spark.one import WRITES
from tests.integration.spark.refreshing import refresh, versions

SOURCES = (
    """CREATE TABLE orders AS SELECT i AS id, i % 10 AS cust, 'c' || (i % 7) AS city,
        {'x': i, 'y': {'z': 'a' || i, 'f': i / 2}} AS s, i * 1.5::DOUBLE AS price
        FROM range(60) r(i)""",
    """CREATE TABLE items AS SELECT i AS id, i % 60 AS ord, i * 2 AS n, [{'q': i, 'r': 'l' || i}]
        AS l, MAP {'k': {'v': i}} AS m, {'y': {'f': 0.5::DOUBLE, 'z': 'b'}, 'x': -i} AS s
        FROM range(200) r(i)""",
)
BOTH = "FROM items i JOIN orders o ON i.ord = o.id"
QUERIES = (
    f"SELECT o.cust, i.id {BOTH}",
    f"SELECT o.city, i.id {BOTH}",
    f"SELECT i.n, o.id, i.id AS item, o.city, o.cust {BOTH}",
    "SELECT city, id FROM orders",
    "SELECT s, price, id FROM orders",
    f"SELECT o.s, i.s AS other, i.id {BOTH}",
    "SELECT s.y AS y, s.x AS x, struct(s AS inside, id AS id) AS around FROM orders",
    f"SELECT i.m, i.l, o.s, i.l[0] AS first, i.m['k'] AS v, i.id {BOTH}",
    "SELECT l, id FROM items",
    "SELECT city, max(id) AS id, first(cust) AS cust FROM orders GROUP BY city",
    "SELECT DISTINCT city, cust FROM orders",
    "SELECT cust, id FROM orders UNION ALL SELECT n, ord FROM items",
    "SELECT city, id FROM orders WHERE false UNION ALL SELECT city, id FROM orders",
    "SELECT price, city, id FROM orders ORDER BY city, id LIMIT 30",
    "SELECT city, row_number() OVER (PARTITION BY city ORDER BY id) AS id FROM orders",
    "SELECT n, count(*) AS id FROM items GROUP BY n HAVING count(*) > 0",
    "WITH o AS (SELECT cust AS id, id AS cust FROM orders) SELECT cust, id FROM o",
    "SELECT id AS city, city AS id FROM orders",
    "SELECT o.cust, o.id FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE i.ord = o.id)",
    "SELECT cust, explode(array(id, id)) AS id FROM orders",
    "SELECT 1 AS one, city, 'x' AS id, CAST(NULL AS STRING) AS none FROM orders",
    "SELECT 1 AS a, named_struct('x', 2, 'y', 'z') AS b",
    "SELECT 'k' AS city, 7L AS id UNION ALL SELECT city, id FROM orders",
    "SELECT city, id, 3 AS n FROM orders WHERE id = 5 ORDER BY n, id",
)


def sources(duck: Duck) -> None:
    for statement in SOURCES:
        duck.run(statement)


def by_spark(spark: Any, lake: Catalog, query: str) -> Any:
    return bag(query_frame(spark, lake, query, versions(lake, query)).toArrow())


@pytest.mark.parametrize("query", QUERIES)
def test_columns_that_pass_through_come_back_as_themselves(
    spark: Any, lake: Catalog, duck: Duck, query: str
) -> None:
    sources(duck)
    refresh(spark, lake, "made", query, collect_rows_max=-1, small_bytes=1)
    assert assert_agree(spark, lake, duck, "made") == by_spark(spark, lake, query)
    version = lake.table_at("made")
    for file in version.files:
        check_fields(pq.read_schema(file.path), version.table.columns, file.path)


@pytest.fixture
def warehouse(embedded: EmbeddedSpark, address: str, lake: Catalog) -> Iterator[Warehouse]:
    with shared(SparkOptions(remote=embedded.url)) as runner:
        options = {"runner": runner.name, "runner_options": runner.options}
        with Warehouse.open(address, lake.data_path, **options) as opened:
            yield opened


LARGE = (
    """CREATE TABLE orders AS SELECT i AS id, i % 1000 AS cust, 'c' || (i % 7) AS city,
        {'x': i, 'y': {'z': unhex(sha256('o' || i))}} AS s FROM range(250000) r(i)""",
    """CREATE TABLE items AS SELECT i AS id, i % 250000 AS ord, unhex(sha256('a' || i)) AS h
        FROM range(1000000) r(i)""",
)
LARGE_BOTH = "FROM items i JOIN orders o ON i.ord = o.id"


@pytest.mark.slow
@WRITES
@pytest.mark.parametrize(
    ("query", "rows", "is_one"),
    [
        (f"SELECT /*+ COALESCE(1) */ o.city, i.id {LARGE_BOTH} WHERE i.id < 200000", 200_000, True),
        (f"SELECT o.s, o.cust, i.h, i.id {LARGE_BOTH} WHERE i.id < 800000", 800_000, False),
    ],
)
def test_a_large_table_of_two_sources_is_its_query(
    lake: Catalog, duck: Duck, warehouse: Warehouse, query: str, rows: int, is_one: bool
) -> None:
    for statement in LARGE:
        duck.run(statement)
    warehouse.create("made", query)
    warehouse.refresh("made")
    files = lake.table_at("made").files
    assert all("part-" in file.path for file in files), "left as tasks wrote them"
    assert sum(file.record_count for file in files) == rows
    if is_one:
        assert len(files) == 1
    else:
        assert len(files) > 1
        assert min(file.size_bytes for file in files) >= WriteOptions().small_bytes
    digest = "SELECT sum(hash(t)::HUGEINT) FROM ({}) t"
    assert duck.value(digest.format("FROM made")) == duck.value(digest.format(query))
    ours = lake.scan("made").sort_by("id").slice(123_456, 1).to_pylist()
    assert ours == duck.rows("SELECT * FROM made WHERE id = 123456")


@WRITES
@pytest.mark.parametrize("options", [THERE, THERE_ONLY])
def test_a_planted_wrong_id_is_refused_and_nothing_stays(
    spark: Any, lake: Catalog, monkeypatch: pytest.MonkeyPatch, options: WriteOptions
) -> None:
    true = task_files.own_column

    def swapped(column: Column) -> Any:
        return true(column).alias(column.name, metadata={"parquet.field.id": 3 - column.id})

    monkeypatch.setattr(task_files, "own_column", swapped)
    change = lake.begin()
    frame = spark.sql("SELECT id AS a, id AS b FROM range(0, 10, 1, 2)")
    table = change.create_table(lake.schema("main"), "t", lake_schema(frame.schema))
    with pytest.raises(WrongFields, match=r"internal error: expected column 'a'.*field id 1") as e:
        write_table(lake.storage, table, frame, rows_expected=10, options=options)
    assert "found column 'a' (field id 2, int64)" in str(e.value)
    assert [path for path in Path(lake.data_path).rglob("*") if path.is_file()] == []


class Elsewhere(Storage):
    """A disk on which one of the files that tasks wrote is not."""

    def files(self, directory: str) -> Iterator[StoredFile]:
        found = sorted(super().files(directory), key=lambda stored: stored.path)
        yield from (stored for stored in found if "part-00001" not in stored.path)


@WRITES
@pytest.mark.parametrize("options", [THERE, THERE_ONLY])
def test_a_file_that_is_not_here_is_missed(
    spark: Any, lake: Catalog, options: WriteOptions
) -> None:
    change = lake.begin()
    frame = spark.sql("SELECT id FROM range(0, 30, 1, 3)")
    table = change.create_table(lake.schema("main"), "t", lake_schema(frame.schema))
    with pytest.raises(FilesDiffer, match=r"wrote 30 rows, but the 2 files of 2 tasks .* hold 20"):
        write_table(Elsewhere(lake.data_path), table, frame, rows_expected=30, options=options)


class Doubled(Storage):
    """A disk on which a task's file was left by an attempt that was given up, beside the other."""

    def files(self, directory: str) -> Iterator[StoredFile]:
        for stored in list(super().files(directory)):
            yield stored
            if "part-00000" in stored.path and stored.path.endswith(".parquet"):
                other = Path(stored.path).with_name("part-00000-again-c000.parquet")
                other.write_bytes(Path(stored.path).read_bytes())
                yield StoredFile(str(other), stored.size_bytes, stored.changed_at_ms)


@WRITES
def test_a_file_too_many_is_refused(spark: Any, lake: Catalog) -> None:
    change = lake.begin()
    frame = spark.sql("SELECT id FROM range(0, 30, 1, 3)")
    table = change.create_table(lake.schema("main"), "t", lake_schema(frame.schema))
    with pytest.raises(FilesDiffer, match=r"wrote 30 rows, but the 4 files of 3 tasks .* hold 40"):
        write_table(Doubled(lake.data_path), table, frame, rows_expected=30, options=THERE_ONLY)


@WRITES
@pytest.mark.parametrize("options", [THERE, THERE_ONLY])
def test_only_files_of_the_table_stay(spark: Any, lake: Catalog, options: WriteOptions) -> None:
    """Also where Hadoop leaves checksums, and a mark that it is done."""
    change = lake.begin()
    frame = spark.sql("SELECT id FROM range(0, 900, 1, 9) WHERE id NOT BETWEEN 100 AND 299")
    table = change.create_table(lake.schema("main"), "t", lake_schema(frame.schema))
    written = write_table(lake.storage, table, frame, rows_expected=900, options=options)
    left = [str(path) for path in Path(lake.data_path).rglob("*") if path.is_file()]
    assert sorted(left) == sorted(file.path for file in written.files)
    assert sum(file.record_count for file in written.files) == 700


class Stubborn(Storage):
    """A disk from which nothing can be removed."""

    def remove(self, path: str) -> bool:
        raise PermissionError(13, "Permission denied", path)


@WRITES
@pytest.mark.parametrize("options", [THERE, THERE_ONLY])
def test_what_cannot_be_tidied_up_fails_nothing(
    spark: Any, lake: Catalog, duck: Duck, options: WriteOptions
) -> None:
    change = lake.begin(reserve_ms=600_000)
    frame = spark.sql("SELECT id FROM range(0, 900, 1, 9)")
    table = change.create_table(lake.schema("main"), "t", lake_schema(frame.schema))
    written = write_table(
        Stubborn(lake.data_path), table, frame, token=change.token, rows_expected=900,
        options=options,
    )  # fmt: skip
    change.add_files(table, written.files)
    lake.commit(change)
    assert assert_agree(spark, lake, duck, "t").total() == 900


@WRITES
def test_names_that_spark_finds_hard_are_written(spark: Any, lake: Catalog, duck: Duck) -> None:
    frame = spark.sql(
        "SELECT id AS `a.b`, struct(id AS `x y`, 1 AS `Q``q`) AS `s s`, 'v' AS `Grün` "
        "FROM range(0, 20, 1, 2)"
    )
    change = lake.begin(reserve_ms=600_000)
    table = change.create_table(lake.schema("main"), "t", lake_schema(frame.schema))
    written = write_table(lake.storage, table, frame, token=change.token, rows_expected=20,
                          options=THERE_ONLY)  # fmt: skip
    change.add_files(table, written.files)
    lake.commit(change)
    assert assert_agree(spark, lake, duck, "t").total() == 20
    assert pa.schema([(c.name, pa.null()) for c in columns_of(lake.scan("t").schema)]).names == [
        "a.b", "s s", "Grün",
    ]  # fmt: skip
