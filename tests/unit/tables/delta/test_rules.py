"""Each rule on its own: old result and delta give the new result, over random batches."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.tables.delta.duck import Duck

TABLES = {"t": {"k": "INT", "n": "INT"}, "u": {"k": "INT", "m": "INT"}}
QUERIES = [
    "SELECT k, n + 1 AS x FROM t WHERE n > 3",
    "SELECT k, x FROM t LATERAL VIEW explode(sequence(1, abs(n))) e AS x",
    "SELECT k FROM t UNION ALL SELECT m FROM u",
    "SELECT t.k, m FROM t JOIN u ON t.k = u.k",
    "SELECT a.k, b.n FROM t a, t b WHERE a.k = b.n",
    "SELECT k, sum(n) s, count(*) c FROM t GROUP BY k HAVING count(*) > 1",
    "SELECT max(n) a, count(*) b FROM t",
    "SELECT k, count(DISTINCT n) d, sum(n) FILTER (WHERE n > 3) f FROM t GROUP BY k",
    "SELECT DISTINCT k FROM t",
    "SELECT k FROM t UNION SELECT k FROM u",
    "SELECT k FROM t EXCEPT SELECT k FROM u",
    "SELECT k FROM t EXCEPT ALL SELECT k FROM u",
    "SELECT k FROM t INTERSECT SELECT k FROM u",
    "SELECT k FROM t INTERSECT ALL SELECT k FROM u",
    "SELECT * FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)",
    "SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.m <> t.n)",
    "SELECT * FROM t WHERE n NOT IN (SELECT m FROM u)",
    "SELECT * FROM t WHERE n IN (SELECT m FROM u) OR k = 1",
    "SELECT k, coalesce(n NOT IN (SELECT m FROM u WHERE u.k = t.k), FALSE) z FROM t",
    "SELECT k, n FROM t LEFT SEMI JOIN u ON t.k = u.k",
    "SELECT t.* FROM t LEFT ANTI JOIN u ON t.k = u.k",
    "SELECT * FROM t LEFT JOIN u USING (k)",
    "SELECT t.k, t.n, u.m FROM t FULL JOIN u ON t.k = u.k AND t.n < u.m",
    "SELECT t.k a, u.m b FROM t RIGHT JOIN u ON t.k <=> u.k",
    "SELECT t.k, t.n, u.m FROM t LEFT JOIN u ON t.k = u.k LEFT JOIN t w ON w.n = u.m",
    "SELECT k, (SELECT count(*) FROM u WHERE u.k = t.k) c FROM t",
    "SELECT k, (SELECT sum(m) FROM u WHERE u.k <= t.k) c FROM t",
    "SELECT k, n FROM t WHERE n = (SELECT max(n) FROM t)",
    (
        "SELECT k FROM t a WHERE EXISTS "
        "(SELECT 1 FROM u WHERE u.k = a.k GROUP BY u.m HAVING count(*) > 1)"
    ),
    "SELECT k, n, row_number() OVER (PARTITION BY k ORDER BY n) rn FROM t",
    "SELECT k, n, sum(n) OVER (PARTITION BY k ORDER BY n) rn FROM t",
    "SELECT k, n FROM t ORDER BY n DESC LIMIT 3",
    "SELECT k, n FROM t ORDER BY n LIMIT 3 OFFSET 2",
    (
        "WITH v AS (SELECT k, sum(n) s FROM t GROUP BY k) "
        "SELECT v.k, v.s, w.s z FROM v JOIN v w ON v.s = w.s"
    ),
    "SELECT k, m, w.n z FROM t FULL JOIN u USING (k) JOIN t w USING (k)",
    "SELECT k, m, w.n z FROM t RIGHT JOIN u USING (k) LEFT JOIN t w USING (k)",
    "SELECT k, m, w.n z FROM t FULL JOIN u USING (k) FULL JOIN t w USING (k) WHERE k > 1",
    "SELECT k, m, w.j FROM t RIGHT JOIN u USING (k) JOIN (SELECT n AS j FROM t) w ON w.j = k",
    "SELECT k, n, sum(sum(n)) OVER (PARTITION BY k) s FROM t GROUP BY k, n",
    "SELECT k, n, lag(count(*)) OVER (PARTITION BY k ORDER BY n) s FROM t GROUP BY k, n",
    "SELECT t.k FROM t LEFT SEMI JOIN u n ON t.k = n.k",
    "SELECT k, n FROM t ORDER BY ALL DESC LIMIT 3",
    "SELECT sum(n) s, count(*) c FROM t WHERE k = 5 GROUP BY GROUPING SETS (())",
    "SELECT k AS n, n AS k FROM t ORDER BY abs(k) DESC, n + 1 LIMIT 3",
    "SELECT k, sum(n) AS n FROM t GROUP BY k ORDER BY n + 0 DESC LIMIT 2",
]


@pytest.mark.parametrize("query", QUERIES)
def test_the_old_result_and_the_delta_are_the_new_result(query: str) -> None:
    random = Random(query)
    duck = Duck(TABLES)
    for name in TABLES:
        duck.insert(name, [_row(random) for _ in range(6)])
    for _ in range(4):
        duck.remember()
        for name in TABLES:
            if random.random() < 0.8:
                duck.delete_some(name, random.randint(0, 3), random.random())
                duck.insert(name, [_row(random) for _ in range(random.randint(0, 3))])
        duck.check(query)


def _row(random: Random) -> tuple[int | None, ...]:
    return tuple(random.choice([None, 1, 1, 2, 3, 4, 5]) for _ in range(2))
