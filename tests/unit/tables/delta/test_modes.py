from __future__ import annotations

import pytest

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import define
from penstock.tables.delta.modes import check_differential, differentiation, operators
from penstock.tables.query.volatile import volatile_functions


@pytest.mark.parametrize(
    ("query", "functions"),
    [
        ("SELECT a FROM raw", ()),
        ("SELECT rand(), random(), randn() FROM raw", ("rand", "randn")),
        ("SELECT now(), current_date, localtimestamp() FROM raw",
         ("current_date", "localtimestamp", "now")),
        ("SELECT unix_timestamp() AS t FROM raw", ("current_timestamp",)),
        ("SELECT unix_timestamp(at) AS t FROM raw", ()),
        ("SELECT * FROM (SELECT uuid() AS id FROM raw) x", ("uuid",)),
        ("SELECT * FROM raw TABLESAMPLE (10 PERCENT)", ("tablesample",)),
        ("SELECT * FROM raw WHERE at > now()", ("now",)),
        ("SELECT rand FROM raw", ()),
        ("SELECT TIMESTAMP 'now' AS t, DATE 'today' AS d FROM raw", ("current_date", "now")),
        ("SELECT CAST(' NOW' AS TIMESTAMP) AS t FROM raw", ("now",)),
        ("SELECT to_timestamp('now') AS t FROM raw", ("now",)),
        ("SELECT to_date('yesterday') AS t FROM raw", ("current_date",)),
        ("SELECT try_to_timestamp('tomorrow UTC') AS t FROM raw", ("current_date",)),
        ("SELECT timestamp_ntz 'now' AS t FROM raw", ("now",)),
        ("SELECT 'now' AS t, CAST('now' AS STRING) AS s, DATE '2024-01-01' AS d FROM raw", ()),
        ("SELECT a FROM raw WHERE state = 'today' AND at > TIMESTAMP 'epoch'", ()),
    ],
)  # fmt: skip
def test_functions_that_answer_differently_are_found(query, functions):
    assert volatile_functions(query) == functions
    assert define("a", query).volatile == bool(functions)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT a FROM raw", {"projection"}),
        ("SELECT a FROM raw WHERE a > 1", {"projection", "filter"}),
        ("SELECT count(*) AS n FROM raw", {"projection", "aggregate"}),
        ("SELECT a, sum(b) OVER (PARTITION BY a) AS s FROM raw", {"projection", "window function"}),
        ("SELECT r.a FROM raw r LEFT JOIN o ON r.a = o.a", {"projection", "left join"}),
        ("SELECT r.a FROM raw r JOIN o ON r.a = o.a", {"projection", "inner join"}),
        ("SELECT a FROM raw UNION ALL SELECT a FROM o", {"projection", "UNION ALL"}),
        ("SELECT a FROM raw UNION SELECT a FROM o", {"projection", "UNION"}),
        ("SELECT DISTINCT a FROM raw ORDER BY a LIMIT 3", {"projection", "DISTINCT", "LIMIT"}),
        ("SELECT a FROM raw WHERE EXISTS (SELECT 1 FROM o)", {"projection", "filter", "EXISTS"}),
        ("SELECT a, x FROM raw LATERAL VIEW explode(xs) t AS x", {"projection", "LATERAL VIEW"}),
        ("SELECT r.a FROM raw r LEFT SEMI JOIN o ON r.a = o.a", {"projection", "left semi join"}),
    ],
)
def test_a_query_is_told_by_its_operators(query, found):
    assert operators(query) == found


def test_with_rules_for_all_its_operators_a_query_can_be_differentiated():
    query = "SELECT a FROM raw WHERE a > 1"
    assert differentiation(query, frozenset({"projection", "filter"})).possible
    found = differentiation(query, frozenset({"projection"}))
    assert (found.reason, found.text) == (
        ReasonCode.NOT_DIFFERENTIABLE,
        "cannot be differentiated: no rule for filter",
    )


def test_a_function_that_answers_differently_rules_it_out_whatever_rules_there_are():
    query = "SELECT rand() AS r FROM raw"
    found = differentiation(query, operators(query))
    assert (found.possible, found.reason) == (False, ReasonCode.VOLATILE)


def test_differential_is_refused_and_other_modes_are_not():
    check_differential([define("a", "SELECT 1 AS one", mode=m) for m in ("auto", "full")])
    with pytest.raises(NotDifferentiable, match="found that a cannot be differentiated"):
        check_differential([define("a", "SELECT 1 AS one", mode="differential")])
