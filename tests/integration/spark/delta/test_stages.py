"""Inner aggregates as tables of their own: they follow, are dropped, and are made again if lost."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.integration.lake.agree import bag
from tests.integration.spark.delta.shop import Shop
from tests.integration.spark.delta.test_state import ORDERS, change

BY_CUSTOMER = "SELECT customer, sum(amount) AS s, count(*) AS n FROM orders GROUP BY customer"
VIEWS = {
    "sizes": f"SELECT s, count(*) AS m FROM ({BY_CUSTOMER}) x GROUP BY s",
    "above": """SELECT id FROM orders o WHERE amount >
        (SELECT avg(amount) FROM orders b WHERE b.customer = o.customer)""",
    "best": f"WITH x AS ({BY_CUSTOMER}) SELECT customer FROM x WHERE s = (SELECT max(s) FROM x)",
    "rolled": """SELECT customer, word, sum(price) AS worth, min(amount) AS low FROM orders
        GROUP BY ROLLUP(customer, word)""",
}
FOR_DUCKDB = {"rolled": f"{VIEWS['rolled']} HAVING count(*) > 0"}
"""Over nothing Spark's ROLLUP has no rows, DuckDB's has the row of the grand total."""
STAGES = {"sizes": 1, "above": 1, "best": 2, "rolled": 3}


def build(shop: Shop, *names: str) -> None:
    shop.run(ORDERS)
    for name in names or VIEWS:
        shop.create(name, VIEWS[name], duck=FOR_DUCKDB.get(name))
    shop.settle(executed=Mode.FULL)


def stages_of(shop: Shop, name: str) -> list[str]:
    stored = (t.name for t in shop.lake.tables() if t.schema.name == "penstock_state")
    return sorted(table for table in stored if table.startswith(f"{name}$$"))


@pytest.mark.slow
def test_inner_aggregates_follow_their_changes(shop: Shop) -> None:
    build(shop)
    random = Random(6)
    for batch in range(3):
        change(shop, random)
        made = shop.settle()
        assert {name: len(stages_of(shop, name)) for name in VIEWS} == STAGES
        if batch:
            held = shop.duck.value("SELECT count(*) FROM orders")
            assert made["sizes"].rows_read < held, "the changed rows, and groups"
    shop.run("DELETE FROM orders")
    shop.settle()
    assert not shop.contents("rolled")
    shop.run(ORDERS.replace("CREATE TABLE orders AS", "INSERT INTO orders"))
    shop.settle()
    shown = shop.warehouse.explain("sizes")
    assert set(shown["state_tables"]) == {
        "penstock_state.sizes", f"penstock_state.{stages_of(shop, 'sizes')[0]}"
    }  # fmt: skip


def test_what_is_stored_of_a_stage_is_what_filling_it_gives(shop: Shop) -> None:
    build(shop, "sizes")
    random = Random(8)
    for _ in range(2):
        change(shop, random)
        shop.settle()
    (stage,) = stages_of(shop, "sizes")
    held = bag(shop.lake.scan(f"penstock_state.{stage}"))
    shop.warehouse.refresh("sizes", force=True)
    shop.run("INSERT INTO orders VALUES (9999, 5, 47, 23.25, 1.5, 'w4')")
    shop.settle()
    shop.run("DELETE FROM orders WHERE id = 9999")
    shop.settle()
    assert bag(shop.lake.scan(f"penstock_state.{stage}")) == held


def test_a_stage_that_is_lost_is_made_again_and_goes_with_its_query(shop: Shop) -> None:
    build(shop, "sizes")
    shop.run("DELETE FROM orders WHERE id = 1")
    shop.settle()
    (stage,) = stages_of(shop, "sizes")
    for file in shop.lake.table_at(f"penstock_state.{stage}").files:
        Path(file.path).unlink()
    shop.run("DELETE FROM orders WHERE id = 3")
    fresh = Shop(shop.address, shop.lake, shop.duck, {**shop.options, "cache_dir": shop.scratch})
    try:
        assert fresh.warehouse.refresh("sizes").ok
        made = fresh.last("sizes")
        assert (made.executed, made.reason) == (Mode.FULL, ReasonCode.STATE_LOST)
    finally:
        fresh.close()
    shop.check("sizes")
    shop.run("DELETE FROM orders WHERE id = 4")
    shop.settle()
    assert stages_of(shop, "sizes") == [stage]
    shop.warehouse.create_or_replace("sizes", VIEWS["above"], mode="differential")
    assert stages_of(shop, "sizes") == []
    shop.asked["sizes"] = VIEWS["above"]
    shop.settle(executed=Mode.FULL)
    shop.run("DELETE FROM orders WHERE id = 5")
    shop.settle()
    assert len(stages_of(shop, "sizes")) == 1
    shop.warehouse.drop("sizes")
    assert stages_of(shop, "sizes") == []
