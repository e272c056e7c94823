"""Floats whose last digits depend on how they were computed: readers follow the rows that are held.

A full refresh leaves Spark's own last digits, a differential one computes the row that goes from
kept sums or in another order. What readers are told to take away must be what they were given.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock.lake.feed import feed_between, read_feed
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.integration.spark.delta.shop import Shop

READINGS = """CREATE TABLE readings AS SELECT i % 40 AS g, (i * i % 1000003)::INTEGER AS n,
    (i * 7919 % 100003) / 7.0::DOUBLE AS x FROM range(4000) r(i)"""
VIEWS = {
    "spread": "SELECT g, stddev(n) AS s, avg(n) AS m FROM readings GROUP BY g",
    "sums": "SELECT g, sum(x) AS s, avg(x) AS m FROM readings GROUP BY g",
}
READERS = {
    "{}_top": "SELECT g, s FROM {} ORDER BY s DESC LIMIT 3",
    "{}_most": "SELECT g % 2 AS odd, max(s) AS s, min(m) AS m FROM {} GROUP BY g % 2",
}


Rows = Counter[tuple[Any, ...]]


def wanted(shop: Shop, query: str) -> Rows:
    return Counter(tuple(row.values()) for row in shop.duck.run(query).to_pylist())


def held(shop: Shop, name: str) -> Rows:
    return wanted(shop, f"SELECT * FROM {name}")


def fed(shop: Shop, name: str, since: int) -> Rows | None:
    """What the change feed of a table says since a snapshot."""
    table = shop.lake.table_at(name)
    with shop.lake.look() as reader:
        last: Any = reader.rows(
            "SELECT max(until_snapshot) FROM penstock_lake_feeds WHERE table_id = ?",
            table.table.id,
        )[0][0]
        files = feed_between(reader, table.table.id, since, last) if last else None
    if files is None:
        return None
    found: Rows = Counter()
    for file in files:
        rows, weights = read_feed(shop.lake.storage, table.table, file)
        for row, weight in zip(rows.to_pylist(), weights.to_pylist(), strict=True):
            found[tuple(row.values())] += weight
    return found


@pytest.mark.slow
def test_readers_take_away_the_rows_that_they_were_given(shop: Shop) -> None:
    shop.run(READINGS)
    for name, query in VIEWS.items():
        shop.create(name, query)
        for reader, text in READERS.items():
            shop.create(reader.format(name), text.format(name))
    made = shop.refresh()
    assert {record.reason for record in made.values()} == {ReasonCode.FIRST_LOAD}
    for number in range(2):
        tops = {name: shop.duck.value(f"SELECT g FROM {name} ORDER BY s DESC LIMIT 1")
                for name in VIEWS}  # fmt: skip
        before = {name: (held(shop, name), shop.last(name)) for name in VIEWS}
        batch = ("DELETE FROM readings WHERE g = {}", "UPDATE readings SET n = n + 1 WHERE g = {}")
        shop.run(*(batch[number % 2].format(top) for top in tops.values()),
                 f"UPDATE readings SET x = x * 1.5, n = n + 7 WHERE g % 9 = {number}")  # fmt: skip
        made = shop.refresh()
        for name, record in made.items():
            assert record.executed is Mode.DIFFERENTIAL, (name, record.reason, record.reason_text)
        for name in VIEWS:
            then, last = before[name]
            assert last.snapshot is not None
            change = fed(shop, name, last.snapshot)
            assert change is not None
            now = held(shop, name)
            moved = Counter(now)
            moved.subtract(then)
            assert {r: w for r, w in change.items() if w} == {r: w for r, w in moved.items() if w}
            for reader, text in READERS.items():
                ours = reader.format(name)
                assert held(shop, ours) == wanted(shop, text.format(name)), (number, ours)


def test_the_sign_of_zero_is_that_of_the_row(shop: Shop) -> None:
    """As a key, 0.0 is -0.0; what a query makes of either is not the same."""
    shop.run(
        "CREATE TABLE zeros AS SELECT i AS id, i % 3 AS k, 0.0::DOUBLE AS d FROM range(30) r(i)"
    )
    shop.run("CREATE TABLE ids AS SELECT i % 3 AS k, i AS n FROM range(9) r(i)")
    views = {
        "texts": "SELECT k, sort_array(collect_list(CAST(d AS STRING))) AS s FROM zeros GROUP BY k",
        "numbered": "SELECT id, CAST(d AS STRING) AS s FROM (SELECT *, row_number() OVER "
        "(PARTITION BY k ORDER BY id) AS r FROM zeros) WHERE r < 9",
        "last": "SELECT k, min(CAST(d AS STRING)) AS s FROM zeros GROUP BY k",
        "joined": "SELECT k, min(CAST(d AS STRING)) AS s FROM zeros JOIN ids USING (k) GROUP BY k",
        "alone": "SELECT id, CAST(d AS STRING) AS s FROM zeros WHERE NOT EXISTS "
        "(SELECT 1 FROM ids WHERE ids.k = zeros.k AND ids.n < zeros.id)",
        "lines": "SELECT id, CAST(d AS STRING) AS s FROM zeros",
    }
    for name, query in views.items():
        shop.create(name, query)
    shop.refresh()
    batches = (
        ("UPDATE zeros SET d = -d WHERE id % 4 = 0", "INSERT INTO zeros VALUES (7, 1, -0.0)"),
        ("UPDATE zeros SET d = -d WHERE id % 8 = 0", "UPDATE ids SET n = n + 2, k = 1 WHERE k = 0"),
    )
    for batch in batches:
        shop.run(*batch)
        for name, record in shop.refresh().items():
            assert record.executed is Mode.DIFFERENTIAL
            assert shop.warehouse.verify(name).is_same, name
