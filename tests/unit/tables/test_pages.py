"""The last ORDER BY of a query, found as columns of its result, sorts rows as Spark would."""

from __future__ import annotations

from decimal import Decimal
from math import inf, isnan, nan
from typing import Any

import pyarrow as pa
import pytest

from penstock.tables.pages import SortKey, final_order, sorted_places

UP, DOWN = (False, True), (True, False)


@pytest.mark.parametrize(
    ("query", "columns", "keys"),
    [
        ("SELECT a, b FROM t ORDER BY b DESC, a", "a b", [("b", *DOWN), ("a", *UP)]),
        ("SELECT a AS x FROM t ORDER BY X NULLS LAST", "x", [("x", False, False)]),
        ("SELECT a AS x FROM t ORDER BY a DESC NULLS FIRST", "x", [("x", True, True)]),
        ("SELECT a, sum(b) AS n FROM t GROUP BY a ORDER BY Sum(`b`) DESC LIMIT 3", "a n",
         [("n", *DOWN)]),
        ("SELECT a, count(*) FROM t GROUP BY a ORDER BY 2, 1 DESC", "a count(1)",
         [("count(1)", *UP), ("a", *DOWN)]),
        ("SELECT * FROM t ORDER BY ALL", "a b", [("a", *UP), ("b", *UP)]),
        ("SELECT t.* FROM t ORDER BY t.b", "a b", [("b", *UP)]),
        ("SELECT a FROM t UNION ALL SELECT c FROM u ORDER BY a", "a", [("a", *UP)]),
        ("(SELECT a FROM t ORDER BY a)", "a", [("a", *UP)]),
        ("(SELECT a FROM t) ORDER BY a", "a", [("a", *UP)]),
        ("FROM t |> SELECT a |> ORDER BY a", "a", [("a", *UP)]),
        ("WITH c AS (SELECT a FROM t ORDER BY a) SELECT a FROM c", "a", []),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", "a", []),
        ("SELECT a FROM t SORT BY a", "a", []),
        ("SELECT a FROM t ORDER BY hidden", "a", []),
        ("SELECT a, b FROM t ORDER BY b, hidden, a", "a b", [("b", *UP)]),
    ],
)  # fmt: skip
def test_keys_are_columns_of_the_result(query: str, columns: str, keys: list[Any]) -> None:
    assert final_order(query, columns.split()) == tuple(SortKey(*key) for key in keys)


def values(column: pa.Array, *, descending: bool, nulls_first: bool) -> list[Any]:
    table = pa.table({"a": column})
    places = sorted_places(table, [SortKey("a", descending, nulls_first)])
    return list(table.take(places).column("a").to_pylist())


def test_null_goes_where_it_was_asked_for_and_nan_is_the_largest_number() -> None:
    numbers = pa.array([2.0, None, nan, -inf, inf])
    up = values(numbers, descending=False, nulls_first=True)
    assert up[:4] == [None, -inf, 2.0, inf]
    assert isnan(up[4])
    down = values(numbers, descending=True, nulls_first=False)
    assert isnan(down[0])
    assert down[1:] == [inf, 2.0, -inf, None]
    assert values(numbers, descending=True, nulls_first=True)[0] is None
    assert values(numbers, descending=False, nulls_first=False)[-1] is None


@pytest.mark.parametrize(
    "ordered",
    [
        pa.array([False, True]),
        pa.array(["B", "a", "é", "😀"]),
        pa.array([b"\x01", b"\xff"]),
        pa.array([Decimal("-1.50"), Decimal("10.00")]),
        pa.array([{"a": None, "b": 9}, {"a": 1, "b": 0}, {"a": 1, "b": 2}]),
        pa.array([[], [1], [1, 2], [2]]),
    ],
)
def test_every_type_that_has_an_order_is_sorted(ordered: pa.Array) -> None:
    wanted = ordered.to_pylist()
    shuffled = pa.array(wanted[1:] + wanted[:1], ordered.type)
    assert values(shuffled, descending=False, nulls_first=True) == wanted
    assert values(shuffled, descending=True, nulls_first=False) == wanted[::-1]


def test_rows_that_are_equal_stay_as_they_were() -> None:
    table = pa.table({"a": [1, 0] * 50, "b": range(100)})
    found = table.take(sorted_places(table, [SortKey("a", True, False)])).column("b").to_pylist()
    assert found == [*range(0, 100, 2), *range(1, 100, 2)]
