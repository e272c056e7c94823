"""Negative controls: a compiler with a known mistake must fail the cases that are there for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlglot import exp

from penstock.tables.delta import compiler, joins, marks, subqueries, writing
from tests.unit.tables.delta.test_nasty import CASES, run_case

Breaks = Callable[[pytest.MonkeyPatch], None]


def cross_term_twice(patch: pytest.MonkeyPatch) -> None:
    """The changes of both sides are counted in the term of each."""
    patch.setattr(joins, "reads_new", lambda place, changed: place != changed)


def cross_term_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Changes meet old rows only."""
    patch.setattr(joins, "reads_new", lambda place, changed: False)


def keys_by_equality(patch: pytest.MonkeyPatch) -> None:
    """NULL is no key."""
    patch.setattr(writing, "SAME", "=")


def flips_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Old rows of the left keep their mark whatever happens on the right."""
    original = marks.marked_left

    def changed_only(*arguments):  # type: ignore[no-untyped-def]
        return f"SELECT * FROM ({original(*arguments)}) AS marked WHERE __ld <> 0"

    patch.setattr(marks, "marked_left", changed_only)


def deltas_as_sets(patch: pytest.MonkeyPatch) -> None:
    """A row comes or leaves, however often."""
    patch.setattr(compiler, "SUM_OF_WEIGHTS", "SIGN(SUM(__w))")


def third_value_forgotten(patch: pytest.MonkeyPatch) -> None:
    """NOT IN is true where nothing is equal, even if something is NULL."""
    patch.setattr(subqueries, "_unknown", lambda *_: exp.false())


CONTROLS: dict[str, tuple[Breaks, list[str]]] = {
    "cross term twice": (
        cross_term_twice,
        ["both sides of a join at once", "both sides of a match leave at once"],
    ),
    "cross term forgotten": (cross_term_forgotten, ["both sides of a join at once"]),
    "keys with =": (keys_by_equality, ["a NULL group", "INTERSECT with NULL"]),
    "flips forgotten": (
        flips_forgotten,
        ["EXISTS flips both ways", "the last match gone", "NOT IN of nothing"],
    ),
    "deltas as sets": (deltas_as_sets, ["equal rows on both sides", "equal rows leave one by one"]),
    "the third value forgotten": (
        third_value_forgotten,
        ["NOT IN with a NULL that comes and goes", "NOT IN as a value"],
    ),
}


@pytest.mark.parametrize("mistake", CONTROLS)
def test_a_mistake_turns_the_suite_red(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, cases = CONTROLS[mistake]
    breaks(monkeypatch)
    compiler._compiled.cache_clear()
    try:
        for name in cases:
            assert name in CASES
            with pytest.raises(AssertionError):
                run_case(name)
    finally:
        compiler._compiled.cache_clear()
