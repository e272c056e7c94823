from __future__ import annotations

import pytest

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import define
from penstock.tables.delta.modes import check_differential, differentiation
from penstock.tables.query.relations import Relations
from penstock.tables.query.sources import volatile_functions


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
        ("SELECT a FROM raw WHERE lower(state) = 'today' AND at > TIMESTAMP 'epoch'", ()),
        ("SELECT a FROM raw WHERE at < 'today'", ("current_date",)),
        ("SELECT a FROM raw WHERE at BETWEEN 'yesterday' AND 'now'", ("current_date", "now")),
        ("SELECT a FROM raw WHERE at NOT IN (' Now ', '2024-01-01')", ("now",)),
        ("SELECT a FROM raw WHERE (at, a) = ('tomorrow', 1)", ("current_date",)),
        ("SELECT nvl(at, 'today') AS d FROM raw", ("current_date",)),
        ("SELECT CASE WHEN a THEN 'today' ELSE at END AS d FROM raw", ("current_date",)),
        ("SELECT CASE WHEN a THEN 'today' ELSE 'later' END AS d FROM raw", ()),
        ("SELECT if(a, 'today', at), year('now') FROM raw", ("current_date", "now")),
        ("SELECT a FROM raw WHERE s LIKE 'now' OR concat('now', s) = t", ()),
        ("SELECT current_time, localtime FROM raw", ("current_time", "localtime")),
        ("SELECT t.localtime, `current_time`, user FROM raw t", ()),
        ("SELECT shuffle(xs, 1), uuid(2), try_aes_encrypt(a, b) FROM raw",
         ("shuffle", "try_aes_encrypt", "uuid")),
    ],
)  # fmt: skip
def test_functions_that_answer_differently_are_found(query, functions):
    assert volatile_functions(query) == functions
    assert define("a", query).volatile == bool(functions)


COLUMNS = {"raw": ("a", "b", "xs"), "o": ("a",)}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM raw WHERE a > 1",
        "SELECT count(*) AS n FROM raw",
        "SELECT a, sum(b) OVER (PARTITION BY a) AS s FROM raw",
        "SELECT r.a FROM raw r LEFT JOIN o ON r.a = o.a",
        "SELECT a FROM raw UNION SELECT a FROM o",
        "SELECT DISTINCT a FROM raw ORDER BY a LIMIT 3",
        "SELECT a FROM raw WHERE EXISTS (SELECT 1 FROM o)",
        "SELECT a, x FROM raw LATERAL VIEW explode(xs) t AS x",
    ],
)
def test_a_query_that_the_compiler_takes_can_be_differentiated(query):
    assert differentiation(query, COLUMNS).possible


@pytest.mark.parametrize(
    ("query", "reason", "text"),
    [
        ("SELECT a FROM raw LIMIT 3", ReasonCode.NOT_DIFFERENTIABLE,
         "LIMIT 3: without ORDER BY any rows may be the first"),
        ("SELECT rand() AS r FROM raw", ReasonCode.VOLATILE,
         "rand() may answer differently each time"),
        ("SELECT a FROM raw TABLESAMPLE (10 PERCENT)", ReasonCode.VOLATILE,
         "tablesample(): may answer differently each time"),
        ("SELECT a FROM elsewhere", ReasonCode.NOT_DIFFERENTIABLE,
         "elsewhere: its columns are not known"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named(query, reason, text):
    assert differentiation(query, COLUMNS) == (None, reason, text)


def test_differential_is_refused_and_other_modes_are_not():
    query = "WITH RECURSIVE tree AS (SELECT 1 AS n UNION ALL SELECT n FROM tree) SELECT n FROM tree"
    relations = Relations({}, StreamGraph(()))
    check_differential([define("a", query, mode=m) for m in ("auto", "full")], relations)
    said = "WITH RECURSIVE tree: recursive queries are recomputed in full; use mode AUTO or FULL"
    with pytest.raises(NotDifferentiable, match=f"^{said}$") as refused:
        check_differential([define("a", query, mode="differential")], relations)
    assert refused.value.detail["table"] == "a"
    assert refused.value.detail["cause"] == "recursive"
