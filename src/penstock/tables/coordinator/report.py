"""What a coordinator says of itself for people in other processes, written when it is news.

What only time changes is left to the reader: a table that is fresh, and whose inputs have not
moved, is found right whenever it is due; that is no news.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from penstock.kernel.units import format_ms
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.due import UnitSchedule, settled_ms
from penstock.tables.core.frontier import Frontier
from penstock.tables.core.health import Pool, TableStatus, pool, table_rows
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.schedule import AtTimes, Every, parse_schedule
from penstock.tables.core.verdict import Reason

_FIELDS: Final = tuple(field.name for field in fields(TableStatus))
_QUIET: Final = frozenset({Reason.NOT_DUE, Reason.NO_CHANGE})


def picture(core: Coordinator, now_ms: int) -> dict[str, Any]:
    """A coordinator's work and its tables, as plain values."""
    return {
        "pool": asdict(pool(core)),
        "tables": [_table(core, row) for row in table_rows(core, now_ms)],
    }


def news(shown: Mapping[str, Any]) -> Any:
    """The part of a picture by which two of them are told apart."""
    return {
        **shown,
        "pool": {**shown["pool"], "ticked_ms": None},
        "tables": [_news(row) for row in shown["tables"]],
    }


def read_tables(shown: Mapping[str, Any], now_ms: int) -> list[TableStatus]:
    """The tables of a picture, with what time has changed since."""
    return [_read(row, now_ms) for row in shown["tables"]]


def read_pool(shown: Mapping[str, Any], now_ms: int) -> Pool:
    """The coordinator's work. It is at work now, unless it was said that it is late."""
    found = shown["pool"]
    read = Pool(
        **{
            **found,
            "parallel_refresh_mode": ParallelMode(found["parallel_refresh_mode"]),
            "stopped": tuple((table, Status(status)) for table, status in found["stopped"]),
            "troubles": tuple((table, text) for table, text in found["troubles"]),
        }
    )
    return read if shown["late"] else replace(read, ticked_ms=now_ms)


def _table(core: Coordinator, row: TableStatus) -> dict[str, Any]:
    state = core.board.states[row.unit_key]
    steady = row.reason in _QUIET and not core.board.changed(state.unit)
    return {
        **{name: getattr(row, name) for name in _FIELDS},
        "frontier": row.frontier.to_json() if row.frontier else None,
        "timed": [timed.text for timed in state.schedule.timed],
        "steady": steady and row.error is None,
    }


def _news(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row["reason"] not in _QUIET:
        return row
    told = {**row, "waiting_for": None, "reason": None}
    return {**told, "fresh_ms": None, "due_ms": None} if row["steady"] else told


def _read(row: Mapping[str, Any], now_ms: int) -> TableStatus:
    found = TableStatus(
        **{
            **{name: row[name] for name in _FIELDS},
            "status": Status(row["status"]),
            "mode": Mode(row["mode"]),
            "reason": Reason(row["reason"]),
            "frontier": Frontier.from_json(row["frontier"]) if row["frontier"] else None,
        }
    )
    if found.reason not in _QUIET:
        return found
    fresh_ms, due_ms = found.fresh_ms, found.due_ms
    if row["steady"] and fresh_ms is not None:
        parsed = (parse_schedule(text) for text in row["timed"])
        schedule = UnitSchedule(tuple(t for t in parsed if isinstance(t, Every | AtTimes)))
        fresh_ms = settled_ms(schedule, fresh_ms, now_ms)
        due_ms = schedule.due_ms(fresh_ms)
    if due_ms is None:
        return found
    text = f"due in {format_ms(max(0, due_ms - now_ms))}"
    return replace(found, reason=Reason.NOT_DUE, fresh_ms=fresh_ms, due_ms=due_ms, waiting_for=text)
