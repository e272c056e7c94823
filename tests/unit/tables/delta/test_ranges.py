"""Ranges of changed keys narrow what is read of the other side, and only where they may."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from penstock.tables.delta.ranges import Range
from tests.unit.tables.delta.duck import Duck, Views

TABLES = {"t": {"k": "INT", "n": "INT"}, "u": {"k": "INT", "m": "INT"}, "w": {"k": "VARCHAR"}}
RANGE = re.compile(r"\w+ BETWEEN (-?\d+) AND (-?\d+)( OR \w+ IS NULL)?")


def ranges_in(duck: Duck, query: str) -> set[tuple[int, int, bool]]:
    changed = duck.changed()
    duck.looks_up = False
    text = duck.compile(query).delta(changed, Views(), ranges=duck)
    assert text is not None
    return {(int(low), int(high), bool(null)) for low, high, null in RANGE.findall(text)}


@pytest.fixture
def duck() -> Duck:
    duck = Duck(TABLES)
    for table in ("t", "u"):
        duck.insert(table, [(number, number % 5) for number in range(50)])
    duck.insert("w", [("1",), ("20",)])
    duck.remember()
    duck.insert("t", [(7, 1), (9, 2), (None, 3)])
    return duck


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT n, m FROM t JOIN u ON t.k = u.k", {(7, 9, False)}),
        ("SELECT n, m FROM t JOIN u ON t.k <=> u.k", {(7, 9, True)}),
        ("SELECT n FROM t LEFT JOIN u ON t.k = u.k", {(7, 9, False)}),
        ("SELECT m FROM u LEFT JOIN t ON t.k = u.k", {(7, 9, False)}),
        ("SELECT n FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k)", {(7, 9, False)}),
        ("SELECT m FROM u WHERE u.k NOT IN (SELECT k FROM t WHERE k IS NOT NULL)", None),
        ("SELECT k, min(n + 1) a, stddev(n) b FROM t GROUP BY k", {(7, 9, True)}),
        ("SELECT k, row_number() OVER (PARTITION BY k ORDER BY n) r FROM t", {(7, 9, True)}),
        ("SELECT n, a.m FROM t JOIN u a ON t.k = a.k JOIN u b ON b.k = a.k", {(7, 9, False)}),
        ("SELECT n FROM t JOIN (SELECT k, sum(m) s FROM u GROUP BY k) x ON t.k = x.k",
         {(7, 9, False)}),
        ("SELECT n, m FROM t JOIN u ON t.k + 1 = u.k", set()),
        ("SELECT n, m FROM t JOIN u ON t.k < u.k", set()),
        ("SELECT n FROM t JOIN w ON t.k = w.k", set()),
        ("SELECT sum(n) s, max(n) m FROM t", set()),
    ],
)  # fmt: skip
def test_what_must_equal_a_change_is_within_its_range(duck: Duck, query: str, wanted) -> None:
    found = ranges_in(duck, query)
    if wanted is not None:
        assert found == wanted
    duck.remember()
    duck.insert("t", [(8, 1), (30, 2), (None, 3)])
    duck.delete_some("u", 3, 0.5)
    before, changed = duck.run(duck.compile(query).full(Views())), duck.changed()
    for looks_up in (False, True):
        duck.looks_up = looks_up
        text = duck.compile(query).delta(changed, Views(), broadcast=False, ranges=duck)
        assert text is not None
        assert ("`near_" in text) == (looks_up and wanted != set())
        after = dict(before)
        for row, weight in duck.weighted(text).items():
            after[row] = after.get(row, 0) + weight
        assert {row: count for row, count in after.items() if count} == dict(duck.run(query))


def test_groups_whose_extreme_left_are_read_again_within_the_range(duck: Duck) -> None:
    root = duck.compile("SELECT k, max(n) m FROM t GROUP BY k").root
    state = root.bind(["int"]) if root is not None else None
    assert state is not None
    duck.looks_up = False
    text = state.reread(duck.changed(), Views(), "lost", ranges=duck)
    assert text is not None
    ((low, high, null),) = set(RANGE.findall(text))
    assert (low, high) == ("7", "9")
    assert null, "NULL is a key like others"


def test_of_two_changed_inputs_each_narrows_the_other(duck: Duck) -> None:
    duck.insert("u", [(20, 1), (25, 1)])
    found = ranges_in(duck, "SELECT n, m FROM t JOIN u ON t.k = u.k")
    assert found == {(7, 9, False), (20, 25, False)}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("it's", "c BETWEEN 'it\\'s' AND 'it\\'s'"),
        ("x" * 300, None),
        ("line\nend", None),
        (True, None),
        (datetime(2024, 1, 2, 3, 4, tzinfo=UTC), None),
        (date(2024, 1, 2), "c BETWEEN CAST('2024-01-02' AS DATE) AND CAST('2024-01-02' AS DATE)"),
        (
            Decimal("-1.50"),
            "c BETWEEN CAST('-1.50' AS DECIMAL(3, 2)) AND CAST('-1.50' AS DECIMAL(3, 2))",
        ),
        (
            Decimal("0.05"),
            "c BETWEEN CAST('0.05' AS DECIMAL(3, 2)) AND CAST('0.05' AS DECIMAL(3, 2))",
        ),
        (1.5, None),
        (None, None),
    ],
)
def test_values_that_have_a_short_literal_are_bounds(value: object, text: str | None) -> None:
    assert Range("any", value, value).condition("c") == text


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("SELECT k, n FROM t ORDER BY n, k LIMIT 4", 4 + 3),
        ("SELECT n FROM t WHERE k > 2 ORDER BY n DESC LIMIT 2 OFFSET 5", 7 + 3),
        ("SELECT t.k, m FROM t JOIN u ON t.k = u.k ORDER BY m, t.k LIMIT 4", None),
        ("SELECT k, n FROM t ORDER BY n, k OFFSET 4", None),
    ],
)
def test_of_ordered_rows_no_more_are_read_than_may_move_up(
    duck: Duck, query: str, most: int | None
) -> None:
    duck.remember()
    duck.delete_some("t", 3, 0.2)
    duck.insert("t", [(3, 0), (4, 0), (1, 4)])
    compiled = duck.compile(query)
    before = duck.run(compiled.full(Views()))
    text = compiled.delta(duck.changed(), Views(), broadcast=False, ranges=duck)
    assert text is not None
    assert re.findall(r"LIMIT (\d+)", text) == ([] if most is None else [str(most)])
    after = dict(before)
    for row, weight in duck.weighted(text).items():
        after[row] = after.get(row, 0) + weight
    assert {row: count for row, count in after.items() if count} == dict(duck.now(query, compiled))
