"""When contents become stale: schedules of tables and units, and when a unit is due.

>>> from penstock.tables.core.model import define
>>> graph = StreamGraph([define("a", "SELECT * FROM raw"),
...                      define("b", "SELECT * FROM a", schedule="1m"),
...                      define("c", "SELECT * FROM a", schedule="10s")])
>>> [timed.text for timed in table_schedules(graph)["a"]]
['10s']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import Mode
from penstock.tables.core.schedule import (
    LEAF_INTERVAL_MS,
    AtTimes,
    Calculated,
    Every,
    OnDemand,
    Timed,
)
from penstock.tables.core.units import Unit

NEVER_FRESH_MS = 0
"""Contents that were never made have always been due."""
_LOOK_BACK_MS = (120_000, 7_200_000, 172_800_000, 5_356_800_000)
"""How far back to search for a cron expression's last fire, before searching everything."""


@dataclass(frozen=True, slots=True)
class UnitSchedule:
    """When a unit is due: as soon as one of its tables is. Empty: only on demand."""

    timed: tuple[Timed, ...]

    @property
    def on_demand(self) -> bool:
        """Whether only a person's request makes it due."""
        return not self.timed

    @property
    def follows_changes(self) -> bool:
        """Whether a change after a quiet time makes it due at once: it has intervals only.

        An interval is the least time between two refreshes; cron says when there may be one.
        """
        return bool(self.timed) and all(isinstance(timed, Every) for timed in self.timed)

    def due_ms(self, fresh_ms: int | None) -> int | None:
        """When contents of a given freshness become stale; None if never.

        This is also the freshness deadline: the longest overdue unit is refreshed first.
        """
        if not self.timed:
            return None
        if fresh_ms is None:
            return NEVER_FRESH_MS
        return min(timed.next_ms(fresh_ms) for timed in self.timed)

    def interval_ms(self, fresh_ms: int | None) -> int:
        """How long contents of a given freshness stay valid; shorter is more urgent."""
        due_ms = self.due_ms(fresh_ms or 0)
        return 0 if due_ms is None else due_ms - (fresh_ms or 0)


def settled_ms(schedule: UnitSchedule, fresh_ms: int, now_ms: int) -> int:
    """When unchanged contents were last confirmed, if that happens whenever they are due.

    >>> settled_ms(UnitSchedule((Every(1_000),)), fresh_ms=500, now_ms=3_700)
    3500
    """
    due_ms = schedule.due_ms(fresh_ms)
    if due_ms is None or due_ms > now_ms:
        return fresh_ms
    return max(_last_ms(timed, fresh_ms, now_ms) for timed in schedule.timed)


def _last_ms(timed: Timed, since_ms: int, now_ms: int) -> int:
    """The last due time since a given time."""
    if isinstance(timed, Every):
        return since_ms + (now_ms - since_ms) // timed.interval_ms * timed.interval_ms
    for back_ms in (*_LOOK_BACK_MS, now_ms - since_ms):
        at_ms = timed.next_ms(max(since_ms, now_ms - back_ms))
        if at_ms <= now_ms:
            break
    else:
        return since_ms
    while (next_ms := timed.next_ms(at_ms)) <= now_ms:
        at_ms = next_ms
    return at_ms


def table_schedules(graph: StreamGraph) -> dict[str, tuple[Timed, ...]]:
    """When each table is due, with `calculated` derived from its consumers.

    A consumer passes on its own schedule, cron included, so that its inputs are fresh when it runs.
    A consumer that is refreshed on demand passes on nothing.
    """
    found: dict[str, tuple[Timed, ...]] = {}
    for name in reversed(graph.order):
        match graph.tables[name].schedule:
            case Every() | AtTimes() as timed:
                found[name] = (timed,)
            case OnDemand():
                found[name] = ()
            case Calculated():
                wanted = _strictest(
                    timed for reader in graph.readers[name] for timed in found[reader]
                )
                found[name] = wanted or (Every(LEAF_INTERVAL_MS),)
    return found


def unit_schedule(
    unit: Unit, graph: StreamGraph, schedules: Mapping[str, tuple[Timed, ...]]
) -> UnitSchedule:
    """When a unit is due. IMMEDIATE members follow the others and do not count."""
    leading = [name for name in unit.members if graph.tables[name].mode is not Mode.IMMEDIATE]
    asked = (timed for name in leading or unit.members for timed in schedules[name])
    return UnitSchedule(_strictest(asked))


def _strictest(asked: Iterable[Timed]) -> tuple[Timed, ...]:
    """The shortest interval and every distinct cron expression, in a fixed order."""
    intervals: set[int] = set()
    crons: dict[str, AtTimes] = {}
    for timed in asked:
        if isinstance(timed, Every):
            intervals.add(timed.interval_ms)
        else:
            crons[timed.text] = timed
    shortest: tuple[Timed, ...] = (Every(min(intervals)),) if intervals else ()
    return (*shortest, *(crons[text] for text in sorted(crons)))
