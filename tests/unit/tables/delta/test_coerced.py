# ruff: noqa: E501 - a case reads best in a line
"""Keys of two types: values that differ on one side and are equal to the same one of the other."""

from __future__ import annotations

import pytest

from tests.unit.tables.delta.duck import Duck

TABLES = {
    "a": {"n": "INT", "s": "VARCHAR", "m": "BIGINT", "x": "DOUBLE", "z": "INT"},
    "b": {"n": "INT", "s": "VARCHAR", "m": "BIGINT", "x": "DOUBLE", "y": "INT"},
}
LARGE = 2**53
PAIRS = ("b.s = a.n", "a.s = b.n", "b.m = a.x", "a.m = b.x", "b.s = a.n AND b.m = a.z",
         "b.m = a.n")  # fmt: skip
QUERIES = (
    "SELECT n, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE {})",
    "SELECT n, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE {})",
    "SELECT n, x FROM a WHERE z > 1 OR EXISTS (SELECT 1 FROM b WHERE {})",
    "SELECT a.n, a.x, b.y FROM a LEFT JOIN b ON {}",
    "SELECT a.n, a.x, b.y FROM b LEFT JOIN a ON {}",
    "SELECT a.n, a.x, b.y FROM a FULL JOIN b ON {}",
    "SELECT n, x, (SELECT sum(y) FROM b WHERE {}) AS t FROM a",
    "SELECT n, x, (SELECT count(*) FROM b WHERE {}) AS t FROM a",
    "SELECT n FROM (SELECT n, (SELECT sum(y) FROM b WHERE {}) AS t FROM a) AS q",
    "SELECT t, count(*) AS c FROM (SELECT (SELECT sum(y) FROM b WHERE {}) AS t FROM a) q GROUP BY t",
    "SELECT a.n, b.t FROM a LEFT JOIN (SELECT s, n, m, x, sum(y) AS t FROM b GROUP BY s, n, m, x) b ON {}",
)
INS = (
    "SELECT n FROM a WHERE x IN (SELECT m FROM b)",
    "SELECT n FROM a WHERE m NOT IN (SELECT x FROM b WHERE x > 0)",
    "SELECT n, COALESCE(x IN (SELECT m FROM b), FALSE) AS i FROM a",
)
START = (
    "INSERT INTO a VALUES (1, '01', 1, 1.0, 1), (2, '2', 2, 2.0, 2), (1, '1', 1, 1.0, 1)",
    f"INSERT INTO a VALUES (NULL, NULL, NULL, NULL, NULL), (7, '7', {LARGE}, {LARGE}.0, 3)",
)
BATCHES = (
    ("INSERT INTO b VALUES (1, '1', 1, 1.0, 10), (1, '01', 1, 1.0, 20)",
     f"INSERT INTO b VALUES (7, '7', {LARGE + 1}, {LARGE}.0, 1), (7, '007', {LARGE}, 2.0, 2)"),
    ("INSERT INTO a VALUES (1, '001', 3, 1.0, 0), (3, '3', 3, 3.0, 3)", "DELETE FROM b WHERE s = '1'"),
    ("DELETE FROM b WHERE s = '01'", "INSERT INTO b VALUES (2, '02', 2, 2.0, 5), (NULL, NULL, 0, 0, 0)"),
    ("UPDATE b SET s = '0' || s", f"UPDATE a SET x = {LARGE + 2}.0, m = {LARGE + 1} WHERE n = 7"),
    ("DELETE FROM a WHERE s = '01'", "DELETE FROM b WHERE y < 3"),
)  # fmt: skip
ALL = [*INS, *(query.format(PAIRS[(2 * number + more) % len(PAIRS)])
               for number, query in enumerate(QUERIES) for more in range(3))]  # fmt: skip


@pytest.mark.parametrize("query", ALL)
def test_values_that_become_equal_are_one_match(query: str) -> None:
    duck = Duck(TABLES)
    for statement in START:
        duck.db.execute(statement)
    for batch in BATCHES:
        duck.remember()
        for statement in batch:
            duck.db.execute(statement)
        changed = duck.check(query)
        duck.check_stages(query, changed)
