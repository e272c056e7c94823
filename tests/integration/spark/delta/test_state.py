"""Aggregates kept as sums and counts: what is stored belongs to the contents, or is made again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, Status
from tests.integration.lake.agree import bag
from tests.integration.spark.delta.shop import Shop

ORDERS = """CREATE TABLE orders AS SELECT i AS id, CASE WHEN i % 11 > 0 THEN i % 7 END AS customer,
    (i * 3 % 50)::INTEGER AS amount, ((i * 7 % 100) / 4.0)::DECIMAL(10, 2) AS price,
    (i / 7.0)::DECIMAL(18, 6) AS long,
    CASE WHEN i % 6 > 0 THEN 'w' || (i % 5) END AS word FROM range(400) r(i)"""
VIEWS = {
    "sums": """SELECT customer, count(*) AS n, count(word) AS words, sum(amount) AS total,
        sum(price) AS worth, avg(amount) AS mean FROM orders GROUP BY customer""",
    "spread": """SELECT customer, round(stddev(amount), 6) AS a, round(var_pop(price), 6) AS b,
        round(covar_samp(amount, price), 6) AS c, CAST(avg(long) AS DECIMAL(22, 8)) AS d,
        sum(long) AS e FROM orders GROUP BY customer""",
    "ends": "SELECT customer, min(amount) AS low, max(word) AS last FROM orders GROUP BY customer",
    "whole": "SELECT count(*) AS n, sum(price) AS worth, max(amount) AS most FROM orders",
    "big": """SELECT word, sum(amount) AS total FROM orders WHERE amount > 5 GROUP BY word
        HAVING count(*) > 20""",
    "kinds": "SELECT DISTINCT word, amount % 3 AS m FROM orders",
}


def build(shop: Shop) -> None:
    shop.run(ORDERS)
    for name, query in VIEWS.items():
        shop.create(name, query)
    shop.settle(executed=Mode.FULL)


def change(shop: Shop, random: Random) -> None:
    low = random.randrange(400)
    shop.run(
        f"DELETE FROM orders WHERE id BETWEEN {low} AND {low + 20}",
        f"UPDATE orders SET amount = amount + {random.randrange(9)}, price = -price "
        f"WHERE id % 17 = {random.randrange(17)}",
        f"UPDATE orders SET customer = {random.randrange(9)}, word = NULL "
        f"WHERE id % 23 = {random.randrange(23)}",
        f"INSERT INTO orders SELECT {random.randrange(10_000)} + i, i % 9, i % 60, i, i / 3, "
        f"'w' || i FROM range({random.randrange(30)}) r(i)",
    )


def test_stored_aggregates_follow_their_changes_and_read_no_input(shop: Shop) -> None:
    build(shop)
    random = Random(4)
    for batch in range(3):
        change(shop, random)
        made = shop.settle()
        if batch:
            held = shop.duck.value("SELECT count(*) FROM orders")
            assert made["sums"].rows_read < held, "only the changed rows"
            assert made["sums"].choice["workload"]["delta_read_rows"] == 0
    shop.run("DELETE FROM orders")
    shop.settle()
    shop.run(ORDERS.replace("CREATE TABLE orders AS", "INSERT INTO orders"))
    shop.settle()


@pytest.mark.slow
def test_what_is_stored_is_what_it_would_be_if_it_were_made_again(shop: Shop) -> None:
    build(shop)
    random = Random(5)
    for _ in range(3):
        change(shop, random)
        shop.settle()
    held = bag(shop.lake.scan("penstock_state.sums"))
    shop.warehouse.refresh("sums", force=True)
    shop.run("INSERT INTO orders VALUES (9999, 5, 47, 23.25, 1.5, 'w4')")
    made = shop.settle()["sums"]
    assert made.rows_read > 300, "filled from the inputs, because the last refresh was a full one"
    shop.run("DELETE FROM orders WHERE id = 9999")
    shop.settle()
    assert bag(shop.lake.scan("penstock_state.sums")) == held


@pytest.mark.slow
def test_a_state_that_is_lost_is_made_again_and_goes_with_its_table(shop: Shop) -> None:
    build(shop)
    for number in (1, 2):
        shop.run(f"DELETE FROM orders WHERE id = {number}")
        shop.settle()
    for file in shop.lake.table_at("penstock_state.sums").files:
        Path(file.path).unlink()
    shop.run("CREATE TABLE other AS SELECT 1 AS n", "DELETE FROM orders WHERE id = 3")
    fresh = Shop(shop.address, shop.lake, shop.duck, {**shop.options, "cache_dir": shop.scratch})
    try:
        assert fresh.warehouse.refresh("sums").ok
        made = fresh.last("sums")
        assert (made.executed, made.reason) == (Mode.FULL, ReasonCode.STATE_LOST)
    finally:
        fresh.close()
    shop.check("sums")
    shop.run("DELETE FROM orders WHERE id = 4")
    shop.settle()
    shop.warehouse.drop("sums")
    assert "sums" not in {t.name for t in shop.lake.tables() if t.schema.name == "penstock_state"}


def test_a_sum_that_overflows_is_the_error_of_the_query(shop: Shop) -> None:
    """Sums are kept in wider types; what the query cannot have, the table has not either."""
    shop.run("CREATE TABLE large (k INTEGER, n BIGINT)",
             f"INSERT INTO large VALUES (1, {2**63 - 2}), (2, 1)")  # fmt: skip
    shop.create("totals", "SELECT k, sum(n) AS n FROM large GROUP BY k")
    shop.settle(executed=Mode.FULL)
    shop.run("INSERT INTO large VALUES (2, 5)")
    shop.settle()
    before, at = shop.contents("totals"), shop.lake.table_at("totals").snapshot.id
    shop.run("INSERT INTO large VALUES (1, 100)")
    answer = shop.warehouse.refresh("totals")
    assert not answer.ok
    assert "overflow. Use 'try_add'" in answer.detail, "as the whole query says it"
    assert shop.warehouse.table("totals").status is Status.ERROR
    assert shop.contents("totals") == before
    assert shop.lake.table_at("totals", at).files == shop.lake.table_at("totals").files
    shop.run("DELETE FROM large WHERE n = 100")
    shop.warehouse.resume("totals")
    shop.settle()
