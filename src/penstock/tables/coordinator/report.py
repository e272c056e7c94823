"""What a coordinator reports about itself to other processes, stored when it has changed.

Readers compute what only time changes. For example, a fresh table with unchanged inputs is found
fresh again at each due time; that is not reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any, Final, NamedTuple

from penstock.kernel.clock import Clock
from penstock.kernel.units import format_ms
from penstock.tables.core.capacity import ParallelMode
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.due import UnitSchedule, settled_ms
from penstock.tables.core.frontier import Frontier
from penstock.tables.core.health import Pool, TableHealth, pool, table_rows
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.schedule import AtTimes, Every, parse_schedule
from penstock.tables.core.verdict import Reason

_FIELDS: Final = tuple(field.name for field in fields(TableHealth))
_QUIET: Final = frozenset({Reason.NOT_DUE, Reason.NO_CHANGE})


LATE_MS: Final = 5_000
"""A loop that has made no turn for this long counts as stuck and is reported."""
_EVERY_MS: Final = 500


class CoordinatorReport(NamedTuple):
    """What a coordinator reports about itself. `late`: its loop has been stuck for too long."""

    values: dict[str, Any]
    late: bool


class Reporter:
    """Keeps a coordinator's report up to date, cheaply. `current` may be read from any thread."""

    def __init__(self, core: Coordinator, clock: Clock) -> None:
        self._core, self._clock = core, clock
        self.ticked_ms: int | None = clock.now_ms()
        """When the loop last made a turn; None while a turn is known to take long."""
        self._values: dict[str, Any] | None = None
        self._compared: Any = None
        self._next_ms = 0

    def current(self) -> CoordinatorReport | None:
        """The newest report; None before the first one."""
        if self._values is None:
            return None
        ticked_ms = self.ticked_ms
        late = ticked_ms is not None and self._clock.now_ms() - ticked_ms > LATE_MS
        return CoordinatorReport(self._values, late)

    def is_due(self) -> bool:
        """Whether it is time for an update."""
        return self._clock.now_ms() >= self._next_ms

    @contextmanager
    def paced(self) -> Iterator[None]:
        """Time an update, and delay the next one so that updates take a twentieth of the time."""
        began_ms = self._clock.now_ms()
        yield
        took_ms = self._clock.now_ms() - began_ms
        self._next_ms = began_ms + max(_EVERY_MS, 20 * took_ms)

    def update(self, *, progress: Mapping[int | None, Any], **shown: Any) -> None:
        """Report the core's state and the given facts; unchanged if only time has passed."""
        core = self._core
        values = {
            "pool": asdict(pool(core)),
            "tables": [_table(core, row) for row in table_rows(core, self._clock.now_ms())],
            "running": _running(core, progress),
            **shown,
        }
        compared = _without_time(values)
        if compared != self._compared:
            self._compared, self._values = compared, values


def read_tables(values: Mapping[str, Any], now_ms: int) -> list[TableHealth]:
    """The tables of a report, brought up to the current time."""
    return [_read(row, now_ms) for row in values["tables"]]


def read_pool(values: Mapping[str, Any], now_ms: int) -> Pool:
    """The coordinator's work. Counts as active now, unless it was reported late."""
    found = values["pool"]
    read = Pool(
        **{
            **found,
            "parallel_refresh_mode": ParallelMode(found["parallel_refresh_mode"]),
            "stopped": tuple((table, Status(status)) for table, status in found["stopped"]),
            "troubles": tuple((table, text) for table, text in found["troubles"]),
        }
    )
    return read if values["late"] else replace(read, ticked_ms=now_ms)


def _running(core: Coordinator, progress: Mapping[int | None, Any]) -> list[dict[str, Any]]:
    """Running jobs, with the progress of each."""
    return [
        {
            "job_id": job.job_id,
            "unit_key": job.unit_key,
            "worker": job.worker,
            "started_ms": job.started_at_ms,
            "progress": progress.get(job.job_id),
        }
        for job in core.live_jobs
        if job.worker is not None
    ]


def _without_time(values: Mapping[str, Any]) -> Any:
    """A report without its time-dependent values, for comparison."""
    return {
        **values,
        "pool": {**values["pool"], "ticked_ms": None},
        "tables": [_row_without_time(row) for row in values["tables"]],
    }


def _table(core: Coordinator, row: TableHealth) -> dict[str, Any]:
    state = core.facts.states[row.unit_key]
    steady = row.reason in _QUIET and not core.facts.changed(state.unit)
    return {
        **{name: getattr(row, name) for name in _FIELDS},
        "frontier": row.frontier.to_json() if row.frontier else None,
        "timed": [timed.text for timed in state.schedule.timed],
        "steady": steady and row.error is None,
    }


def _row_without_time(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if row["reason"] not in _QUIET:
        return row
    told = {**row, "waiting_for": None, "reason": None}
    return {**told, "fresh_ms": None, "due_ms": None} if row["steady"] else told


def _read(row: Mapping[str, Any], now_ms: int) -> TableHealth:
    found = TableHealth(
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
