"""The change feed: what a refresh changed is what its readers read, for as long as they need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.lake.feed import feed_paths
from penstock.tables.coordinator.upkeep import forget_feeds
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from penstock.tables.store import TableStore
from tests.integration.spark.delta.shop import Shop

CHAIN = {
    "one": "SELECT id, customer, amount FROM orders WHERE amount > 3",
    "two": "SELECT customer, count(*) AS n, max(amount) AS most FROM one GROUP BY customer",
    "three": "SELECT t.customer, t.n, c.name FROM two t JOIN customer c ON c.id = t.customer",
    "four": "SELECT n, count(*) AS names FROM three GROUP BY n",
    "five": "SELECT sum(n * names) AS total FROM four",
}
TABLES = (
    """CREATE TABLE orders AS SELECT i AS id, i % 7 AS customer, (i * 3 % 50)::INTEGER AS amount
        FROM range(300) r(i)""",
    "CREATE TABLE customer AS SELECT i AS id, 'c' || i AS name FROM range(6) r(i)",
)
BATCHES = (
    ("UPDATE orders SET amount = amount + 100 WHERE id % 40 = 3",),
    ("DELETE FROM orders WHERE customer = 3", "INSERT INTO customer VALUES (6, 'new')"),
    ("INSERT INTO orders SELECT 1000 + i, i % 7, i FROM range(20) r(i)",
     "CALL ducklake_flush_inlined_data('lake')", "CALL ducklake_merge_adjacent_files('lake')"),
    ("UPDATE orders SET customer = 3 WHERE id < 20", "DELETE FROM customer WHERE id = 1",
     "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)"),
    ("UPDATE customer SET name = 'x'", "DELETE FROM orders WHERE id % 2 = 0"),
)  # fmt: skip


def build(shop: Shop, **modes: str) -> None:
    shop.run(*TABLES)
    for name, query in CHAIN.items():
        shop.create(name, query, mode=modes.get(name, "differential"))
    shop.settle(executed=Mode.FULL)


@pytest.mark.slow
@pytest.mark.parametrize("full", ["", "three"])
def test_a_chain_of_five_follows_its_sources(shop: Shop, full: str) -> None:
    build(shop, **{full: "full"} if full else {})
    seen = {record.job_id for record in shop.warehouse.history()}
    for batch in BATCHES:
        shop.run(*batch)
        shop.settle(executed=None)
    made = [record for record in shop.warehouse.history() if record.job_id not in seen]
    by_full = {record.table for record in made if record.executed is Mode.FULL}
    assert by_full == ({full} if full else set()), [
        (r.table, r.reason, r.reason_text) for r in made if r.executed is Mode.FULL
    ]
    assert {record.table for record in made} == set(CHAIN), "each had to follow at least once"


def test_readers_read_the_feed_and_not_the_history(shop: Shop) -> None:
    build(shop)
    shop.run("DELETE FROM orders WHERE id IN (7, 8)")
    made = shop.settle()
    assert made["one"].rows_read == 2
    # The old rows of one, once, and the two that left; Spark counts rows of constants as well.
    assert 276 + 2 <= made["two"].rows_read <= 276 + 4
    question = "SELECT row_count FROM penstock_lake_feeds WHERE table_id = ?"
    assert shop.lake.query(question, (shop.lake.table("one").id,)) == [(2,)]


def test_a_feed_that_is_missing_is_state_lost_once(shop: Shop) -> None:
    build(shop)
    shop.run("DELETE FROM orders WHERE id = 7")
    shop.refresh("one")
    with shop.lake.look() as reader:
        (path,) = feed_paths(reader)
    Path(path).unlink()
    made = shop.refresh("two")["two"]
    assert (made.executed, made.reason) == (Mode.FULL, ReasonCode.STATE_LOST)
    assert path in made.reason_text
    shop.settle(executed=None)
    shop.run("DELETE FROM orders WHERE id = 8")
    shop.settle()


def test_feeds_are_kept_until_all_readers_have_passed_them(shop: Shop) -> None:
    build(shop)
    store = TableStore(shop.lake)

    def listed(name: str) -> int:
        number = shop.lake.table(name).id
        question = "SELECT count(*) FROM penstock_lake_feeds WHERE table_id = ?"
        return int(shop.lake.query(question, (number,))[0][0])

    for number in (7, 8, 9):
        shop.run(f"DELETE FROM orders WHERE id = {number}")
        shop.refresh("one")
    forget_feeds(store)
    assert listed("one") == 3, "two has read none of them"
    shop.refresh("two")
    forget_feeds(store)
    assert listed("one") == 0
    assert listed("two") == 1, "three has not read it"
    shop.refresh("three", "four", "five")
    forget_feeds(store)
    assert listed("five") == 0, "nothing reads it"
    shop.run("DELETE FROM orders WHERE id = 10")
    shop.settle()
    shop.warehouse.drop("one", cascade=True)
    assert shop.lake.query("SELECT count(*) FROM penstock_lake_feeds") == [(0,)]
