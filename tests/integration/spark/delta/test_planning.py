"""Tables of files and of rows in the catalog, which Spark plans as unions."""

from __future__ import annotations

from penstock.tables.core.model import Mode
from tests.integration.spark.delta.shop import Shop

QUERY = "SELECT id, (SELECT count(*) FROM u WHERE u.k = t.k) AS c FROM t"


def test_a_subquery_beside_columns_of_a_union_is_planned(shop: Shop) -> None:
    """Spark's optimizer fails on it, in full refreshes, queries and comparisons."""
    shop.run(
        "CREATE TABLE t AS SELECT i AS id, i % 5 AS k FROM range(20) r(i)",
        "CREATE TABLE u AS SELECT i % 4 AS k FROM range(10) r(i)",
        "INSERT INTO t VALUES (20, 1)",
    )
    shop.create("whole", QUERY, mode="full")
    shop.create("changes", QUERY)
    shop.settle(executed=Mode.FULL)
    shop.run("INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (21, NULL)")
    shop.settle("whole", executed=Mode.FULL)
    shop.settle("changes")
    assert shop.warehouse.query(QUERY).num_rows == 22
    assert shop.warehouse.verify("changes").is_same
