"""A full refresh: afterwards the table is what its query says, at the snapshots it was given."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.kernel.errors import Rejected
from penstock.lake import TableVersion
from penstock.lake.shell import Catalog
from penstock.spark.progress import QueryProgress
from penstock.spark.refresh import (
    FullRefresher,
    Refreshed,
    RefreshWork,
    failure_of,
    query_frame,
    query_schema,
    refreshers,
)
from penstock.tables.failures import FailureKind, classify
from penstock.tables.model import Mode, define
from tests.integration.lake.agree import bag
from tests.integration.lake.duck import Duck
from tests.integration.spark.agree import assert_agree

SHOP = (
    "CREATE SCHEMA sales",
    """CREATE TABLE sales.orders AS SELECT i AS id, i % 7 AS customer, i * 1.5::DOUBLE AS price,
        '2024-01-01'::DATE + (i % 30)::INTEGER AS day FROM range(500) r(i)""",
    "CREATE TABLE customer AS SELECT i AS id, 'c' || i AS name FROM range(9) r(i)",
    "DELETE FROM sales.orders WHERE id % 50 = 3",
    "UPDATE customer SET name = upper(name) WHERE id = 2",
)
QUERIES = (
    "SELECT customer, count(*) AS n, sum(price) AS total FROM sales.orders GROUP BY customer",
    "SELECT sales.orders.id, name FROM sales.orders JOIN main.customer c ON c.id = customer",
    "SELECT c.* FROM customer c LEFT ANTI JOIN sales.orders o ON o.customer = c.id",
    """WITH orders AS (SELECT * FROM sales.orders WHERE price > 100)
        SELECT day, max(orders.price) AS p FROM orders GROUP BY day""",
    "SELECT 1 AS one, 'it''s -- sales.orders' AS text FROM Customer LIMIT 1",
)


def shop(duck: Duck) -> None:
    for statement in SHOP:
        duck.run(statement)


def versions(lake: Catalog, query: str, at: int | None = None) -> dict[str, TableVersion]:
    return {name: lake.table_at(name, at) for name in define("t", query).sources}


def refresh(spark: Any, lake: Catalog, name: str, query: str, **more: Any) -> Refreshed:
    """Make the table where it is missing, refresh and commit it."""
    sources = versions(lake, query)
    if name not in [table.name for table in lake.tables()]:
        change = lake.begin()
        change.create_table(lake.schema("main"), name, query_schema(spark, lake, query, sources))
        lake.commit(change)
    change = lake.begin(reserve_ms=600_000)
    work = RefreshWork(lake.table(name), query, sources, change.token, **more)
    done = refreshers(spark, lake)[Mode.FULL].refresh(work)
    done.apply(change)
    lake.commit(change)
    return done


@pytest.mark.parametrize("query", QUERIES)
def test_the_table_is_its_query(spark: Any, lake: Catalog, duck: Duck, query: str) -> None:
    shop(duck)
    done = refresh(spark, lake, "made", query)
    found = assert_agree(spark, lake, duck, "made")
    assert found == bag(duck.run(query.replace("LEFT ANTI JOIN", "ANTI JOIN")))
    assert done.executed is Mode.FULL
    assert done.rows_written == found.total()
    assert done.rows_read > 0


def test_a_refresh_reads_the_snapshots_it_was_given_whatever_is_committed_meanwhile(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    shop(duck)
    query = "SELECT count(*) AS n, sum(price) AS total FROM sales.orders"
    refresh(spark, lake, "made", query)
    before = lake.scan("made").to_pylist()
    change = lake.begin(reserve_ms=600_000)
    work = RefreshWork(lake.table("made"), query, versions(lake, query), change.token)
    duck.run("DELETE FROM sales.orders WHERE id > 100")
    duck.run("INSERT INTO sales.orders SELECT i, 1, 1e6, '2030-01-01' FROM range(900) r(i)")
    FullRefresher(spark, lake).refresh(work).apply(change)
    lake.commit(change)
    assert lake.scan("made").to_pylist() == before
    refresh(spark, lake, "made", query)
    assert lake.scan("made").to_pylist() != before


def test_many_refreshes_leave_one_live_file(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    for number in range(4):
        duck.run(f"INSERT INTO customer VALUES ({100 + number}, 'new')")
        refresh(spark, lake, "made", "SELECT name, count(*) AS n FROM customer GROUP BY name",
                rows_before=10)  # fmt: skip
        assert len(lake.table_at("made").files) == 1
    assert {"name": "new", "n": 4} in lake.scan("made").to_pylist()


def test_two_tables_change_in_one_snapshot(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    for name in ("one", "two"):
        refresh(spark, lake, name, "SELECT count(*) AS n FROM customer")
    duck.run("INSERT INTO customer VALUES (50, 'x')")
    query = "SELECT count(*) AS n FROM customer"
    change = lake.begin(reserve_ms=600_000)
    for name in ("one", "two"):
        work = RefreshWork(lake.table(name), query, versions(lake, query), change.token)
        FullRefresher(spark, lake).refresh(work).apply(change)
    assert [lake.scan(name).to_pylist() for name in ("one", "two")] == [[{"n": 9}]] * 2
    at = lake.commit(change).snapshot.id
    both = "SELECT (SELECT n FROM one AT (VERSION => {0})), (SELECT n FROM two AT (VERSION => {0}))"
    assert list(duck.rows(both.format(at))[0].values()) == [10, 10]
    assert list(duck.rows(both.format(at - 1))[0].values()) == [9, 9]


def test_rows_that_are_here_can_be_a_source(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    query = "SELECT m.v, c.name FROM topics.`Meters-7` AS m JOIN customer c ON c.id = m.id"
    rows = pa.table({"id": [1, 2, 2], "v": [1.5, 2.5, None]})
    sources = {"topics.Meters-7": rows, "customer": lake.table_at("customer")}
    found = query_frame(spark, lake, query, sources).toArrow()
    assert bag(found) == bag([{"v": 1.5, "name": "c1"}, {"v": 2.5, "name": "C2"},
                              {"v": None, "name": "C2"}])  # fmt: skip


def test_a_source_that_was_not_given_is_named(spark: Any, lake: Catalog) -> None:
    with pytest.raises(Rejected, match=r"none for a\.b, c"):
        query_frame(spark, lake, "SELECT * FROM a.b, c", {})


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("SELECT nothing FROM customer", FailureKind.PERMANENT),
        ("SELECT no_such_function(id) FROM customer", FailureKind.PERMANENT),
        ("SELECT id + array(1) AS x FROM customer", FailureKind.PERMANENT),
        ("SELECT 1 / (id - id) AS x FROM customer", FailureKind.RETRYABLE),
    ],
)
def test_failures_say_whether_trying_again_can_help(
    spark: Any, lake: Catalog, duck: Duck, query: str, kind: FailureKind
) -> None:
    shop(duck)
    with pytest.raises(Exception) as caught:
        query_frame(spark, lake, query, versions(lake, query)).toArrow()
    assert classify(failure_of(caught.value)) is kind


def test_progress_is_told_until_the_query_is_done(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    query = "SELECT count(*) AS n FROM range(0, 60000000, 1, 8) r, (SELECT 1 FROM customer) c"
    seen: list[QueryProgress] = []
    sources = versions(lake, query)
    change = lake.begin()
    table = change.create_table(lake.schema("main"), "t", query_schema(spark, lake, query, sources))
    FullRefresher(spark, lake, tell=seen.append).refresh(RefreshWork(table, query, sources))
    assert seen[-1].done
    assert seen[-1].share == 1.0
    assert len({event.operation_id for event in seen}) == 1
    shares = [event.tasks_done for event in seen]
    assert shares == sorted(shares)
