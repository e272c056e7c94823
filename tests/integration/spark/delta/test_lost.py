"""What an earlier refresh left is gone, broken or of another lake: full once, and it says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.lake.catalog import Catalog
from penstock.lake.feed import feed_paths
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.tables.core.history import ReasonCode, RefreshRecord
from penstock.tables.core.model import Mode
from tests.integration.lake.duck import Duck
from tests.integration.spark.delta import limited
from tests.integration.spark.delta.shop import Shop

TABLES = (
    """CREATE TABLE orders AS SELECT i AS id, i % 7 AS customer, i % 50 AS amount
        FROM range(300) r(i)""",
    "CREATE TABLE customer AS SELECT i AS id, 'c' || i AS name FROM range(6) r(i)",
)
TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
VIEWS = {
    "one": "SELECT id, customer, amount FROM orders WHERE amount > 3",
    "two": "SELECT customer, amount FROM one WHERE customer > 1",
    "totals": TOTALS,
    "named": f"SELECT c.name, x.total FROM customer c JOIN ({TOTALS}) x ON x.customer = c.id",
}
Break = Callable[[Path], None]
BREAKS: dict[str, Break] = {
    "missing": lambda path: path.unlink(),
    "broken": lambda path: path.write_bytes(b"PAR1 and nothing else") and None,
}


def build(shop: Shop, *names: str) -> None:
    shop.run(*TABLES)
    for name in names:
        shop.create(name, VIEWS[name])
    shop.settle(executed=Mode.FULL)
    shop.run("DELETE FROM orders WHERE id = 30")
    shop.settle()


def lose(shop: Shop, how: str, *paths: str) -> None:
    assert paths
    for path in paths:
        BREAKS[how](Path(path))


def state_files(shop: Shop, part: str) -> list[str]:
    names = [t.name for t in shop.lake.tables() if t.schema.name == "penstock_state"]
    (name,) = [name for name in names if name.startswith(part)]
    return [file.path for file in shop.lake.table_at(f"penstock_state.{name}").files]


def once_full(shop: Shop, name: str, reason: ReasonCode) -> None:
    """The next refresh of a table is a full one for a reason, and the one after is not."""
    made: RefreshRecord = shop.settle(name, executed=Mode.FULL)[name]
    assert made.reason is reason, made.reason_text
    shop.run("DELETE FROM orders WHERE id = 9", "UPDATE customer SET name = 'x' WHERE id = 2")
    for upstream in shop.names[: shop.names.index(name)]:
        shop.refresh(upstream)
    shop.settle(name)


@pytest.mark.parametrize("how", BREAKS)
def test_a_stored_aggregate(shop: Shop, how: str) -> None:
    build(shop, "totals")
    lose(shop, how, *state_files(shop, "totals"))
    shop.run("DELETE FROM orders WHERE id = 4")
    fresh = Shop(shop.address, shop.lake, shop.duck, {**shop.options, "cache_dir": shop.scratch})
    try:
        fresh.names, fresh.asked = shop.names, shop.asked
        once_full(fresh, "totals", ReasonCode.STATE_LOST)
    finally:
        fresh.close()


@pytest.mark.parametrize("how", BREAKS)
def test_a_stage_that_only_spark_reads(shop: Shop, how: str) -> None:
    build(shop, "named")
    lose(shop, how, *state_files(shop, "named"))
    shop.run("UPDATE customer SET name = 'new' WHERE id = 1")
    once_full(shop, "named", ReasonCode.STATE_LOST)


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("here_rows_max", [0, 200_000])
def test_a_change_feed_read_here_or_by_spark(
    embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck, how: str, here_rows_max: int
) -> None:
    options = {"remote": embedded.url, "limits": {"here_rows_max": here_rows_max}}
    shop = Shop(address, lake, duck, options, runner=limited.NAME)
    try:
        build(shop, "one", "two")
        shop.run("DELETE FROM orders WHERE id = 4")
        with lake.look() as reader:
            before = set(feed_paths(reader))
        shop.refresh("one")
        with lake.look() as reader:
            lose(shop, how, *(set(feed_paths(reader)) - before))
        once_full(shop, "two", ReasonCode.STATE_LOST)
    finally:
        shop.close()


def test_a_frontier_ahead_of_the_lake(shop: Shop) -> None:
    """As after a catalog was restored from a copy that is older than what was read since."""
    build(shop, "one")
    ((text,),) = shop.lake.query("SELECT frontier FROM penstock_frontiers WHERE table_name = 'one'")
    ahead = {name: [place + 1_000 for place in at] for name, at in json.loads(text).items()}
    shop.lake.retrying(lambda cursor: cursor.execute(
        "UPDATE penstock_frontiers SET frontier = ? WHERE table_name = 'one'", (json.dumps(ahead),)
    ))  # fmt: skip
    shop.run("DELETE FROM orders WHERE id = 5")
    once_full(shop, "one", ReasonCode.HISTORY_EXPIRED)
