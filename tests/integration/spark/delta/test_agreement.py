"""Queries that Spark and the parser read in different ways are recomputed, and it is said why."""

from __future__ import annotations

from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.integration.spark.delta.shop import Shop

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
    """An aggregate that the parser takes for a value, and maps where Spark cannot compare them."""
    shop.run(*SETUP)
    shop.create(
        "sketch",
        "SELECT kll_sketch_get_n_bigint(kll_sketch_agg_bigint(id)) AS n FROM t",
        duck="SELECT count(id) AS n FROM t",
    )
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
