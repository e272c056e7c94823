"""What is read of a query is written again with the same functions and the same arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.protocol.errors import InvalidQuery
from penstock.tables.query.dialect import ExactSpark
from penstock.tables.query.sources import parse_query

FUNCTIONS = (Path(__file__).parent / "functions.txt").read_text().split()
"""Those of Spark 4.3 that are called by name (`SHOW SYSTEM FUNCTIONS`)."""

RENAMED = {
    "curdate": "CURRENT_DATE",
    "position": "LOCATE",
    "substr": "SUBSTRING",
    "var_samp": "VARIANCE",
}
OTHERWISE = {
    "curdate()": "CURRENT_DATE",
    "current_date()": "CURRENT_DATE",
    "localtime()": "LOCALTIME",
    "localtimestamp()": "LOCALTIMESTAMP",
    "overlay(a, b, c)": "OVERLAY(a PLACING b FROM c)",
    "overlay(a, b, c, d)": "OVERLAY(a PLACING b FROM c FOR d)",
    "session_user()": "SESSION_USER",
    "trim(a, b)": "TRIM(a FROM b)",
}
"""Calls that are written in another way, which Spark takes for the same."""

BY_GRAMMAR = {
    "ceil", "floor", "if", "overlay", "position", "substr", "substring", "transform", "trim",
}  # fmt: skip
BY_TYPE = BY_GRAMMAR | {name.lower() for name in ExactSpark.Parser.FUNCTIONS}
"""Functions with no more arguments than Spark takes: others are refused, or left out."""


def written(call: str) -> str:
    return parse_query(f"SELECT {call} AS x FROM t").selects[0].this.sql(dialect="spark")


def calls(name: str) -> list[str]:
    return [f"{name}({', '.join('abcde'[:count])})" for count in range(6)]


OPERATORS = {"and", "or", "struct"}
"""See the last test."""


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - BY_TYPE - OPERATORS))
def test_a_function_is_written_under_its_name_with_its_arguments(name: str) -> None:
    for call in calls(name):
        assert written(call) == name.upper() + call[len(name) :]


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) & BY_TYPE - OPERATORS))
def test_a_function_read_by_type_is_written_as_the_same(name: str) -> None:
    kept = 0
    for call in calls(name):
        try:
            found = written(call)
        except InvalidQuery:
            continue
        if found.count(",") < call.count(",") and call not in OTHERWISE:
            continue  # it has more arguments than Spark takes
        same = RENAMED.get(name, name.upper()) + call[len(name) :]
        assert found == OTHERWISE.get(call, same)
        kept += 1
    assert kept


@pytest.mark.parametrize(
    ("call", "same"),
    [
        ("dateadd(HOUR, 1, at)", "DATEADD(HOUR, 1, at)"),
        ("timestampdiff(DAY, at, b)", "TIMESTAMPDIFF(DAY, at, b)"),
        ("date_add(at, 1)", "DATE_ADD(at, 1)"),
        ("and(a, b, c)", "(a AND b AND c)"),
        ("or(a, b)", "(a OR b)"),
        ("struct(a, b.c, d + 1 AS E)", "STRUCT(a AS a, b.c AS c, d + 1 AS E)"),
        ("trunc(a, b)", "TRUNC(a, b)"),
        ("first_value(a, true)", "FIRST_VALUE(a) IGNORE NULLS"),
        ("first_value(a, false)", "FIRST_VALUE(a)"),
        ("last(a, b)", "LAST(a, b)"),
        ("any(a)", "ANY(a)"),
        ("window", "window"),
        ("window(a, '5 minutes').start", "WINDOW(a, '5 minutes').start"),
        ("TRY_CAST(a AS INT)", "TRY_CAST(a AS INT)"),
        ("CAST(a AS INT)", "CAST(a AS INT)"),
        ("exists(xs, x -> x > 1)", "EXISTS(xs, x -> x > 1)"),
        ("a > ANY (SELECT 1)", "a > ANY(SELECT 1)"),
        ("a LIKE ANY ('x', 'y')", "a LIKE ANY ('x', 'y')"),
        ("named_struct(concat('a', b), c)", "NAMED_STRUCT(CONCAT('a', b), c)"),
        ("percentile(DISTINCT a, 0.5)", "PERCENTILE(DISTINCT a, 0.5)"),
    ],
)
def test_arguments_that_are_words_or_queries_stay(call: str, same: str) -> None:
    assert written(call) == same


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(*) AS n FROM t GROUP BY WINDOW(ts, '5 minutes')",
        "SELECT COUNT(*) AS n FROM t GROUP BY WINDOW(ts, '5 minutes'), k HAVING TRUE",
        "SELECT window.start FROM t GROUP BY k, window ORDER BY window",
        "SELECT SUM(n) OVER w FROM t AS window WINDOW w AS (PARTITION BY k), v AS (ORDER BY n)",
        "SELECT 1 AS window FROM t WHERE window > 1",
    ],
)
def test_window_is_a_name_where_no_clause_begins(query: str) -> None:
    assert parse_query(query).sql(dialect="spark") == query
