"""What is too large for the driver is left to Spark's tasks: the same tables, by DuckDB's word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.catalog import Catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.integration.lake.duck import Duck
from tests.integration.spark.delta import limited
from tests.integration.spark.delta.shop import Shop
from tests.integration.spark.delta.test_refresh import BATCHES, TABLES, VIEWS

ALL_BY_TASKS = {"collect_bytes_max": 1, "here_rows_max": 0, "copy_from_rows": 0}


@pytest.fixture
def shops(embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck) -> Iterator[Any]:
    made: list[Shop] = []

    def open_shop(**options: Any) -> Shop:
        given = {"remote": embedded.url, **options}
        made.append(Shop(address, lake, duck, given, runner=limited.NAME))
        return made[-1]

    yield open_shop
    for shop in made:
        shop.close()


def files_of(shop: Shop, name: str) -> list[str]:
    return [file.path for file in shop.lake.table_at(name).files]


def feed_of(shop: Shop, name: str) -> tuple[str, int]:
    question = "SELECT path, row_count FROM penstock_lake_feeds WHERE table_id = ?"
    ((path, rows),) = shop.lake.query(question, (shop.lake.table(name).id,))
    return path, rows


def unnamed(shop: Shop) -> list[Path]:
    """Files that the catalog does not know."""
    tables = ("ducklake_data_file", "ducklake_delete_file", "penstock_lake_feeds",
              "ducklake_files_scheduled_for_deletion")  # fmt: skip
    known = {Path(path).name for table in tables
             for (path,) in shop.lake.query(f"SELECT path FROM {table}")}  # fmt: skip
    return [path for path in Path(shop.lake.data_path).rglob("*.parquet") if path.name not in known]


@pytest.mark.slow
def test_a_change_larger_than_the_driver_takes_is_applied_by_tasks(shops: Any) -> None:
    shop = shops(limits=ALL_BY_TASKS)
    shop.run(*TABLES)
    for name in ("picked", "maybe", "grouped"):
        shop.create(name, VIEWS[name])
    shop.create("ends", "SELECT customer, min(amount) AS a, avg(id) AS b FROM orders GROUP BY 1")
    shop.settle(executed=Mode.FULL)
    for batch in (BATCHES[0], (*BATCHES[1], *BATCHES[4])):  # the last makes rows come twice
        shop.run(*batch)
        made = shop.settle()
        assert {record.reason for record in made.values()} == {ReasonCode.AS_CONFIGURED}
        for name, record in made.items():
            if record.rows_written:
                assert "/part-" in files_of(shop, name)[-1], "a task wrote it"
    assert shop.lake.query("SELECT count(*) FROM penstock_lake_feeds WHERE path LIKE '%part-%'"
        )[0][0] == 2 * 4  # fmt: skip
    small = shops()  # the same tables by an engine whose limits are the usual ones
    small.names, small.asked = shop.names, shop.asked
    small.run("DELETE FROM orders WHERE id % 3 = 1", "INSERT INTO customer VALUES (9, 'last')")
    made = small.settle()
    held = shop.duck.value("SELECT count(*) FROM orders")
    assert made["grouped"].rows_read < held, "by the state that tasks had filled"


def test_a_row_that_tasks_do_not_find_fails_the_refresh(shops: Any) -> None:
    shop = shops(limits=ALL_BY_TASKS)
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.settle(executed=Mode.FULL)
    shop.run("DELETE FROM picked WHERE id = 299")
    at = shop.lake.latest().id
    shop.lake.retrying(lambda cursor: cursor.execute(
        f"UPDATE penstock_frontiers SET snapshot = {at} WHERE table_name = 'picked'"))  # fmt: skip
    before = shop.contents("picked")
    shop.run("DELETE FROM orders WHERE id IN (298, 299)")
    answer = shop.warehouse.refresh("picked")
    assert not answer.ok
    assert "takes 1 rows" in answer.detail
    assert shop.contents("picked") == before
    assert shop.settle(executed=Mode.FULL)["picked"].reason is ReasonCode.STATE_DISAGREES


@pytest.mark.parametrize("copy_from_rows", [0, 1_000_000])
def test_rows_that_left_a_file_are_read_from_its_copy_or_from_it(
    shops: Any, copy_from_rows: int
) -> None:
    shop = shops(limits={"copy_from_rows": copy_from_rows})
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.settle(executed=Mode.FULL)
    shop.run("DELETE FROM orders WHERE id % 9 = 2", "UPDATE orders SET amount = 77 WHERE id = 12")
    shop.settle()


@pytest.mark.parametrize("state_rows_max", [0, 1_000])
def test_a_small_state_is_handed_over_whole_and_a_large_one_looked_up(
    shops: Any, state_rows_max: int
) -> None:
    shop = shops(limits={"state_rows_max": state_rows_max})
    shop.run(*TABLES)
    query = """SELECT c.name, count(*) AS n, sum(o.amount) AS total, max(o.amount) AS most
        FROM orders o JOIN customer c ON c.id = o.customer GROUP BY c.name"""
    shop.create("sold", query)
    shop.settle(executed=Mode.FULL)
    for batch in (BATCHES[0], BATCHES[1], BATCHES[3]):
        shop.run(*batch)
        shop.settle()


@pytest.mark.slow
def test_old_rows_that_changes_meet_are_looked_up_and_handed_over_as_files(shops: Any) -> None:
    limits = {"near_from_rows": 0, "near_part": 1, "file_from_rows": 1, "state_rows_max": 0}
    shop = shops(limits=limits)
    shop.run(*TABLES)
    least = "SELECT customer, min(amount) AS low, max(amount) AS high FROM orders GROUP BY customer"
    for name, query in {**VIEWS, "least": least}.items():
        shop.create(name, query)
    shop.settle(executed=Mode.FULL)
    for batch in BATCHES:
        shop.run(*batch)
        shop.settle()
    shop.run("UPDATE customer SET name = 'other' WHERE id = 3")
    made = shop.settle()["named"]
    assert 0 < made.rows_read < shop.duck.value("SELECT count(*) FROM orders")
    assert unnamed(shop) == [], "what was handed over is gone"


def test_auto_decides_before_it_reads_what_changed(shops: Any) -> None:
    shop = shops()
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"], mode="auto")
    shop.settle(executed=Mode.FULL)
    before = [Path(file.path) for file in shop.lake.table_at("orders").files]
    shop.run("DELETE FROM orders", "INSERT INTO orders SELECT i, 1, i, NULL FROM range(9000) r(i)")
    for path in before:
        path.unlink()  # with the rows that left
    made = shop.settle(executed=Mode.FULL)["picked"]
    assert made.reason is ReasonCode.FULL_IS_CHEAPER
    assert made.choice["workload"]["delta_rows"] == 300 + 9_000


@pytest.mark.parametrize("write", [{"collect_rows_max": 0}, {"compare_rows_max": 0}, {}])
def test_a_full_refresh_of_any_size_leaves_a_feed(shops: Any, write: dict[str, int]) -> None:
    shop = shops(write=write)
    shop.run(*TABLES)
    shop.create("whole", VIEWS["picked"], mode="full")
    shop.create("reads_it", "SELECT count(*) AS n, sum(more) AS more FROM whole")
    shop.settle(executed=Mode.FULL)
    before = shop.contents("whole")
    shop.run("DELETE FROM orders WHERE id < 40", "INSERT INTO orders SELECT * FROM orders LIMIT 9")
    made = shop.refresh("whole")["whole"]
    assert made.executed is Mode.FULL
    after = shop.contents("whole")
    moved = len(before - after) + len(after - before)
    path, rows = feed_of(shop, "whole")
    assert rows == moved
    assert ("/part-" in path) is bool(write)
    followed = shop.refresh("reads_it")["reads_it"]
    assert followed.executed is Mode.DIFFERENTIAL
    assert followed.choice["workload"]["delta_rows"] == moved
    shop.check()


def test_a_full_refresh_that_nothing_follows_compares_nothing(shops: Any) -> None:
    shop = shops(write={"collect_rows_max": 0})
    shop.run(*TABLES)
    shop.create("whole", VIEWS["picked"], mode="full")
    shop.create("also_whole", "SELECT * FROM whole", mode="full")
    shop.settle(executed=Mode.FULL)
    shop.run("DELETE FROM orders WHERE id < 40")
    shop.settle(executed=Mode.FULL)
    assert shop.lake.query("SELECT count(*) FROM penstock_lake_feeds") == [(0,)]
