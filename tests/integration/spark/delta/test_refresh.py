"""Differential refreshes: the table is its query, and the mode on record is the one that ran."""

from __future__ import annotations

import pytest

from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode, Status
from tests.integration.spark.delta.shop import Shop

TABLES = (
    """CREATE TABLE orders AS SELECT i AS id, i % 7 AS customer, (i * 3 % 50)::INTEGER AS amount,
        CASE WHEN i % 9 > 0 THEN 'w' || (i % 5) END AS word FROM range(300) r(i)""",
    "CREATE TABLE customer AS SELECT i AS id, 'c' || i AS name FROM range(6) r(i)",
)
VIEWS = {
    "picked": "SELECT id, amount + 1 AS more FROM orders WHERE amount > 10",
    "named": "SELECT o.id, c.name, o.word FROM orders o JOIN customer c ON c.id = o.customer",
    "maybe": "SELECT c.name, o.id FROM customer c LEFT JOIN orders o ON c.id = o.customer",
    "grouped": "SELECT word, count(*) AS n, sum(amount) AS total FROM orders GROUP BY word",
    "top": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 10",
    "buyers": """SELECT * FROM customer c
        WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer = c.id)""",
}
BATCHES = (
    (
        "UPDATE orders SET amount = amount + 100 WHERE id % 40 = 3",
        "DELETE FROM orders WHERE id % 50 = 1",
        "INSERT INTO orders SELECT 1000 + i, i % 7, i, NULL FROM range(20) r(i)",
    ),
    (
        "UPDATE customer SET name = upper(name) WHERE id IN (2, 3)",
        "DELETE FROM customer WHERE id = 4",
        "INSERT INTO customer VALUES (6, 'new')",
        "DELETE FROM orders WHERE customer = 2",
    ),
    (
        """MERGE INTO orders USING (SELECT 5 AS id UNION SELECT 2000) s ON orders.id = s.id
            WHEN MATCHED THEN DELETE
            WHEN NOT MATCHED THEN INSERT VALUES (s.id, 1, 1, 'merged')""",
        "UPDATE orders SET customer = 4 WHERE id < 20",
    ),
    ("INSERT INTO orders VALUES (1, 1, 1, 'w1')",),
    ("INSERT INTO orders SELECT * FROM orders WHERE id < 30",),
)


def test_tables_follow_what_duckdb_changes(shop: Shop) -> None:
    shop.run(*TABLES)
    for name, query in VIEWS.items():
        shop.create(name, query)
    first = shop.settle(executed=Mode.FULL)
    assert {record.reason for record in first.values()} == {ReasonCode.FIRST_LOAD}
    for batch in BATCHES:
        shop.run(*batch)
        made = shop.settle()
        assert {record.reason for record in made.values()} == {ReasonCode.AS_CONFIGURED}


def test_nothing_changed_runs_no_job_and_commits_no_data(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("named", VIEWS["named"])
    shop.settle(executed=Mode.FULL)
    shop.run("UPDATE orders SET amount = amount", "CALL ducklake_merge_adjacent_files('lake')")
    at = shop.lake.latest().id
    made = shop.settle()["named"]
    assert (made.delta_rows, made.rows_read, made.rows_written) == (0, 600, 0)
    assert "run" not in dict(made.timings_ms), "no query ran"
    assert shop.lake.latest().id == at, "no snapshot was made"


def test_a_table_says_why_it_was_refreshed_in_full(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("drawn", "SELECT id, rand() AS r FROM orders", mode="auto")
    shop.create("whole", "SELECT max(id) AS last FROM orders", mode="full")
    shop.refresh()
    shop.run("DELETE FROM orders WHERE id = 299")
    made = shop.refresh()
    assert {name: (r.executed, r.reason) for name, r in made.items()} == {
        "drawn": (Mode.FULL, ReasonCode.VOLATILE),
        "whole": (Mode.FULL, ReasonCode.AS_CONFIGURED),
    }


def test_a_forced_refresh_runs_the_whole_query(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.refresh()
    assert shop.warehouse.refresh("picked", force=True).ok
    made = shop.last("picked")
    assert (made.executed, made.reason) == (Mode.FULL, ReasonCode.REQUESTED)


def test_rows_that_another_tool_wrote_to_a_table_are_replaced(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.settle(executed=Mode.FULL)
    shop.run("INSERT INTO picked VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    shop.run("DELETE FROM orders WHERE id = 9")
    made = shop.settle(executed=Mode.FULL)["picked"]
    assert made.reason is ReasonCode.STATE_DISAGREES
    shop.run("DELETE FROM orders WHERE id = 10")
    shop.settle()


def test_a_row_that_is_not_found_fails_the_refresh_and_the_next_one_is_full(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.settle(executed=Mode.FULL)
    before = shop.contents("picked")
    # As if the contents had been wrong all along: a row goes, and nobody notices that it went.
    shop.run("DELETE FROM picked WHERE id = 299")
    at = shop.lake.latest().id
    shop.lake.retrying(lambda cursor: cursor.execute(
        f"UPDATE penstock_frontiers SET snapshot = {at} WHERE table_name = 'picked'"))  # fmt: skip
    shop.run("DELETE FROM orders WHERE id = 299")
    answer = shop.warehouse.refresh("picked")
    assert not answer.ok
    assert "internal error" in answer.detail
    failed = shop.warehouse.history("picked", limit=1)[0]
    assert (failed.executed, failed.reason) == (None, ReasonCode.STATE_DISAGREES)
    assert shop.contents("picked") == before - shop.bag("picked", shop.duck.run(
        "SELECT 299, (299 * 3 % 50 + 1)::INTEGER"))  # fmt: skip
    made = shop.settle(executed=Mode.FULL)["picked"]
    assert made.reason is ReasonCode.STATE_DISAGREES
    shop.run("DELETE FROM orders WHERE id = 298")
    shop.settle()


def test_a_source_made_again_and_history_that_expired_are_reasons_of_their_own(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.settle(executed=Mode.FULL)
    shop.run("DROP TABLE orders", TABLES[0], "DELETE FROM orders WHERE id < 5")
    assert shop.settle(executed=Mode.FULL)["picked"].reason is ReasonCode.SOURCE_RECREATED
    shop.run("DELETE FROM orders WHERE id < 10")
    shop.run("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    assert shop.settle(executed=Mode.FULL)["picked"].reason is ReasonCode.HISTORY_EXPIRED
    shop.run("DELETE FROM orders WHERE id < 15")
    shop.settle()


def test_columns_that_are_added_change_nothing_but_a_star(shop: Shop) -> None:
    shop.run(*TABLES)
    shop.create("picked", VIEWS["picked"])
    shop.create("everything", "SELECT * FROM orders")
    shop.settle(executed=Mode.FULL)
    shop.run("ALTER TABLE orders ADD COLUMN note VARCHAR", "DELETE FROM orders WHERE id < 3")
    made = shop.settle(executed=None)
    assert made["picked"].executed is Mode.DIFFERENTIAL
    assert made["everything"].executed is Mode.FULL
    assert made["everything"].reason is ReasonCode.QUERY_CHANGED
    shop.run("UPDATE orders SET note = 'x' WHERE id < 30")
    shop.settle()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER COLUMN amount TYPE BIGINT", "column 'amount' of orders was int32 and is int64 now"),
        ("DROP COLUMN amount", "column 'amount' of orders was dropped"),
    ],
)
def test_a_column_that_is_dropped_or_widened_is_an_error_that_names_it(
    shop: Shop, change: str, said: str
) -> None:
    shop.run(*TABLES)
    shop.create("totals", "SELECT word,\n  sum(amount) AS total FROM orders GROUP BY word")
    shop.create("words", "SELECT id, word FROM orders")
    shop.create("whole", "SELECT *\nFROM orders")
    shop.settle(executed=Mode.FULL)
    before = shop.contents("totals")
    shop.run(f"ALTER TABLE orders {change}", "DELETE FROM orders WHERE id < 9")
    for name, place in (("totals", "(line 2, column 7)"), ("whole", "(line 1, column 8)")):
        answer = shop.warehouse.refresh(name)
        assert not answer.ok
        assert f"{said} {place}" in answer.detail, answer.detail
        assert shop.warehouse.table(name).status is Status.ERROR
    assert shop.contents("totals") == before
    shop.settle("words")
    if "TYPE" in change:
        shop.warehouse.resume("totals")
        assert shop.warehouse.refresh("totals", force=True).ok
        shop.run("DELETE FROM orders WHERE id < 12")
        shop.settle("totals", "words")


def test_columns_that_swap_their_names_are_an_error_that_names_them(shop: Shop) -> None:
    """Changes would be of the column that has the name now, and the other rows of the old one."""
    shop.run(
        "CREATE TABLE pairs (id INTEGER, a INTEGER, b INTEGER)",
        "INSERT INTO pairs VALUES (1, 10, 100), (2, 20, 200), (3, 30, 300), (4, 40, 400)",
    )
    shop.create("sums", "SELECT sum(a) AS s FROM pairs")
    shop.create("others", "SELECT id, b FROM pairs WHERE id > 0")
    shop.create("ids", "SELECT id FROM pairs")
    shop.settle(executed=Mode.FULL)
    shop.run(
        "ALTER TABLE pairs RENAME COLUMN a TO old_a",
        "ALTER TABLE pairs RENAME COLUMN b TO a",
        "DELETE FROM pairs WHERE id = 2",
    )
    answer = shop.warehouse.refresh("sums")
    assert not answer.ok
    said = "column 'a' of pairs was renamed or replaced, and another column has its name now"
    assert f"{said} (line 1, column 12)" in answer.detail, answer.detail
    answer = shop.warehouse.refresh("others")
    assert not answer.ok
    assert "column 'b' of pairs was renamed to 'a' (line 1, column 12)" in answer.detail
    shop.settle("ids")
    shop.warehouse.resume("sums")
    assert shop.warehouse.refresh("sums", force=True).ok
    shop.run("DELETE FROM pairs WHERE id = 3")
    shop.settle("sums", "ids")


@pytest.mark.slow
def test_auto_chooses_by_cost_and_keeps_what_it_chose_from(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE small AS SELECT i AS n FROM range(100) r(i)",
        "CREATE TABLE large AS SELECT i AS n, i % 7 AS k FROM range(300000) r(i)",
    )
    shop.create("from_small", "SELECT n + 1 AS n FROM small", mode="auto")
    shop.create("from_large", "SELECT n + 1 AS n FROM large WHERE k < 6", mode="auto")
    shop.settle(executed=Mode.FULL)
    shop.run("DELETE FROM small WHERE n < 50", "DELETE FROM large WHERE n < 50")
    made = shop.settle(executed=None)
    small, large = made["from_small"], made["from_large"]
    assert (small.executed, small.reason) == (Mode.FULL, ReasonCode.FULL_IS_CHEAPER)
    assert (large.executed, large.reason) == (Mode.DIFFERENTIAL, ReasonCode.AS_CONFIGURED)
    for record, chosen in ((small, "FULL"), (large, "DIFFERENTIAL")):
        assert record.choice is not None
        assert record.choice["mode"] == chosen
        assert record.choice["measured_ms"] > 0
        assert record.choice["regret_ms"] >= 0
        assert record.choice["workload"]["delta_rows"] == 50
    assert large.choice["differential_ms"] < large.choice["full_ms"]
    shop.run("DELETE FROM large WHERE n % 3 > 0")
    assert shop.settle(executed=None)["from_large"].reason is ReasonCode.FULL_IS_CHEAPER
