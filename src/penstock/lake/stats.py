"""Column statistics, by which readers skip files: stored as text, compared as values.

An uncertain bound is None, and the reader then reads the file. Bounds of a table only ever widen,
because older snapshots use the same row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from penstock.lake.columns import Column

_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?(\+00)?)?")
_TIME: Final = re.compile(r"\d\d:\d\d:\d\d(\.\d+)?")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Statistics of one column in one file. None is unknown."""

    column_id: int
    size_bytes: int | None = None
    value_count: int | None = None
    null_count: int | None = None
    min: str | None = None
    max: str | None = None
    contains_nan: bool | None = None

    @property
    def is_all_null(self) -> bool:
        """Whether all values are known to be NULL, so that there are no bounds."""
        return self.value_count == 0 and self.null_count is not None


@dataclass(frozen=True, slots=True)
class TableColumnStats:
    """Statistics of one column over all files a table ever had. None is unknown."""

    column_id: int
    contains_null: bool | None = None
    contains_nan: bool | None = None
    min: str | None = None
    max: str | None = None


@dataclass(frozen=True, slots=True)
class TableStats:
    """The counters of a table: rows and bytes added, and the next free row id."""

    record_count: int = 0
    next_row_id: int = 0
    file_size_bytes: int = 0


def first_stats(columns: Iterable[Column], files: Iterable[Mapping[int, ColumnStats]]) -> list[
    TableColumnStats
]:  # fmt: skip
    """The statistics of a table that receives its first files."""
    listed = list(files)
    return [
        merged
        for column in columns
        if (merged := _over_files(column, [stats.get(column.id) for stats in listed])) is not None
    ]


def widened(
    old: TableColumnStats, column: Column, files: Iterable[Mapping[int, ColumnStats]]
) -> TableColumnStats:
    """A table's statistics after adding more files."""
    new = _over_files(column, [stats.get(column.id) for stats in files])
    if new is None:
        return old
    low, high = old.min, old.max
    if not (new.min is None and new.max is None and _all_null(files, column)):
        low = _outer(column.type, old.min, new.min, low=True)
        high = _outer(column.type, old.max, new.max, low=False)
    return replace(
        old,
        contains_null=_either(old.contains_null, new.contains_null),
        contains_nan=_either(old.contains_nan, new.contains_nan),
        min=low,
        max=high,
    )


def sort_key(kind: str, text: str) -> Any:
    """The sort key of a bound's text, or None if it has none.

    >>> sort_key("int32", "9") < sort_key("int32", "10")
    True
    """
    try:
        return _key(kind, text)
    except (ValueError, InvalidOperation):
        return None


def _key(kind: str, text: str) -> Any:
    if kind.startswith(("int", "uint")) and kind != "interval":
        return int(text)
    if kind.startswith("decimal"):
        return Decimal(text)
    if kind.startswith("float"):
        number = float(text)
        return (1, 0.0) if math.isnan(number) else (0, number)  # DuckDB sorts NaN highest
    if kind == "boolean":
        return {"false": 0, "0": 0, "true": 1, "1": 1}.get(text)
    if kind in ("varchar", "json"):
        return text
    # Dates and times compare as text while they have a four-digit year and the same offset.
    patterns = {"time": _TIME, "uuid": _UUID}
    dated = kind == "date" or kind.startswith("timestamp")
    pattern = _DAY if dated else patterns.get(kind)
    return text if pattern is not None and pattern.fullmatch(text) else None


def _over_files(column: Column, stats: list[ColumnStats | None]) -> TableColumnStats | None:
    """Combined statistics of several new files, or None if nothing is known."""
    if not stats:
        return None
    known = [entry or ColumnStats(column.id) for entry in stats]
    valued = [entry for entry in known if not entry.is_all_null]
    nulls = [None if entry.null_count is None else entry.null_count > 0 for entry in known]
    low = valued[0].min if valued else None
    high = valued[0].max if valued else None
    for entry in valued[1:]:
        low = _outer(column.type, low, entry.min, low=True)
        high = _outer(column.type, high, entry.max, low=False)
    return TableColumnStats(
        column.id, _any(nulls), _any([entry.contains_nan for entry in known]), low, high
    )


def _all_null(files: Iterable[Mapping[int, ColumnStats]], column: Column) -> bool:
    entries = [stats.get(column.id) for stats in files]
    return all(entry is not None and entry.is_all_null for entry in entries)


def _outer(kind: str, left: str | None, right: str | None, *, low: bool) -> str | None:
    if left is None or right is None:
        return None
    left_key, right_key = sort_key(kind, left), sort_key(kind, right)
    if left_key is None or right_key is None:
        return None
    if low:
        return left if left_key <= right_key else right
    return left if left_key >= right_key else right


def _any(flags: list[bool | None]) -> bool | None:
    if any(flag is None for flag in flags):
        return None
    return any(flags)


def _either(left: bool | None, right: bool | None) -> bool | None:
    return None if left is None or right is None else left or right
