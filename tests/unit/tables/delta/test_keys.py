"""Which columns of a result identify a row."""

from __future__ import annotations

import pytest

from penstock.tables.delta.compiler import compile_query
from penstock.tables.delta.keys import key_columns

COLUMNS = {"raw": ("a", "b", "n"), "topics.meters": ("id", "v")}
KEYS = {"topics.meters": ("ID",)}


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT a, sum(n) AS n FROM raw GROUP BY a", (0,)),
        ("SELECT sum(n) AS n, b, a FROM raw GROUP BY a, b HAVING sum(n) > 1", (2, 1)),
        ("SELECT sum(n) AS n FROM raw GROUP BY a", None),
        ("SELECT a + 1 AS a, sum(n) AS n FROM raw GROUP BY a", None),
        ("SELECT a + 1 AS k, count(*) AS n FROM raw GROUP BY a + 1", (0,)),
        ("SELECT count(*) AS n FROM raw", ()),
        ("SELECT DISTINCT a, b FROM raw", (0, 1)),
        ("SELECT a, b FROM raw", None),
        ("SELECT v, id FROM topics.meters WHERE v > 1", (1,)),
        ("SELECT v FROM topics.meters", None),
        ("SELECT m.id FROM topics.meters m JOIN raw ON raw.a = m.id", None),
    ],
)
def test_a_key_is_found_where_the_query_says_so(query: str, key: tuple[int, ...] | None) -> None:
    assert key_columns(compile_query(query, COLUMNS), KEYS) == key
