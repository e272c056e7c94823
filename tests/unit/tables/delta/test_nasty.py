# ruff: noqa: E501 - a case reads best in a line
"""Batches that break careless deltas, by name: each is applied and compared with the query."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.unit.tables.delta.duck import Duck, Views, applied

TABLES = {
    "o": {"id": "INT", "c": "INT", "amt": "INT"},
    "c": {"id": "INT", "name": "VARCHAR", "region": "INT"},
    "e": {"k": "INT", "v": "DOUBLE", "xs": "INT[]"},
}
START = (
    "INSERT INTO o VALUES (1, 1, 10), (2, 1, 20), (3, 2, 20), (4, NULL, 5), (5, 3, NULL), (5, 3, NULL)",
    "INSERT INTO c VALUES (1, 'ann', 1), (2, 'bob', 1), (3, 'cyd', 2), (NULL, 'nil', 2)",
    "INSERT INTO e VALUES (1, 1.5, [1, 2]), (1, 2.5, []), (2, 1e300, NULL), (NULL, 0.0, [3, 3])",
)


class Case(NamedTuple):
    """A query and the batches it goes through, each a few statements."""

    query: str
    batches: tuple[tuple[str, ...], ...]


def case(query: str, *batches: str) -> Case:
    return Case(query, tuple(tuple(part.strip() for part in b.split(";")) for b in batches))


JOIN = "SELECT o.id, c.name, amt FROM o JOIN c ON o.c = c.id"
LEFT = "SELECT o.id, c.name FROM o LEFT JOIN c ON o.c = c.id"
FULL = "SELECT o.id AS oid, c.id AS cid FROM o FULL JOIN c ON o.c = c.id"
SUMS = "SELECT c, sum(amt) s, count(*) n, count(amt) m FROM o GROUP BY c"
NOT_IN = "SELECT id FROM o WHERE c NOT IN (SELECT id FROM c)"
EXISTS = "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c WHERE c.id = o.c)"
ANTI = "SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.id = o.c)"
MAXIMUM = "SELECT id FROM o WHERE amt = (SELECT max(amt) FROM o)"
LATEST = "SELECT id, c, amt, row_number() OVER (PARTITION BY c ORDER BY amt DESC, id) rn FROM o"
TOP = "SELECT id, amt FROM o ORDER BY amt DESC, id LIMIT 2"
LEVELS = (
    "WITH l1 AS (SELECT c, sum(amt) s FROM o GROUP BY c), l2 AS (SELECT s, count(*) n FROM l1 "
    "GROUP BY s), l3 AS (SELECT l2.n, l1.c FROM l2 JOIN l1 ON l1.s <=> l2.s), l4 AS (SELECT n, "
    "max(c) x FROM l3 GROUP BY n) SELECT n, x FROM l4 WHERE x > 0"
)

CASES = {
    # joins
    "both sides of a join at once": case(
        JOIN, "INSERT INTO o VALUES (6, 4, 1); INSERT INTO c VALUES (4, 'dee', 1)"
    ),
    "both sides of a match leave at once": case(JOIN, "DELETE FROM o WHERE c = 1; DELETE FROM c WHERE id = 1"),
    "one side comes as the other leaves": case(
        JOIN, "INSERT INTO o VALUES (6, 2, 1); DELETE FROM c WHERE id = 2"
    ),
    "a re-pointed foreign key": case(JOIN, "UPDATE o SET c = 2 WHERE id = 1"),
    "a re-pointed primary key": case(JOIN, "UPDATE c SET id = 9 WHERE id = 1; UPDATE o SET c = 9 WHERE id = 2"),
    "swapped keys": case(JOIN, "UPDATE c SET id = 3 - id WHERE id IN (1, 2)"),
    "a key becomes NULL": case(JOIN, "UPDATE o SET c = NULL WHERE id = 1"),
    "a key stops being NULL": case(JOIN, "UPDATE o SET c = 1 WHERE id = 4"),
    "NULL keys meet only null-safely": case(
        "SELECT o.id, c.name FROM o JOIN c ON o.c <=> c.id",
        "INSERT INTO o VALUES (7, NULL, 1)", "DELETE FROM c WHERE id IS NULL",
    ),
    "a duplicate of a join partner": case(JOIN, "INSERT INTO c VALUES (1, 'ann', 1)", "DELETE FROM c WHERE id = 1"),
    "equal rows on both sides": case(
        JOIN, "INSERT INTO o SELECT * FROM o; INSERT INTO c SELECT * FROM c", "DELETE FROM o WHERE id = 5"
    ),
    "a self join": case(
        "SELECT a.id, b.id AS other FROM o a JOIN o b ON a.c = b.c AND a.id < b.id",
        "INSERT INTO o VALUES (6, 1, 1), (7, 1, 2); DELETE FROM o WHERE id = 1",
    ),
    "a self join on what changed": case(
        "SELECT a.id, b.amt FROM o a JOIN o b ON a.amt = b.amt", "UPDATE o SET amt = 20",
        "UPDATE o SET amt = id",
    ),
    "three relations at once": case(
        "SELECT o.id, c.name, e.v FROM o JOIN c ON o.c = c.id JOIN e ON e.k = c.region",
        "INSERT INTO o VALUES (6, 1, 1); UPDATE c SET region = 2 WHERE id = 1; DELETE FROM e WHERE k = 1",
    ),
    "a cross join": case(
        "SELECT o.id, c.id AS cid FROM o CROSS JOIN c", "DELETE FROM o WHERE id > 2; DELETE FROM c WHERE id = 1"
    ),
    "a join by inequality": case(
        "SELECT a.id, b.id AS later FROM o a JOIN o b ON a.amt < b.amt", "UPDATE o SET amt = 15 WHERE id = 1"
    ),
    "a row that changes nothing visible": case(
        "SELECT id FROM o WHERE c = 1", "UPDATE o SET amt = amt + 1"
    ),
    # outer joins
    "the last match gone": case(LEFT, "DELETE FROM c WHERE id = 2"),
    "the first match comes": case(LEFT, "INSERT INTO o VALUES (8, 8, 1)", "INSERT INTO c VALUES (8, 'hal', 1)"),
    "one of two matches gone": case(
        LEFT, "INSERT INTO c VALUES (2, 'bea', 1)", "DELETE FROM c WHERE name = 'bob'", "DELETE FROM c WHERE id = 2"
    ),
    "a match comes for a row that comes": case(LEFT, "INSERT INTO o VALUES (8, 8, 1); INSERT INTO c VALUES (8, 'hal', 1)"),
    "a match leaves with its row": case(LEFT, "DELETE FROM o WHERE c = 2; DELETE FROM c WHERE id = 2"),
    "lone rows of both sides": case(FULL, "DELETE FROM c WHERE id = 1; DELETE FROM o WHERE c = 2"),
    "both sides of a full join emptied": case(FULL, "DELETE FROM c; DELETE FROM o", "INSERT INTO c VALUES (1, 'x', 1)"),
    "a right join that loses its left": case(
        "SELECT c.name, o.id FROM o RIGHT JOIN c ON o.c = c.id", "DELETE FROM o WHERE c = 2", "UPDATE c SET id = 1"
    ),
    "a left join with a condition on the left": case(
        "SELECT o.id, c.name FROM o LEFT JOIN c ON o.c = c.id AND o.amt > 15",
        "UPDATE o SET amt = amt + 10", "DELETE FROM c WHERE id = 1",
    ),
    "a chain of left joins": case(
        "SELECT o.id, c.name, e.v FROM o LEFT JOIN c ON o.c = c.id LEFT JOIN e ON e.k = c.region",
        "DELETE FROM e WHERE k = 1", "DELETE FROM c WHERE id = 1; INSERT INTO e VALUES (1, 9.0, NULL)",
    ),
    "a left join counted": case(
        "SELECT c.id, count(o.id) n FROM c LEFT JOIN o ON o.c = c.id GROUP BY c.id",
        "DELETE FROM o WHERE c = 1", "INSERT INTO o VALUES (9, 1, 1); DELETE FROM c WHERE id = 3",
    ),
    # marks
    "EXISTS flips both ways": case(EXISTS, "DELETE FROM c WHERE id = 1", "INSERT INTO c VALUES (1, 'ann', 1)"),
    "EXISTS does not flip for the second match": case(EXISTS, "INSERT INTO c VALUES (1, 'eve', 1)", "DELETE FROM c WHERE name = 'eve'"),
    "EXISTS flips for a row that changes": case(EXISTS, "UPDATE o SET c = 7 WHERE id = 1; DELETE FROM c WHERE id = 2"),
    "NOT EXISTS with both sides": case(ANTI, "INSERT INTO o VALUES (8, 8, 1); DELETE FROM c WHERE id = 3", "DELETE FROM c"),
    "EXISTS with more than a key": case(
        "SELECT id FROM o a WHERE EXISTS (SELECT 1 FROM o b WHERE b.c = a.c AND b.id <> a.id)",
        "DELETE FROM o WHERE id = 2", "INSERT INTO o VALUES (6, 2, 1), (7, 1, 1)",
    ),
    "EXISTS of anything": case(
        "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c WHERE region = 2)", "DELETE FROM c WHERE region = 2",
        "INSERT INTO c VALUES (9, 'z', 2); INSERT INTO o VALUES (9, 9, 9)",
    ),
    "EXISTS under OR": case(
        "SELECT id FROM o WHERE amt > 15 OR EXISTS (SELECT 1 FROM c WHERE c.id = o.c AND region = 2)",
        "UPDATE c SET region = 3 - region", "UPDATE o SET amt = 1",
    ),
    "IN of the first": case(
        "SELECT id FROM o WHERE c IN (SELECT id FROM c WHERE id > 0 ORDER BY name LIMIT 1)",
        "UPDATE c SET name = 'aaa' WHERE id = 2", "DELETE FROM c WHERE id = 2",
    ),
    "NOT IN of the first two": case(
        "SELECT id FROM o WHERE c NOT IN (SELECT id FROM c ORDER BY id NULLS LAST LIMIT 2)",
        "DELETE FROM c WHERE id = 1", "DELETE FROM c WHERE id = 3",
    ),
    "IN loses its last": case(
        "SELECT id FROM o WHERE c IN (SELECT id FROM c WHERE region = 1)", "UPDATE c SET region = 5 WHERE id = 1"
    ),
    "NOT IN with a NULL that comes and goes": case(
        NOT_IN, "DELETE FROM c WHERE id IS NULL OR id = 3", "INSERT INTO c VALUES (NULL, 'nil', 2)",
        "DELETE FROM c WHERE id IS NULL",
    ),
    "NOT IN of nothing": case(NOT_IN, "DELETE FROM c", "INSERT INTO c VALUES (1, 'ann', 1)"),
    "NOT before IN and OR": case(
        "SELECT id FROM o WHERE NOT (c IN (SELECT id FROM c) OR amt > 15)",
        "DELETE FROM c WHERE id IS NULL", "INSERT INTO c VALUES (NULL, 'nil', 2); INSERT INTO o VALUES (6, 8, 1)",
        "DELETE FROM c",
    ),
    "NOT NOT, and NOT before AND": case(
        "SELECT id FROM o WHERE NOT (NOT (c = 1) AND c NOT IN (SELECT id FROM c WHERE id IS NOT NULL))",
        "DELETE FROM c WHERE id = 2", "UPDATE o SET c = 2",
    ),
    "a join in parentheses": case(
        "SELECT o.id, e.v FROM o JOIN (c JOIN e ON e.k = c.region) ON o.c = c.id AND e.v < 2",
        "UPDATE c SET region = 3 - region", "INSERT INTO e VALUES (1, 0.5, NULL); DELETE FROM o WHERE id = 1",
    ),
    "NOT IN as a value": case(
        "SELECT id, coalesce(c NOT IN (SELECT id FROM c), FALSE) b FROM o", "DELETE FROM c WHERE id IS NULL", "DELETE FROM c",
    ),
    "IN correlated as a value": case(
        "SELECT id, coalesce(amt IN (SELECT region * 10 FROM c WHERE c.id = o.c), FALSE) b FROM o",
        "UPDATE c SET region = NULL WHERE id = 1", "DELETE FROM c WHERE id = 2",
    ),
    "EXISTS twice over the same": case(
        "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c WHERE c.id = o.c) "
        "AND NOT EXISTS (SELECT 1 FROM c WHERE c.region = o.c)",
        "INSERT INTO c VALUES (5, 'v', 3)", "UPDATE c SET region = 9, id = 1 WHERE id = 2",
    ),
    "EXISTS inside EXISTS": case(
        "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM c WHERE c.id = o.c AND EXISTS "
        "(SELECT 1 FROM e WHERE e.k = c.region))", "DELETE FROM e WHERE k = 1", "INSERT INTO e VALUES (1, 0.0, NULL)",
    ),
    # scalars
    "a moving maximum": case(MAXIMUM, "INSERT INTO o VALUES (9, 9, 99)", "DELETE FROM o WHERE id = 9", "DELETE FROM o"),
    "COUNT over nothing is 0": case(
        "SELECT c.id, (SELECT count(*) FROM o WHERE o.c = c.id) n FROM c", "DELETE FROM o WHERE c = 2",
        "INSERT INTO o VALUES (9, 2, 1); INSERT INTO c VALUES (77, 'new', 1)",
    ),
    "SUM over nothing is NULL": case(
        "SELECT c.id, (SELECT sum(amt) FROM o WHERE o.c = c.id) n FROM c", "DELETE FROM o WHERE c = 2", "DELETE FROM o",
    ),
    "an expression over nothing": case(
        "SELECT c.id, (SELECT coalesce(sum(amt), 0) + count(*) FROM o WHERE o.c = c.id) n FROM c",
        "DELETE FROM o WHERE c = 1", "UPDATE c SET id = 1",
    ),
    "a running total by a subquery": case(
        "SELECT id, (SELECT sum(amt) FROM o b WHERE b.id <= a.id) t FROM o a", "INSERT INTO o VALUES (0, 1, 100)",
        "DELETE FROM o WHERE id = 3",
    ),
    "above its group's average": case(
        "SELECT id FROM o a WHERE amt > (SELECT avg(amt) FROM o b WHERE b.c = a.c)", "UPDATE o SET amt = 90 WHERE id = 1"
    ),
    # groups
    "an emptied and refilled group": case(SUMS, "DELETE FROM o WHERE c = 1", "INSERT INTO o VALUES (1, 1, 10)"),
    "a NULL group": case(SUMS, "INSERT INTO o VALUES (8, NULL, 7)", "DELETE FROM o WHERE c IS NULL"),
    "only NULLs left to sum": case(SUMS, "UPDATE o SET amt = NULL WHERE c = 1", "UPDATE o SET amt = 3 WHERE id = 2"),
    "a row that changes its group": case(SUMS, "UPDATE o SET c = 2 WHERE id = 1"),
    "groups that swap": case(SUMS, "UPDATE o SET c = 3 - c WHERE c IN (1, 2)"),
    "the total of nothing": case("SELECT sum(amt) s, count(*) n FROM o", "DELETE FROM o", "INSERT INTO o VALUES (1, 1, 1)"),
    "ties of an extreme": case(
        "SELECT min(amt) a, max(amt) b FROM o", "DELETE FROM o WHERE id = 2", "DELETE FROM o WHERE id = 3",
        "INSERT INTO o VALUES (6, 1, 20), (7, 1, 20)",
    ),
    "HAVING lets groups come and go": case(
        "SELECT c FROM o GROUP BY c HAVING sum(amt) > 25", "UPDATE o SET amt = amt + 10", "UPDATE o SET amt = 0 WHERE c = 1"
    ),
    "multiplicity 2, 1, 0, 1": case(
        "SELECT DISTINCT c FROM o", "DELETE FROM o WHERE id = 1", "DELETE FROM o WHERE id = 2", "INSERT INTO o VALUES (1, 1, 1)"
    ),
    "equal rows leave one by one": case(
        "SELECT id, c FROM o", "DELETE FROM o WHERE id = 5; INSERT INTO o VALUES (5, 3, NULL)",
        "INSERT INTO o SELECT 5, 3, NULL FROM range(3)",
    ),
    "DISTINCT inside an aggregate": case(
        "SELECT c, count(DISTINCT amt) n, sum(DISTINCT amt) s FROM o GROUP BY c", "UPDATE o SET amt = 20 WHERE id = 1",
        "UPDATE o SET amt = 21 WHERE id = 2",
    ),
    "a group of a group": case(
        "SELECT s, count(*) n FROM (SELECT c, sum(amt) s FROM o GROUP BY c) x GROUP BY s",
        "UPDATE o SET amt = 30 WHERE id = 3", "DELETE FROM o WHERE c = 2",
    ),
    "infinities in sums": case(
        "SELECT k, sum(v) s, avg(v) a FROM e GROUP BY k", "INSERT INTO e VALUES (1, 'inf'::DOUBLE, NULL)",
        "DELETE FROM e WHERE v = 'inf'::DOUBLE",
    ),
    "a huge float in and out again": case(
        "SELECT k, sum(v) s FROM e GROUP BY k", "INSERT INTO e VALUES (1, 1e300, NULL)", "DELETE FROM e WHERE v = 1e300"
    ),
    "not a number": case(
        "SELECT v, count(*) n FROM e GROUP BY v", "INSERT INTO e VALUES (5, 'nan'::DOUBLE, NULL), (6, 'nan'::DOUBLE, NULL)",
        "DELETE FROM e WHERE k = 5",
    ),
    "rollup": case("SELECT c, amt, count(*) n FROM o GROUP BY ROLLUP(c, amt)", "DELETE FROM o WHERE c = 1", "UPDATE o SET amt = 1"),
    "grouping sets with NULL keys": case(
        "SELECT c, amt, grouping(c) g, count(*) n FROM o GROUP BY GROUPING SETS ((c), (amt), (c, amt))",
        "UPDATE o SET c = NULL WHERE id = 1", "DELETE FROM o WHERE amt IS NULL",
    ),
    # windows and top N
    "ten updates in a window": case(LATEST, ";".join(f"UPDATE o SET amt = {n} WHERE id = {n % 3 + 1}" for n in range(10))),
    "a partition that empties": case(LATEST, "DELETE FROM o WHERE c = 1", "INSERT INTO o VALUES (1, 1, 10)"),
    "the latest of each": case(
        f"SELECT id FROM ({LATEST}) x WHERE rn = 1", "INSERT INTO o VALUES (9, 1, 99)", "DELETE FROM o WHERE id = 9"
    ),
    "a running total": case(
        "SELECT id, sum(amt) OVER (PARTITION BY c ORDER BY id) t FROM o", "UPDATE o SET amt = 11 WHERE id = 1"
    ),
    "a row moves up": case(TOP, "DELETE FROM o WHERE amt = 20", "INSERT INTO o VALUES (9, 1, 50)"),
    "fewer rows than the limit": case(TOP, "DELETE FROM o WHERE id > 1", "DELETE FROM o", "INSERT INTO o VALUES (9, 1, 50)"),
    "top N with an offset": case(
        "SELECT id FROM o ORDER BY amt, id LIMIT 2 OFFSET 1", "DELETE FROM o WHERE id = 4", "INSERT INTO o VALUES (0, 0, 0)"
    ),
    "top N with ties": case("SELECT c, amt FROM o ORDER BY amt DESC LIMIT 1", "DELETE FROM o WHERE id = 2", "INSERT INTO o VALUES (2, 1, 20)"),
    "top N of a join": case(
        "SELECT name, amt FROM o JOIN c ON o.c = c.id ORDER BY amt DESC, name LIMIT 2",
        "UPDATE c SET name = 'zoe' WHERE id = 1; UPDATE o SET amt = 40 WHERE id = 3",
    ),
    # sets
    "EXCEPT ALL by multiplicity": case(
        "SELECT c FROM o EXCEPT ALL SELECT id FROM c", "INSERT INTO c VALUES (1, 'x', 1)", "DELETE FROM o WHERE id = 1"
    ),
    "INTERSECT with NULL": case("SELECT c FROM o INTERSECT SELECT id FROM c", "DELETE FROM c WHERE id IS NULL", "DELETE FROM o WHERE c = 3"),
    "INTERSECT ALL": case(
        "SELECT c FROM o INTERSECT ALL SELECT id FROM c", "INSERT INTO c VALUES (1, 'x', 1), (3, 'y', 1), (3, 'z', 1)"
    ),
    "UNION keeps what the other side has": case(
        "SELECT c FROM o UNION SELECT id FROM c", "DELETE FROM c WHERE id = 1", "DELETE FROM o WHERE c = 1"
    ),
    "UNION ALL of one relation twice": case(
        "SELECT id FROM o WHERE amt > 5 UNION ALL SELECT id FROM o WHERE c = 1", "UPDATE o SET amt = 1, c = 1 WHERE id = 3"
    ),
    "UNION ALL of which one side changed": case(
        "SELECT id FROM o UNION ALL SELECT id FROM c", "UPDATE c SET id = 8 WHERE id = 1"
    ),
    # arrays, views, names
    "exploded arrays that change": case(
        "SELECT k, x FROM e LATERAL VIEW explode(xs) t AS x", "UPDATE e SET xs = [2, 2, 7] WHERE v = 1.5", "UPDATE e SET xs = NULL"
    ),
    "exploded and counted": case(
        "SELECT x, count(*) n FROM e LATERAL VIEW explode(xs) t AS x GROUP BY x", "UPDATE e SET xs = [3] WHERE k = 1"
    ),
    "five levels": case(LEVELS, "UPDATE o SET amt = 20 WHERE id = 1", "DELETE FROM o WHERE c = 2; INSERT INTO o VALUES (9, 9, 20)"),
    "a CTE used three times": case(
        "WITH x AS (SELECT c, count(*) n FROM o GROUP BY c) SELECT a.c, b.n FROM x a JOIN x b ON a.n = b.n "
        "WHERE a.n < (SELECT max(n) + 1 FROM x)", "DELETE FROM o WHERE id = 1", "INSERT INTO o VALUES (7, 2, 1), (8, 2, 1)",
    ),
    "columns of the same name": case(
        "SELECT x.id FROM (SELECT o.*, c.name FROM o JOIN c ON o.c = c.id) x JOIN c ON c.name = x.name",
        "UPDATE c SET name = 'ann' WHERE id = 2",
    ),
    "a column alias that hides a column": case(
        "SELECT c + 1 AS c, sum(amt) AS amt FROM o WHERE c > 0 GROUP BY c HAVING sum(amt) > 5",
        "UPDATE o SET amt = 4 WHERE id = 3", "DELETE FROM o WHERE c = 1",
    ),
    "everything at once": case(
        "SELECT c.region, count(*) n, max(amt) m FROM o JOIN c ON o.c = c.id WHERE EXISTS "
        "(SELECT 1 FROM e WHERE e.k = c.region) AND amt >= (SELECT min(amt) FROM o) "
        "GROUP BY c.region HAVING count(*) > 0",
        "DELETE FROM o WHERE id = 4; UPDATE c SET region = 2; INSERT INTO e VALUES (2, 0.0, NULL)",
        "DELETE FROM e WHERE k = 2", "INSERT INTO e VALUES (2, 1.0, NULL); UPDATE o SET amt = 7",
    ),
    "all rows replaced": case(JOIN, "DELETE FROM o; DELETE FROM c", *START[:2]),
    "everything to nothing and back": case(FULL, "DELETE FROM o; DELETE FROM c", f"{START[0]}; {START[1]}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_nasty_batch(name: str) -> None:
    run_case(name)


def run_case(name: str) -> None:
    """Check every batch of a case."""
    query, batches = CASES[name]
    duck = started()
    for batch in batches:
        duck.remember()
        for statement in batch:
            duck.db.execute(statement)
        changed = duck.check(query)
        assert changed, "a batch changes something"
        duck.check_stages(query, changed)


@pytest.mark.parametrize("query", [JOIN, FULL, SUMS, NOT_IN, LATEST, TOP, LEVELS])
def test_ten_small_batches_in_another_order_come_to_the_same(query: str) -> None:
    steps = [
        "DELETE FROM o WHERE id = 1", "INSERT INTO c VALUES (7, 'x', 1)", "UPDATE o SET amt = 3 WHERE id = 4",
        "DELETE FROM c WHERE id IS NULL", "INSERT INTO o VALUES (6, 7, 20)", "UPDATE c SET region = 5 WHERE id = 2",
        "INSERT INTO o VALUES (7, NULL, 1)", "DELETE FROM o WHERE id = 3", "INSERT INTO c VALUES (9, 'y', 2)",
        "UPDATE o SET c = 9 WHERE id = 2",
    ]  # fmt: skip
    at_once, one_by_one = followed(query, [steps]), followed(query, [[s] for s in reversed(steps)])
    assert at_once == one_by_one


def followed(query: str, batches: list[list[str]]) -> object:
    """The contents after batches, by deltas alone."""
    duck = started()
    compiled = duck.compile(query)
    duck.remember()
    contents = duck.run(compiled.full(Views()))
    for batch in batches:
        for statement in batch:
            duck.db.execute(statement)
        delta = compiled.delta(duck.changed(), Views(), broadcast=False)
        contents = contents if delta is None else applied(contents, duck.weighted(delta))
        duck.remember()
    return contents


def started() -> Duck:
    duck = Duck(TABLES)
    for statement in START:
        duck.db.execute(statement)
    return duck


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60
