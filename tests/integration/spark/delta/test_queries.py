"""The rules on Spark itself: results as multisets, and Spark's own types."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.integration.spark.delta.on_spark import OnSpark
from tests.unit.tables.delta.duck import Duck
from tests.unit.tables.delta.test_rules import QUERIES, TABLES
from tests.unit.tables.delta.tpch import change, generated, queries

SPARKS_OWN = [
    "SELECT k, n, grouping(n) g, sum(n) s FROM t GROUP BY ROLLUP(k, n)",
    "SELECT k, n, count(*) s, grouping_id() g, grouping_id(k, n) h FROM t GROUP BY CUBE(k, n)",
    "SELECT k, n, count(*) s FROM t GROUP BY GROUPING SETS ((k), (n), ())",
    "SELECT k, i, x FROM t LATERAL VIEW OUTER posexplode(sequence(1, n)) e AS i, x",
    "SELECT explode(array(k, n)) FROM t",
    "SELECT sort_array(collect_list(n)), count_if(n > 2), size(collect_set(n)) FROM t GROUP BY k",
    "SELECT k, sum(n), avg(n), stddev(n), max(struct(n, k)) FROM t GROUP BY ALL",
    "SELECT k, avg(CAST(n AS DECIMAL(9, 2))), sum(CAST(n AS DOUBLE) / 3) FROM t GROUP BY k",
    "SELECT count(*), sum(n), size(collect_set(n)) FROM t WHERE k > 100",
    (
        "SELECT k, lag(n) OVER (PARTITION BY k ORDER BY n), ntile(2) OVER w FROM t "
        "WINDOW w AS (PARTITION BY k ORDER BY n)"
    ),
    "SELECT k / 2, n FROM t UNION ALL SELECT m, 0.5 FROM u",
    "SELECT k, CAST(n AS STRING) z FROM t INTERSECT SELECT k, CAST(m AS STRING) FROM u",
    "SELECT t.*, u.* FROM t FULL JOIN u ON t.k = u.k",
    "SELECT * FROM t NATURAL LEFT JOIN u",
    "SELECT *, k IN (SELECT m FROM u) FROM t",
    "SELECT k, (SELECT max(m) FROM u WHERE u.k = t.k) + 1, (SELECT count(*) FROM u) FROM t",
    "SELECT (k, n) IN (SELECT k, m FROM u) b, k FROM t",
    "SELECT k, n FROM t WHERE (k, n) NOT IN (SELECT k, m FROM u)",
    "SELECT `k` AS `a b`, named_struct('x', n).x FROM t WHERE n BETWEEN 1 AND 4",
    "SELECT transform(array(k, n), x -> x + 1) FROM t",
]


@pytest.fixture(scope="module")
def small(spark: Any) -> OnSpark:
    random = Random(7)
    duck = Duck(TABLES)
    for name in TABLES:
        duck.insert(name, [_row(random) for _ in range(12)])
    duck.remember()
    for name in TABLES:
        duck.delete_some(name, 4, random.random())
        duck.insert(name, [_row(random) for _ in range(5)])
    assert duck.changed() == set(TABLES)
    found = OnSpark(spark, duck)
    found.show("", "old_", "delta_")
    return found


@pytest.mark.parametrize(
    "query", [*SPARKS_OWN, *(pytest.param(query, marks=pytest.mark.slow) for query in QUERIES)]
)
def test_spark_gives_the_new_result(query: str, small: OnSpark) -> None:
    small.check(query)


@pytest.fixture(scope="module")
def tpch(spark: Any) -> OnSpark:
    duck = generated(0.001)
    duck.remember()
    change(duck, Random(3))
    duck.changed()
    found = OnSpark(spark, duck)
    found.show("", "old_", "delta_")
    return found


QUICK, LONG = (1, 4, 13), (3, 11, 15, 16, 17, 20, 21, 22)


@pytest.mark.parametrize(
    "number", [*QUICK, *(pytest.param(number, marks=pytest.mark.slow) for number in LONG)]
)
def test_spark_brings_queries_of_tpch_up_to_date(number: int, tpch: OnSpark) -> None:
    tpch.check(queries()[number])


def _row(random: Random) -> tuple[int | None, ...]:
    return tuple(random.choice([None, 1, 1, 2, 3, 4, 5]) for _ in range(2))
