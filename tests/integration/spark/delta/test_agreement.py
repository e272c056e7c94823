"""Queries that Spark and the parser read in different ways are recomputed, and it is said why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.lake.catalog import Catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.integration.lake.duck import Duck
from tests.integration.spark.delta.shop import Shop
from tests.unit.tables.query.test_dialect import FUNCTIONS

SETUP = (
    "CREATE TABLE t (id INTEGER, k INTEGER, s VARCHAR, m MAP(VARCHAR, INTEGER))",
    """INSERT INTO t VALUES (1, 1, 'a', MAP {'q': 1, 'p': 2}), (2, 1, 'b', MAP {'q': 2, 'p': 2}),
    (3, NULL, 'A', NULL)""",
)
BATCHES = (
    ("INSERT INTO t (id, k, s) VALUES (4, 2, 'c'), (12, 1, 'a')", "DELETE FROM t WHERE id = 2"),
    ("UPDATE t SET s = upper(s)",),
)


def test_what_is_read_in_another_way_is_full_and_says_so(shop: Shop) -> None:
    """Maps where Spark cannot compare them."""
    shop.run(*SETUP)
    shop.create(
        "top",
        "SELECT id, map_keys(m) AS m, m AS whole FROM t ORDER BY id DESC LIMIT 2",
        duck="SELECT id, map_keys(m) AS m, m AS whole FROM t ORDER BY id DESC LIMIT 2",
    )
    shop.create("sizes", "SELECT size(m) AS n, count(*) AS c FROM (SELECT m FROM t GROUP BY m) "
                "GROUP BY 1", duck="SELECT cardinality(m) AS n, count(*) AS c "
                "FROM (SELECT m FROM t GROUP BY m) GROUP BY 1")  # fmt: skip
    shop.settle(executed=Mode.FULL)
    shop.run(*BATCHES[0])
    for record in shop.settle(executed=Mode.FULL).values():
        assert record.reason is ReasonCode.COMPILER_DISAGREES, record
        assert "Spark does not take the compiled" in record.reason_text


def test_what_the_parser_would_reword_follows_its_changes(shop: Shop) -> None:
    shop.run(*SETUP)
    shop.create(
        "formatted",
        "SELECT id, to_char(id, '000') AS x FROM t",
        duck="SELECT id, lpad(id::VARCHAR, 3, '0') AS x FROM t",
    )
    shop.create(
        "spelled",
        "SELECT id, struct(id AS MyId, s) AS x FROM t",
        duck="SELECT id, struct_pack(MyId := id, s := s) AS x FROM t",
    )
    shop.create(
        "quarter",
        """SELECT k, percentile_cont(0.25) WITHIN GROUP (ORDER BY id) AS q
                FROM t GROUP BY k""",
        duck="SELECT k, quantile_cont(id, 0.25) AS q FROM t GROUP BY k",
    )
    shop.create("of_all", "SELECT id, max_by(s, id) OVER (PARTITION BY k) AS x FROM t")  # fmt: skip
    shop.settle(executed=Mode.FULL)
    for batch in BATCHES:
        shop.run(*batch)
        shop.settle()


def test_texts_and_functions_mean_what_spark_takes_them_for(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE words (id INTEGER, s VARCHAR, d DATE)",
        """INSERT INTO words VALUES (1000, 'O''Brien', '2024-02-03'), (10, 'OBrien', '2023-12-31'),
        (100, 'a"b', '2024-02-03'), (1, NULL, NULL)""",
    )
    shop.create("brien", "SELECT id FROM words WHERE s = 'O''Brien'")
    shop.create("quoted", 'SELECT id FROM words WHERE s = "a""b"',
                duck="""SELECT id FROM words WHERE s = 'a"b'""")  # fmt: skip
    shop.create("beside", "SELECT id, 'O' 'Brien' = s AS x FROM words",
                duck="SELECT id, 'OBrien' = s AS x FROM words")  # fmt: skip
    shop.create("logs", "SELECT id, log10(id) AS x FROM words")
    shop.create("years", "SELECT id, date_format(d, 'y-D') AS x FROM words",
                duck="SELECT id, year(d) || '-' || dayofyear(d) AS x FROM words")  # fmt: skip
    shop.create("starts", "SELECT id, trunc(d, CASE WHEN id > 50 THEN 'year' ELSE 'mon' END) AS x "
                "FROM words", duck="SELECT id, date_trunc(CASE WHEN id > 50 THEN 'year' ELSE "
                "'month' END, d)::DATE AS x FROM words")  # fmt: skip
    shop.settle(executed=Mode.FULL)
    for batch in (
        ("INSERT INTO words VALUES (1001, 'O''Brien', '2024-12-31'), (11, 'OBrien', NULL)",),
        ("UPDATE words SET s = 'O''Brien' WHERE id = 10", "DELETE FROM words WHERE id = 1000"),
        ("UPDATE words SET id = 1000, d = '2025-03-01' WHERE id = 10",),
    ):
        shop.run(*batch)
        shop.settle()


def test_time_windows_are_keys_of_their_rows(shop: Shop) -> None:
    """Tumbling and sliding ones, and one that nothing uses; a row without a time has none."""
    shop.run(
        "CREATE TABLE ticks (id INTEGER, ts TIMESTAMPTZ, n INTEGER)",
        """INSERT INTO ticks VALUES (1, '2024-01-01 00:01:00Z', 5), (2, '2024-01-01 00:04:59Z', 7),
        (3, '2024-01-01 00:05:00Z', NULL), (4, NULL, 9), (5, '2024-01-01 00:09:00Z', 1)""",
    )
    bucket = "time_bucket(INTERVAL 5 MINUTE, ts)"
    shop.create(
        "tumbling",
        "SELECT window.start, window.end AS e, sum(n) AS s, count(*) AS c FROM ticks "
        "GROUP BY window(ts, '5 minutes') ORDER BY window.start",
        duck=f"SELECT {bucket}, {bucket} + INTERVAL 5 MINUTE, sum(n), count(*) FROM ticks "
        "WHERE ts IS NOT NULL GROUP BY ALL",
    )
    shop.create(
        "largest",
        "SELECT window(ts, '5 minutes').start AS w, max(n) AS m FROM ticks "
        "GROUP BY window(ts, '5 minutes') HAVING count(*) > 1",
        duck=f"SELECT {bucket} AS w, max(n) AS m FROM ticks WHERE ts IS NOT NULL GROUP BY w "
        "HAVING count(*) > 1",
    )
    sliding = (
        f"SELECT id, n, unnest([{bucket}, {bucket} - INTERVAL 5 MINUTE]) AS w FROM ticks "
        "WHERE ts IS NOT NULL"
    )
    shop.create(
        "sliding",
        "SELECT window.start AS w, sum(n) AS s FROM ticks "
        "GROUP BY window(ts, '10 minutes', '5 minutes')",
        duck=f"SELECT w, sum(n) AS s FROM ({sliding}) GROUP BY w",
    )
    shop.create(
        "copies",
        "SELECT id FROM (SELECT id, window(ts, '10 minutes', '5 minutes') AS w FROM ticks)",
        duck=f"SELECT id FROM ({sliding})",
    )
    shop.settle(executed=Mode.FULL)
    for batch in (
        ("INSERT INTO ticks VALUES (6, '2024-01-01 00:02:00Z', 2), (7, NULL, 3)",),
        ("UPDATE ticks SET ts = '2024-01-01 00:07:00Z' WHERE id IN (2, 4)",),
        ("DELETE FROM ticks WHERE id IN (1, 6)", "UPDATE ticks SET ts = NULL WHERE id = 5"),
    ):
        shop.run(*batch)
        shop.settle()


@contextmanager
def own_settings(
    embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck, **conf: str
) -> Iterator[Shop]:
    made = Shop(address, lake, duck, {"remote": embedded.url, "conf": conf})
    yield made
    made.close()


def test_settings_that_change_how_sql_is_read_make_it_full_and_are_named(
    embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck
) -> None:
    """Without ordinals `GROUP BY 1` is one group, whatever the first column is."""
    off = {"spark.sql.groupByOrdinal": "false"}
    with own_settings(embedded, address, lake, duck, **off) as shop:
        shop.run(*SETUP)
        shop.create("one", "SELECT count(*) AS n FROM t GROUP BY 1",
                    duck="SELECT count(*) AS n FROM t")  # fmt: skip
        shop.settle(executed=Mode.FULL)
        for batch in BATCHES:
            shop.run(*batch)
            record = shop.settle(executed=Mode.FULL)["one"]
            assert record.reason is ReasonCode.COMPILER_DISAGREES
            assert record.reason_text.endswith("but spark.sql.groupByOrdinal is false")


def test_sums_that_overflow_without_ansi_are_those_of_the_query(
    embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck
) -> None:
    """Then nothing is kept of them, and their groups are read again."""
    off = {"spark.sql.ansi.enabled": "false"}
    with own_settings(embedded, address, lake, duck, **off) as shop:
        shop.run(
            "CREATE TABLE t (k INTEGER, n BIGINT, x VARCHAR)",
            "INSERT INTO t VALUES (1, 9223372036854775800, '1'), (2, 5, 'no'), (2, 6, '7')",
            "INSERT INTO t VALUES (3, 9e18::BIGINT, '1'), (3, -9e18::BIGINT, '1')",
        )
        query = (
            "SELECT k, sum(n) AS s, round(var_pop(n) / 1e30) AS v, sum(CAST(x AS INT)) AS x FROM t "
            "GROUP BY k"
        )
        shop.warehouse.create("sums", query, mode="differential")
        shop.refresh("sums")
        for batch in (
            "INSERT INTO t VALUES (1, 100, 'x'), (2, NULL, 'y')",
            "UPDATE t SET n = n + 1 WHERE k = 2",
            "INSERT INTO t VALUES (3, 8e18::BIGINT, '2'), (3, -8e18::BIGINT, '3')",
            "DELETE FROM t WHERE n = 100",
        ):
            shop.run(batch)
            assert shop.refresh("sums")["sums"].executed is Mode.DIFFERENTIAL
            held = shop.contents("sums")
            assert shop.warehouse.refresh("sums", force=True).ok
            assert shop.contents("sums") == held


def test_a_row_with_a_map_is_found_whatever_the_order_of_its_entries(shop: Shop) -> None:
    """Spark sorts the entries where it adds up changes; the first load wrote them as they were."""
    shop.run(*SETUP)
    shop.warehouse.create("maps", "SELECT id, m FROM t WHERE id > 0", mode="differential")
    shop.refresh("maps")
    for batch in (*BATCHES, ("UPDATE t SET id = id + 100",)):
        shop.run(*batch)
        assert shop.refresh("maps")["maps"].reason is not ReasonCode.STATE_DISAGREES
        by_key = "SELECT id, m['p'] AS p, m['q'] AS q FROM {} ORDER BY id"
        assert shop.duck.rows(by_key.format("maps")) == shop.duck.rows(by_key.format("t"))
    assert shop.last("maps").executed is Mode.DIFFERENTIAL


def test_every_function_of_spark_is_known_to_the_test_of_the_parser(spark: Any) -> None:
    names = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    called = {name for name in names if name.replace("_", "").isalnum()}
    by_grammar = {"between", "case", "cast", "div", "extract", "in", "not", "when"}
    assert called - by_grammar <= set(FUNCTIONS)
