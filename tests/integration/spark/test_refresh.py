"""A full refresh: afterwards the table is what its query says, at the snapshots it was given."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.app.tables import Warehouse
from penstock.kernel.errors import PenstockError, Rejected
from penstock.lake.catalog import Catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.spark.lake.writing import WriteOptions
from penstock.spark.options import SparkOptions
from penstock.spark.progress import QueryProgress
from penstock.spark.refresh import FullRefresh, make, query_frame, shared
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.model import Mode
from penstock.tables.worker.outcomes import kind_of
from tests.integration.lake.agree import bag
from tests.integration.lake.duck import Duck
from tests.integration.spark.agree import assert_agree
from tests.integration.spark.refreshing import note, refresh, task_of, versions

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
    task = task_of(lake, "made", query, change)
    full = FullRefresh(lake, write=WriteOptions(compare_rows_max=0))
    duck.run("DELETE FROM sales.orders WHERE id > 100")
    duck.run("INSERT INTO sales.orders SELECT i, 1, 1e6, '2030-01-01' FROM range(900) r(i)")
    note(change, full.refresh(spark, task))
    assert lake.commit(change).snapshot is not None
    assert lake.scan("made").to_pylist() == before
    refresh(spark, lake, "made", query)
    assert lake.scan("made").to_pylist() != before


def test_many_refreshes_leave_few_live_files(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    query = "SELECT name, count(*) AS n FROM customer GROUP BY name"
    counts = []
    for number in range(5):
        duck.run(f"INSERT INTO customer VALUES ({100 + number}, 'new {number}')")
        refresh(spark, lake, "made", query, files_max=3)
        counts.append(len(lake.table_at("made").files))
    assert counts == [1, 2, 3, 1, 2], "rewritten when there were three"
    assert lake.scan("made").num_rows == 9 + 5


def test_two_tables_change_in_one_snapshot(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    for name in ("one", "two"):
        refresh(spark, lake, name, "SELECT count(*) AS n FROM customer")
    duck.run("INSERT INTO customer VALUES (50, 'x')")
    query = "SELECT count(*) AS n FROM customer"
    change = lake.begin(reserve_ms=600_000)
    for name in ("one", "two"):
        note(change, FullRefresh(lake).refresh(spark, task_of(lake, name, query, change)))
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
    with pytest.raises(Rejected, match=r"reads a\.b, c, for which no source"):
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
    assert kind_of(caught.value) is kind


def test_progress_is_told_until_the_query_is_done(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    query = "SELECT count(*) AS n FROM range(0, 4000000, 1, 8) r, (SELECT 1 FROM customer) c"
    seen: list[QueryProgress] = []
    task = task_of(lake, "t", query, lake.begin())
    FullRefresh(lake, tell=seen.append).refresh(spark, task)
    assert seen[-1].done
    assert seen[-1].share == 1.0
    assert len({event.operation_id for event in seen}) == 1
    shares = [event.tasks_done for event in seen]
    assert shares == sorted(shares)


def test_contents_that_stay_the_same_are_not_written_again(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    shop(duck)
    query = "SELECT customer, count(*) AS n, max(day) AS last FROM sales.orders GROUP BY customer"
    assert refresh(spark, lake, "made", query).changed
    duck.run("UPDATE sales.orders SET price = price + 1")
    made = refresh(spark, lake, "made", query)
    assert (made.changed, made.files, made.rows_written) == (False, (), 0)
    duck.run("DELETE FROM sales.orders WHERE id = 0")
    assert refresh(spark, lake, "made", query).changed
    assert_agree(spark, lake, duck, "made")


def test_downstream_receives_only_the_difference(spark: Any, lake: Catalog, duck: Duck) -> None:
    shop(duck)
    query = "SELECT id, customer, price, day FROM sales.orders WHERE id < 1000"
    refresh(spark, lake, "made", query)
    before = lake.latest().id
    duck.run("UPDATE sales.orders SET price = NULL WHERE id IN (7, 8, 400)")
    duck.run("DELETE FROM sales.orders WHERE id = 9")
    duck.run("INSERT INTO sales.orders SELECT 10, 3, 15.0, '2024-01-11' FROM range(2)")
    made = refresh(spark, lake, "made", query)
    assert (made.replace, made.rows_written, made.delta_rows) == (False, 5, 9)
    changed = lake.changes("made", before)
    lost = changed.read_deleted(lake.storage)
    assert sorted(lost["id"].to_pylist()) == [7, 8, 9, 400]
    gained = changed.read_inserted(lake.storage)
    assert sorted(gained["id"].to_pylist()) == [7, 8, 10, 10, 400]
    assert assert_agree(spark, lake, duck, "made") == bag(duck.run(query))
    duck.run("UPDATE sales.orders SET price = price + 1")
    assert refresh(spark, lake, "made", query).replace, "most rows differ"
    assert_agree(spark, lake, duck, "made")


def test_rows_of_any_type_are_told_apart(spark: Any, lake: Catalog, duck: Duck) -> None:
    duck.run("""CREATE TABLE odd AS SELECT i AS id, CASE WHEN i % 3 = 0 THEN 'NaN'::DOUBLE END AS f,
        [i, NULL] AS l, {'a': i, 'b': 'x' || i} AS s, MAP {'k': i} AS m, i::DECIMAL(10, 2) AS d,
        '2024-01-01'::TIMESTAMP AS t, 'b'::BLOB AS b FROM range(20) r(i)""")
    refresh(spark, lake, "made", "SELECT * FROM odd")
    assert not refresh(spark, lake, "made", "SELECT * FROM odd").changed
    duck.run("UPDATE odd SET l = [id] WHERE id = 3")
    duck.run("UPDATE odd SET m = MAP {'other': id} WHERE id = 4")
    duck.run("UPDATE odd SET f = 0.5 WHERE id = 5")
    made = refresh(spark, lake, "made", "SELECT * FROM odd")
    assert (made.replace, made.delta_rows) == (False, 6)
    assert_agree(spark, lake, duck, "made")


def test_an_engine_survives_the_loss_of_its_session(
    embedded: EmbeddedSpark, lake: Catalog, duck: Duck
) -> None:
    shop(duck)
    engine = make(lake, {"remote": embedded.url})
    question = "SELECT count(*) AS n FROM customer"
    assert engine.query(question, versions(lake, question)).to_pylist() == [{"n": 9}]
    engine._link.session().client.release_session()
    with pytest.raises(PenstockError, match=r"Spark w(ent away|as lost)"):
        engine.query(question, versions(lake, question))
    assert engine.query(question, versions(lake, question)).to_pylist() == [{"n": 9}]
    engine.close()


def test_options_are_checked_by_name(lake: Catalog) -> None:
    with pytest.raises(Rejected, match="no option memory"):
        make(lake, {"memory": 3})


def test_a_warehouse_refreshes_its_tables_with_spark(
    embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck
) -> None:
    shop(duck)
    with shared(SparkOptions(remote=embedded.url)) as runner:
        options = {"runner": runner.name, "runner_options": runner.options}
        with Warehouse.open(address, lake.data_path, **options) as warehouse:
            warehouse.create("daily", "SELECT day, sum(price) AS p FROM sales.orders GROUP BY day")
            warehouse.create("top", "SELECT max(p) AS p FROM daily")
            for name in ("daily", "top"):
                warehouse.refresh(name)
            assert {r.table: r.executed for r in warehouse.history()} == {
                "daily": Mode.FULL, "top": Mode.FULL,
            }  # fmt: skip
            asked = "SELECT p FROM top WHERE p = (SELECT max(p) FROM daily)"
            assert warehouse.query(asked).num_rows == 1
    question = "SELECT max(p) AS p FROM (SELECT sum(price) AS p FROM sales.orders GROUP BY day)"
    assert duck.run("SELECT * FROM top").equals(duck.run(question))
