"""Statistics: bounds compare as values, widen only, and are left out when unsure."""

from __future__ import annotations

import pytest

from penstock.lake.columns import Column
from penstock.lake.stats import ColumnStats, TableColumnStats, first_stats, sort_key, widened

NUMBER = Column(1, "n", "int64")


def stats(
    low: str | None, high: str | None, *, values: int | None = 2, nulls: int | None = 0
) -> dict[int, ColumnStats]:
    return {1: ColumnStats(1, 10, values, nulls, low, high)}


def test_the_first_files_make_the_row() -> None:
    (made,) = first_stats([NUMBER], [stats("9", "10"), stats("-1", "2", nulls=1)])
    assert made == TableColumnStats(1, contains_null=True, contains_nan=None, min="-1", max="10")


def test_more_files_widen_by_value_not_by_text() -> None:
    old = TableColumnStats(1, contains_null=False, min="9", max="10")
    new = widened(old, NUMBER, [stats("100", "100")])
    assert (new.min, new.max, new.contains_null) == ("9", "100", False)


def test_a_file_of_nulls_has_no_bounds_to_widen_by() -> None:
    old = TableColumnStats(1, contains_null=False, min="1", max="2")
    new = widened(old, NUMBER, [stats(None, None, values=0, nulls=5)])
    assert new == TableColumnStats(1, contains_null=True, min="1", max="2")


def test_a_file_that_nothing_is_known_of_takes_the_bounds_away() -> None:
    old = TableColumnStats(1, contains_null=False, min="1", max="2")
    assert widened(old, NUMBER, [{}]) == TableColumnStats(1)
    assert widened(old, NUMBER, [stats("1", None)]).max is None


def test_bounds_that_are_unknown_stay_unknown() -> None:
    new = widened(TableColumnStats(1, contains_null=False), NUMBER, [stats("1", "2")])
    assert (new.min, new.max) == (None, None)


@pytest.mark.parametrize(
    ("kind", "ordered"),
    [
        ("int32", ["-10", "-9", "0", "9", "10"]),
        ("uint64", ["9", "18446744073709551615"]),
        ("decimal(10,2)", ["-1.25", "0.00", "1.5", "10"]),
        ("float64", ["-inf", "-1.5", "0.0", "1e+300", "inf", "nan"]),
        ("boolean", ["0", "true"]),
        ("date", ["0001-01-01", "1969-12-31", "2024-02-29"]),
        ("timestamp", ["2024-01-01 00:00:00", "2024-01-01 00:00:00.4", "2024-01-01 00:00:00.45"]),
        ("timestamptz", ["2024-01-01 00:00:00+00", "2024-01-01 00:00:00.4+00"]),
        ("time", ["00:00:00", "12:34:56.789"]),
        ("varchar", ["", "Z", "a", "é", "\U0001f98a"]),
    ],
)
def test_texts_sort_as_their_values(kind: str, ordered: list[str]) -> None:
    keys = [sort_key(kind, text) for text in ordered]
    assert keys == sorted(keys)
    assert None not in keys


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int32", "x"), ("date", "10000-01-01"), ("timestamptz", "2024-01-01 00:00:00+02"),
     ("date", "0044-03-15 (BC)"), ("blob", "00FF"), ("interval", "1 month")],
)  # fmt: skip
def test_a_text_that_cannot_be_placed_has_no_key(kind: str, text: str) -> None:
    assert sort_key(kind, text) is None
