"""When contents are too old: schedules of tables and units, and the moment a unit is due.

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
"""Contents that were never made are due since for ever."""
_LOOK_BACK_MS = (120_000, 7_200_000, 172_800_000, 5_356_800_000)
"""How far back the last time of a cron expression is looked for, before all of the time."""


@dataclass(frozen=True, slots=True)
class UnitSchedule:
    """When a unit is due: as soon as one of its tables is. Empty: only on demand."""

    timed: tuple[Timed, ...]

    @property
    def on_demand(self) -> bool:
        """Whether nothing but a person makes it due."""
        return not self.timed

    def due_ms(self, fresh_ms: int | None) -> int | None:
        """Since when contents of some freshness are too old; None if they never are.

        This is the freshness deadline as well: what is overdue the longest is refreshed first.
        """
        if not self.timed:
            return None
        if fresh_ms is None:
            return NEVER_FRESH_MS
        return min(timed.next_ms(fresh_ms) for timed in self.timed)

    def interval_ms(self, fresh_ms: int | None) -> int:
        """How long contents of some freshness may live: the shorter, the more urgent."""
        due_ms = self.due_ms(fresh_ms or 0)
        return 0 if due_ms is None else due_ms - (fresh_ms or 0)


def settled_ms(schedule: UnitSchedule, fresh_ms: int, now_ms: int) -> int:
    """When contents that nothing has changed were last found right, if that is done when due.

    >>> settled_ms(UnitSchedule((Every(1_000),)), fresh_ms=500, now_ms=3_700)
    3500
    """
    due_ms = schedule.due_ms(fresh_ms)
    if due_ms is None or due_ms > now_ms:
        return fresh_ms
    return max(_last_ms(timed, fresh_ms, now_ms) for timed in schedule.timed)


def _last_ms(timed: Timed, since_ms: int, now_ms: int) -> int:
    """The last moment at which something was due, since some moment."""
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
    """When each table is due, with `calculated` worked out from its consumers.

    A consumer hands on what it is due by itself, cron included, so that what it reads is fresh when
    it runs. One that is refreshed on demand asks for nothing.
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
    """When a unit is due. IMMEDIATE members follow the others and have no say."""
    leading = [name for name in unit.members if graph.tables[name].mode is not Mode.IMMEDIATE]
    asked = (timed for name in leading or unit.members for timed in schedules[name])
    return UnitSchedule(_strictest(asked))


def _strictest(asked: Iterable[Timed]) -> tuple[Timed, ...]:
    """The shortest interval and every cron expression, each once, in one order."""
    intervals: set[int] = set()
    crons: dict[str, AtTimes] = {}
    for timed in asked:
        if isinstance(timed, Every):
            intervals.add(timed.interval_ms)
        else:
            crons[timed.text] = timed
    shortest: tuple[Timed, ...] = (Every(min(intervals)),) if intervals else ()
    return (*shortest, *(crons[text] for text in sorted(crons)))
