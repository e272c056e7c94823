"""Names of a query that are not there are refused with the nearest; nothing else ever is."""

from __future__ import annotations

import re

import pytest

from penstock.protocol.errors import InvalidQuery, InvalidTable
from penstock.tables.query.resolve import (
    UNKNOWN,
    RelationShape,
    check_result_names,
    resolve,
)
from tests.unit.tables.query.corpus import ACCEPTED, REFUSED, SCHEMAS, TPCH, TPCH_SCHEMAS

KNOWN = {name: RelationShape(tuple(schema.names)) for name, schema in SCHEMAS.items()}
TPCH_KNOWN = {name: RelationShape(tuple(schema.names)) for name, schema in TPCH_SCHEMAS.items()}


@pytest.mark.parametrize("query", ACCEPTED)
def test_what_spark_accepts_is_accepted(query: str) -> None:
    resolve(query, KNOWN)


def test_the_queries_of_tpc_h_are_accepted_and_none_of_their_columns_may_be_missing() -> None:
    for query in TPCH:
        resolve(query, TPCH_KNOWN)
    used = {name for query in TPCH for name in re.findall(r"\b[a-z]{1,2}_[a-z]+\b", query)}
    for table, shape in TPCH_KNOWN.items():
        for gone in used & set(shape.names):
            left = RelationShape(tuple(name for name in shape.names if name != gone))
            reading = [query for query in TPCH if re.search(rf"\b{gone}\b", query)]
            for query in reading:
                with pytest.raises(InvalidQuery, match=f"no column '{gone}'"):
                    resolve(query, {**TPCH_KNOWN, table: left})


@pytest.mark.parametrize(("query", "named", "place"), REFUSED)
def test_a_name_that_is_not_there_is_refused_with_its_place_and_the_nearest(
    query: str, named: str, place: tuple[int, int]
) -> None:
    with pytest.raises((InvalidQuery, InvalidTable)) as refused:
        resolve(query, KNOWN)
    assert named in refused.value.message
    assert "(line {}, column {})".format(*place) in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("SELECT id, v + 1 AS w FROM orders", ("id", "w")),
        ("SELECT p.* EXCEPT (city), id FROM sales.people p, orders",
         ("name", "age", "odd name", "User", "id")),
        ("SELECT a, b FROM (SELECT id, v FROM orders) t(a, b)", ("a", "b")),
        ("WITH c AS (SELECT item.name AS n FROM orders) SELECT * FROM c", ("n",)),
        ("SELECT id FROM orders UNION ALL SELECT age FROM sales.people", ("id",)),
    ],
)  # fmt: skip
def test_the_columns_of_a_query_are_told(query: str, names: tuple[str, ...]) -> None:
    assert resolve(query, KNOWN) == RelationShape(names)


def test_columns_whose_names_are_spark_s_to_make_leave_the_answer_open() -> None:
    assert resolve("SELECT count(*) FROM orders", KNOWN).open
    assert resolve("SELECT inline(lines) FROM orders", KNOWN).open


def test_a_relation_whose_columns_are_not_known_lets_every_name_through() -> None:
    known = {**KNOWN, "raw": UNKNOWN}
    resolve("SELECT anything, raw.more FROM raw WHERE EXISTS (SELECT less FROM orders)", known)
    with pytest.raises(InvalidQuery, match="did you mean 'id'"):
        resolve("SELECT idd FROM orders WHERE v IN (SELECT other FROM raw)", known)


def test_a_column_that_cannot_be_read_is_refused_where_it_is_needed_and_nowhere_else() -> None:
    known = {"t": RelationShape(("id", "span"), unreadable={"span": "INTERVAL"})}
    for query in (
        "SELECT id FROM t",
        "SELECT * EXCEPT (span) FROM t",
        "SELECT count(*) FROM t",
        "SELECT id FROM (SELECT * FROM t) WHERE EXISTS (SELECT * FROM t)",
    ):
        resolve(query, known)
    for query in ("SELECT span FROM t", "SELECT id FROM t WHERE t.span IS NULL"):
        with pytest.raises(InvalidQuery, match=r"'span' \(line 1, .*\) has the type INTERVAL"):
            resolve(query, known)
    with pytest.raises(InvalidQuery, match=r"or with \* EXCEPT \(span\)"):
        resolve("WITH c AS (SELECT * FROM t) SELECT * FROM c", known)


def test_a_long_union_and_a_deep_query_are_resolved_or_let_through() -> None:
    resolve(" UNION ALL ".join(["SELECT id FROM orders"] * 300), KNOWN)
    nested = "SELECT id FROM orders"
    for _ in range(40):
        nested = f"SELECT id FROM ({nested})"
    assert resolve(nested, KNOWN) == RelationShape(("id",))


TWO = {"t": RelationShape(("id", "k")), "u": RelationShape(("k", "m")), "raw": UNKNOWN}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM t, u",
        "SELECT t.id FROM t JOIN u ON t.k = u.k WHERE k > 1",
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM t a JOIN u b ON a.id = b.m WHERE abs(k) > 1)",
    ],
)
def test_a_column_of_several_tables_is_refused_with_its_place(query: str) -> None:
    with pytest.raises(InvalidQuery, match=r"'k' \(line 1, column \d+\) is in several tables: wri"):
        resolve(query, TWO)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k FROM t JOIN u USING (k)",
        "SELECT k FROM t NATURAL JOIN u",
        "SELECT k FROM t LEFT SEMI JOIN u ON t.k = u.k",
        "SELECT t.k FROM t JOIN u ON t.k = u.k ORDER BY k",
        "SELECT t.k FROM t JOIN u ON t.k = u.k GROUP BY t.k HAVING k > 1",
        "SELECT t.k + 1 AS k, k + 1 AS l FROM t JOIN u ON t.k = u.k",
        "SELECT transform(array(1), k -> k + 1) AS x FROM t, u",
        "SELECT k FROM t, raw",
        "SELECT id FROM t JOIN u ON t.k = u.k WHERE EXISTS (SELECT 1 FROM u WHERE k = t.k)",
    ],
)
def test_a_column_that_two_tables_have_may_still_be_one(query: str) -> None:
    resolve(query, TWO)


def test_a_table_whose_columns_have_one_name_is_refused() -> None:
    for query in (
        "SELECT id, v AS ID FROM orders",
        "SELECT id, o.id FROM orders o UNION SELECT 1, 2",
    ):
        with pytest.raises(
            InvalidQuery, match="needs columns of different names, and has id twice"
        ):
            check_result_names(query.replace("ID", "id"))
    check_result_names("SELECT *, id FROM orders")
    check_result_names("SELECT o.id, count(*), count(*) FROM orders o GROUP BY 1")
