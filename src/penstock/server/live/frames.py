"""What changed in the sections of a page, as small as a browser can apply it without knowledge.

A section is a JSON object. Its change is one of, by member: `put` (a new value), `drop` (gone),
`list` (a list of items that it had and of new ones), `cols` (rows with other values in some
columns, told after `list`), or the section as a whole, `set`. Columns over time only grow: `push`.

>>> changes({"bands": [{"band": 1, "depth": 0}]}, {"bands": [{"band": 1, "depth": 3}]})
{'cols': {'bands': {'depth': [3]}}}
>>> later_points({"t": [1, 2], "in": [7, 8]}, after=1)
{'t': [2], 'in': [8]}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.server.api.answers import encode

Json = Any
Change = dict[str, Any]
SET: Final = "set"
PUSH: Final = "push"
_SPARSE_BELOW: Final = 0.5
"""Below this share of changed rows, a column is told by row."""
_PUT_ABOVE: Final = 0.5
"""Above this share of new items, or of changed cells, a list is told as a whole."""
_NAME_TYPES: Final = {str, int, bool}
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
            for verb, told in _member(before, value).items():
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


def _member(old: Json, new: Json) -> Change:
    """How a member became another, by verb."""
    if isinstance(old, list) and isinstance(new, list) and old and new:
        return _list(old, new) or {"put": new}
    return {"put": new}


def _list(old: list[Json], new: list[Json]) -> Change | None:
    """How a list became another; None if most of it is new, or most cells of its rows changed."""
    places = _places(old, new)
    kept = [place for place in places if place is not None]
    if len(kept) < len(new) * _PUT_ABOVE:
        return None
    was = [item if place is None else old[place] for item, place in zip(new, places, strict=True)]
    columns: dict[str, Any] = {}
    if was != new:
        columns = _columns(was, new)
        if sum(map(len, columns.values())) > sum(map(len, new)) * _PUT_ABOVE:
            return None
    moved = len(kept) != len(old) or kept != list(range(len(old)))
    found = {"list": _pieces(new, places)} if moved or len(kept) != len(new) else {}
    return {**found, "cols": columns} if columns else found


def _places(old: list[Json], new: list[Json]) -> list[int | None]:
    """Where each item stood before; None if it is new.

    Rows are the same if they have the same name and the same members, other items if they are
    equal.
    """
    named = _names(old, new)
    if named is None:
        were, are = [encode(item) for item in old], [encode(item) for item in new]
    else:
        were, are = named
    at: dict[Any, list[int]] = {}
    for place, name in reversed(list(enumerate(were))):
        at.setdefault(name, []).append(place)
    found = [places.pop() if (places := at.get(name)) else None for name in are]
    if named is None:
        return found
    return [
        place if place is not None and old[place].keys() == item.keys() else None
        for item, place in zip(new, found, strict=True)
    ]


def _names(old: list[Json], new: list[Json]) -> tuple[list[Any], list[Any]] | None:
    """What rows are known by: a member, or the first two, that differ within each list."""
    if {*map(type, old), *map(type, new)} != {dict}:
        return None
    members = list(new[0])
    for member in members:
        if type(new[0][member]) not in _NAME_TYPES:
            continue
        are = [row.get(member) for row in new]
        if {*map(type, are)} <= _NAME_TYPES and len(now := set(are)) == len(are):
            were = [row.get(member) for row in old]
            if {*map(type, were)} <= _NAME_TYPES and _are_names(set(were), were, now):
                return were, are
    if len(members) < 2:
        return None
    one, other = members[:2]
    were, are = ([(row.get(one), row.get(other)) for row in rows] for rows in (old, new))
    if not {type(each) for name in (*were, *are) for each in name} <= _NAME_TYPES:
        return None
    now = set(are)
    return (were, are) if len(now) == len(are) and _are_names(set(were), were, now) else None


def _are_names(before: set[Any], were: list[Any], now: set[Any]) -> bool:
    return len(before) == len(were) and not before.isdisjoint(now)


def _pieces(new: list[Json], places: list[int | None]) -> list[Json]:
    """A list as runs of old items, each by its first place and its length, and of new items."""
    pieces: list[Json] = []
    for item, place in zip(new, places, strict=True):
        last = pieces[-1] if pieces else None
        if place is None:
            if isinstance(last, dict):
                last["add"].append(item)
            else:
                pieces.append({"add": [item]})
        elif isinstance(last, list) and sum(last) == place:
            last[1] += 1
        else:
            pieces.append([place, 1])
    return pieces


def _columns(old: list[Json], new: list[Json]) -> dict[str, Any]:
    """The columns in which rows differ."""
    changed: dict[str, list[int]] = {}
    for n, (was, row) in enumerate(zip(old, new, strict=True)):
        if was != row:
            for name, value in row.items():
                if was[name] != value:
                    changed.setdefault(name, []).append(n)
    return {name: _column(name, rows, new) for name, rows in changed.items()}


def _column(name: str, changed: list[int], new: list[Json]) -> list[Json] | dict[str, Json]:
    if len(changed) < len(new) * _SPARSE_BELOW or any(name not in row for row in new):
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
