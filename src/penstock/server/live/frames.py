"""What changed in the sections of a page, as small as a browser can apply it without knowledge.

A section is a JSON object. Its change is one of, by member: `put` (a new value), `drop` (gone),
`front` (a list with new items before the old ones), `cols` (a list of rows with the same rows but
other values in some columns), or the section as a whole, `set`. Columns over time only grow:
`push`.

>>> changes({"rung": 0, "bands": [{"depth": 0}]}, {"rung": 0, "bands": [{"depth": 3}]})
{'cols': {'bands': {'depth': [3]}}}
>>> later_points({"t": [1, 2], "in": [7, 8]}, after=1)
{'t': [2], 'in': [8]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = Any
Change = dict[str, Any]
SET: Final = "set"
PUSH: Final = "push"
FRONT_MAX: Final = 32
"""New items at the front of a list that are looked for."""
_SPARSE_BELOW: Final = 0.5
"""Below this share of changed rows, a column is told by row."""
_MISSING: Final = object()


def changes(old: Json, new: Json) -> Change:
    """How a section became another; empty if it did not change.

    `set` has the new section itself, all others have members.
    """
    if old == new:
        return {}
    if not isinstance(old, dict) or not isinstance(new, dict) or is_error(old) or is_error(new):
        return {SET: new}
    found: dict[str, Any] = {}
    gone = [name for name in old if name not in new]
    if gone:
        found["drop"] = gone
    for name, value in new.items():
        before = old.get(name, _MISSING)
        if before is _MISSING or before != value:
            verb, told = _member(before, value)
            found.setdefault(verb, {})[name] = told
    return found


def is_error(section: Json) -> bool:
    """Whether a section could not be told."""
    return isinstance(section, dict) and "error" in section and len(section) == 1


def joined(parts: Iterable[tuple[str, Change]]) -> dict[str, dict[str, Any]]:
    """The changes of named sections as those of one frame, by verb."""
    frame: dict[str, dict[str, Any]] = {}
    for section, change in parts:
        for verb, told in change.items():
            frame.setdefault(verb, {})[section] = told
    return frame


def _member(old: Json, new: Json) -> tuple[str, Json]:
    if isinstance(old, list) and isinstance(new, list) and old and new:
        shift = _shift(old, new)
        if shift:
            return "front", {"add": new[:shift], "keep": len(new) - shift}
        cols = _columns(old, new)
        if cols is not None:
            return "cols", cols
    return "put", new


def _shift(old: list[Json], new: list[Json]) -> int:
    """How many new items stand before the old ones; 0 if it is not so."""
    for shift in range(1, min(FRONT_MAX, len(new) - 1) + 1):
        kept = len(new) - shift
        if kept <= len(old) and new[shift] == old[0] and new[shift:] == old[:kept]:
            return shift
    return 0


def _columns(old: list[Json], new: list[Json]) -> dict[str, Any] | None:
    """The columns in which rows differ; None if they are not the same rows.

    Rows are the same if most of their columns did not change: others are told whole.
    """
    if len(old) != len(new):
        return None
    if not all(isinstance(row, dict) for row in (*old, *new)):
        return None
    names = new[0].keys()
    if any(row.keys() != names for row in (*old, *new)):
        return None
    found = {name: _column(name, old, new) for name in names}
    told = {name: column for name, column in found.items() if column is not None}
    cells = sum(len(column) for column in told.values())
    return None if cells > len(new) * len(names) // 2 and len(names) > 1 else told


def _column(name: str, old: list[Json], new: list[Json]) -> list[Json] | dict[str, Json] | None:
    changed = [
        n for n, (was, row) in enumerate(zip(old, new, strict=True)) if was[name] != row[name]
    ]
    if not changed:
        return None
    if len(changed) < len(new) * _SPARSE_BELOW:
        return {str(n): new[n][name] for n in changed}
    return [row[name] for row in new]


Columns = Mapping[str, Any]


def later_points(columns: Columns, after: int) -> dict[str, Any]:
    """The points of columns after a time, as `push` has them; empty if there are none.

    Columns may stand in objects within: all lists are as long as `t`. Other members are left out.
    """
    times = columns.get("t") or []
    first = next((n for n, at in enumerate(times) if at > after), len(times))
    return {} if first == len(times) else _cut(columns, first)


def last_time(columns: Json) -> int:
    """The time of the last point; 0 without any."""
    times = columns.get("t") if isinstance(columns, dict) else None
    return int(times[-1]) if times else 0


def _cut(columns: Columns, first: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in columns.items():
        if isinstance(value, list):
            found[name] = value[first:]
        elif isinstance(value, dict):
            found[name] = _cut(value, first)
    return found
