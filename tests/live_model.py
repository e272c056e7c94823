"""How a browser puts the events of `/v0/live` together, written down as plainly as can be.

The dashboard's own reducer and this one must come to the same twins.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

POINTS_KEPT = 900
EVENTS_KEPT = 100


def reduce(twin: Any, event: str, data: Any) -> Any:
    """The twin of a page after one more event of its stream."""
    data = deepcopy(data)
    if event == "state":
        return data
    if twin is None:
        return None
    twin = deepcopy(twin)
    sections = twin["sections"]
    if event == "frame":
        twin["at"] = data["at"]
        _apply(sections, data)
    elif event == "event" and "events" in sections.get("events", {}):
        shown = sections["events"]["events"]
        data.pop("on", None)
        if all(each["id"] != data["id"] for each in shown):
            sections["events"]["events"] = [data, *shown][:EVENTS_KEPT]
    elif event == "peek":
        data.pop("on", None)
        sections["peek"] = data
    return twin


def _apply(sections: dict[str, Any], frame: dict[str, Any]) -> None:
    sections.update(frame.get("set", {}))
    for name, members in frame.get("drop", {}).items():
        for member in members:
            sections[name].pop(member, None)
    for name, members in frame.get("put", {}).items():
        sections[name].update(members)
    for name, members in frame.get("list", {}).items():
        for member, pieces in members.items():
            sections[name][member] = _pieced(sections[name][member], pieces)
    for name, members in frame.get("cols", {}).items():
        for member, columns in members.items():
            _set_columns(sections[name][member], columns)
    for name, points in frame.get("push", {}).items():
        _push(sections[name], points)


def _pieced(before: list[Any], pieces: list[Any]) -> list[Any]:
    """A list of items that another one had, by place and length, and of new ones."""
    found: list[Any] = []
    for piece in pieces:
        if isinstance(piece, dict):
            found += piece["add"]
        else:
            first, count = piece
            found += deepcopy(before[first : first + count])
    return found


def _set_columns(rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
    for column, values in columns.items():
        cells = values.items() if isinstance(values, dict) else enumerate(values)
        for row, value in cells:
            rows[int(row)][column] = value


def _push(columns: dict[str, Any], points: dict[str, Any]) -> None:
    times = columns.get("t") or []
    last = times[-1] if times else -1
    first = next((n for n, at in enumerate(points["t"]) if at > last), len(points["t"]))
    _append(columns, points, first, len(times))


def _append(columns: dict[str, Any], points: dict[str, Any], first: int, before: int) -> None:
    for name, values in points.items():
        if isinstance(values, dict):
            _append(columns.setdefault(name, {}), values, first, before)
        else:
            known = columns.get(name) or [None] * before
            columns[name] = [*known, *values[first:]][-POINTS_KEPT:]
