"""Keys that Spark casts before it compares them: what becomes equal is one match."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.tables.core.model import Mode
from tests.integration.spark.delta.shop import Shop

VIEWS = {
    "has": "SELECT n FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.s = a.n)",
    "either": "SELECT n FROM a WHERE n > 5 OR EXISTS (SELECT 1 FROM b WHERE b.s = a.n)",
    "total": "SELECT n, (SELECT sum(y) FROM b WHERE b.s = a.n) AS t FROM a",
    "beside": "SELECT a.n, b.y FROM a LEFT JOIN b ON b.s = a.n",
    "by_float": "SELECT n FROM a WHERE x IN (SELECT m FROM b)",
    "by_price": "SELECT n, (SELECT sum(y) FROM b WHERE b.p = a.x) AS t FROM a",
    "by_date": "SELECT n FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.t = a.d)",
    "first": """SELECT n, t FROM (SELECT n, (SELECT sum(y) FROM b WHERE b.s = a.n) AS t FROM a) q
        ORDER BY t DESC LIMIT 2""",
}
DUCKS = {
    "by_date": "SELECT n FROM a WHERE EXISTS (SELECT 1 FROM b WHERE CAST(b.t AS DATE) = a.d)",
    "by_float": "SELECT n FROM a WHERE x IN (SELECT CAST(m AS DOUBLE) FROM b)",
    "first": VIEWS["first"].replace("t DESC", "t DESC NULLS LAST"),
}
LARGE = 2**53


@pytest.mark.slow
def test_values_that_become_equal_are_one_match(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE a (n INTEGER, x DOUBLE, d DATE)",
        "CREATE TABLE b (s VARCHAR, m BIGINT, p DECIMAL(20, 1), t VARCHAR, y INTEGER)",
        f"INSERT INTO a VALUES (1, {LARGE}.0, '2024-01-05'), (2, 1e17, '2024-02-01'), (9, 0, NULL)",
    )
    for name, query in VIEWS.items():
        shop.create(name, query, duck=DUCKS.get(name))
    shop.settle(executed=Mode.FULL)
    shop.run(f"""INSERT INTO b VALUES
        ('1', {LARGE}, 100000000000000000.0, '2024-01-05', 10),
        ('01', {LARGE + 1}, 100000000000000001.0, '2024-1-5', 20)""")
    shop.settle()
    assert Counter(shop.duck.run("SELECT * FROM has").column(0).to_pylist()) == Counter([1])
    shop.run("INSERT INTO a VALUES (1, 1.0, '2024-01-05')", "DELETE FROM b WHERE y = 10")
    shop.settle()
    shop.run("INSERT INTO b VALUES ('2', 1, 1.0, '2024-02-01', 5), ('002', 1, 1.0, NULL, 6)",
             "DELETE FROM b WHERE y = 20", "DELETE FROM a WHERE n = 9")  # fmt: skip
    shop.settle()
