from __future__ import annotations

import pytest

from penstock.protocol.errors import InvalidQuery
from penstock.tables.query.sources import normal_query, read_sources

CASES = {
    "SELECT 1 AS one": (),
    "SELECT * FROM orders": ("orders",),
    "SELECT * FROM Orders o JOIN ORDERS p ON o.id = p.id": ("orders",),
    "SELECT * FROM main.orders, sales.orders": ("orders", "sales.orders"),
    "SELECT * FROM `Odd Name` JOIN `sales`.`x y`": ("odd name", "sales.x y"),
    "SELECT * FROM topics.Meters JOIN topics.`plant-7.v1`": ("topics.Meters", "topics.plant-7.v1"),
    "SELECT * FROM topics.meters.v2": ("topics.meters.v2",),
    "SELECT orders.x FROM a AS orders": ("a",),
    "WITH x AS (SELECT * FROM a) SELECT * FROM x, X AS y": ("a",),
    "WITH a AS (SELECT * FROM a) SELECT * FROM a": ("a",),
    "WITH x AS (SELECT * FROM a), y AS (SELECT * FROM x) SELECT * FROM y": ("a",),
    "WITH y AS (SELECT * FROM x), x AS (SELECT * FROM a) SELECT * FROM y": ("a", "x"),
    "SELECT * FROM x, (WITH x AS (SELECT * FROM a) SELECT * FROM x) q": ("a", "x"),
    "WITH x AS (SELECT * FROM a) SELECT * FROM main.x": ("a", "x"),
    "WITH x AS (SELECT * FROM a) SELECT * FROM x UNION ALL SELECT * FROM x": ("a",),
    "WITH RECURSIVE r AS (SELECT id FROM a UNION ALL SELECT id + 1 FROM r) SELECT * FROM r": ("a",),
    "SELECT (SELECT max(v) FROM b) FROM a WHERE a.id IN (SELECT id FROM c)": ("a", "b", "c"),
    "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.id = a.id)": ("a", "b"),
    "SELECT * FROM a LEFT SEMI JOIN b USING (id) LEFT ANTI JOIN c USING (id)": ("a", "b", "c"),
    "SELECT * FROM a LATERAL VIEW explode(a.items) t AS item": ("a",),
    "SELECT * FROM a LATERAL VIEW OUTER posexplode(items) t AS p, item": ("a",),
    "SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.id = a.id) t": ("a", "b"),
    "SELECT * FROM a, LATERAL explode(a.items) AS t(item)": ("a",),
    "SELECT * FROM range(10) r JOIN a ON r.id = a.id": ("a",),
    "SELECT * FROM VALUES (1, 2) AS t(x, y)": (),
    "SELECT * FROM a PIVOT (sum(v) FOR k IN ('x', 'y'))": ("a",),
    "SELECT * FROM a TABLESAMPLE (10 PERCENT)": ("a",),
    "SELECT x, sum(y) OVER (PARTITION BY z) FROM a": ("a",),
    "(SELECT * FROM a) EXCEPT (SELECT * FROM b) INTERSECT SELECT * FROM c": ("a", "b", "c"),
    "FROM a SELECT x": ("a",),
    "SELECT 'FROM b' AS text -- FROM c\nFROM a": ("a",),
    "SELECT * FROM a;": ("a",),
}


@pytest.mark.parametrize("query", CASES)
def test_the_relations_of_a_query_and_nothing_else_are_found(query):
    assert read_sources(query) == CASES[query]


@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("", "one SELECT, not 0"),
        ("-- nothing", "one SELECT, not 0"),
        ("SELECT", "names no column"),
        ("SELECT 1; SELECT 2", "not 2 statements"),
        ("SELEC 1", "not expected here"),
        ("SELECT * FROM (", r"cannot be parsed \(line 1, column 15: \("),
        ("SELECT id,\n  a + FROM t", r"\(line 2, column 7: FROM\): something is missing here"),
        ("SELECT a b c FROM t", r"\(line 1, column 12: c\): not expected here"),
        ("SELECT 'a FROM t", "a quote or a comment is not closed"),
        ("INSERT INTO a SELECT 1", "not INSERT"),
        ("CREATE TABLE a AS SELECT 1", "not CREATE"),
        ("DROP TABLE a", "not DROP"),
        ("SELECT * FROM one.two.three", "'schema.table'"),
        ("SELECT * FROM `a.b`", "'schema.table'"),
        ("SELECT * FROM parquet.`/tmp/x`", "reads the files"),
        ("SELECT * FROM a VERSION AS OF 3", "an old version of a"),
        ("SELECT * FROM identifier('a')", "identifier"),
    ],
)
def test_what_a_stream_table_cannot_be_made_of_is_refused(query, match):
    with pytest.raises(InvalidQuery, match=match):
        read_sources(query)


def test_a_query_nested_too_deep_is_refused():
    with pytest.raises(InvalidQuery):
        read_sources("SELECT " + "(" * 20_000 + "1" + ")" * 20_000)


def test_layout_and_comments_do_not_make_another_query():
    assert normal_query("select  a\nfrom t -- why") == normal_query("SELECT a FROM t")
    assert normal_query("SELECT a FROM t") != normal_query("SELECT b FROM t")
