"""The choice between running a query and applying changes, made before anything runs.

Both ways are estimated from what the catalog knows: rows and bytes to read, rows to write, changed
rows. How long these take is learned per table and way from its own refreshes. Pure.

>>> facts = Workload(full_rows=10_000_000, result_rows=1_000, delta_rows=1_000, delta_read_rows=0)
>>> choose(facts, {}).mode.value
'DIFFERENTIAL'
>>> choose(Workload(10_000_000, 1_000, 900_000, 30_000_000), {}).mode.value
'FULL'
>>> dear = choose(facts, {Mode.DIFFERENTIAL: 20.0})
>>> dear.mode.value, round(dear.full_ms), round(dear.differential_ms)
('FULL', 340, 840)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final, NamedTuple

from penstock.tables.core.model import Mode

START_MS: Final = {Mode.FULL: 40.0, Mode.DIFFERENTIAL: 40.0}
"""What a refresh takes that has nothing to do."""
READ_MS: Final = 30e-6
"""Per row that Spark reads, before anything is learned."""
BYTE_MS: Final = 1e-6
"""Per byte of the files that they lie in."""
WRITE_MS: Final = 200e-6
"""Per row that is written."""
CHANGE_MS: Final = 2e-3
"""Per changed row: read, handed over, consolidated, located and written.

All of these are low on purpose. A way that was taken for cheaper than it is gets chosen, measured
and corrected; one that was taken for dearer would never be tried.
"""
MARGIN: Final = 0.9
"""Changes are applied if that is estimated to take less than this share of the whole query."""
MEMORY: Final = 5
"""How many refreshes of a way are remembered; their median counts."""
FACTOR_MAX: Final = 200.0
FADES: Final = 0.97
"""What is left of what was learned of a way after a refresh by the other one.

A way that takes three times as long is tried again after 36 refreshes, which costs 5 % over them.
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """What each way has to do, by the catalog: rows that were deleted from files count.

    `full_rows` are those of the inputs, as often as the query reads them; `delta_read_rows` those
    that the delta query reads of inputs' old rows; `delta_rows` the changed rows of all inputs. The
    bytes are those of the files that these rows lie in.
    """

    full_rows: int
    result_rows: int
    delta_rows: int
    delta_read_rows: int
    full_bytes: int = 0
    delta_read_bytes: int = 0


class Held(NamedTuple):
    """One input by the catalog: its rows and bytes, and how many rows changed."""

    rows: int = 0
    bytes: int = 0
    changed: int = 0


def workload(inputs: Mapping[str, Held], reads: Mapping[str, int], result_rows: int) -> Workload:
    """What each way has to do; `reads` says how often the changes need each input's old rows."""
    times = {name: reads.get(name, 0) for name in inputs}
    return Workload(
        full_rows=sum(held.rows for held in inputs.values()),
        result_rows=result_rows,
        delta_rows=sum(held.changed for held in inputs.values()),
        delta_read_rows=sum(held.rows * times[name] for name, held in inputs.items()),
        full_bytes=sum(held.bytes for held in inputs.values()),
        delta_read_bytes=sum(held.bytes * times[name] for name, held in inputs.items()),
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice and what it was made from, for the record; times are milliseconds."""

    mode: Mode
    full_ms: float
    differential_ms: float
    workload: Workload
    factors: Mapping[str, float]
    forced: bool = False
    measured_ms: float | None = None
    paid_once: bool = False
    """Whether a part was paid for later refreshes, too: to fill a state, or to copy an input."""

    @property
    def regret_ms(self) -> float | None:
        """How much longer it took than the other way was estimated to take; 0 if it did not."""
        if self.measured_ms is None:
            return None
        other = self.differential_ms if self.mode is Mode.FULL else self.full_ms
        return max(0.0, self.measured_ms - other)

    def as_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        found = asdict(self)
        found["mode"] = self.mode.value
        found["regret_ms"] = self.regret_ms
        return found


def estimates(facts: Workload) -> dict[Mode, float]:
    """What each way would take if nothing was learned."""
    full = facts.full_rows * READ_MS + facts.full_bytes * BYTE_MS + facts.result_rows * WRITE_MS
    differential = (
        facts.delta_read_rows * READ_MS
        + facts.delta_read_bytes * BYTE_MS
        + facts.delta_rows * CHANGE_MS
    )
    full += START_MS[Mode.FULL]
    differential += START_MS[Mode.DIFFERENTIAL]
    return {Mode.FULL: full, Mode.DIFFERENTIAL: differential}


def choose(facts: Workload, factors: Mapping[Mode, float], *, only: Mode | None = None) -> Choice:
    """The way that is estimated to be quicker, or the only one that is allowed."""
    plain = estimates(facts)
    full, differential = (
        plain[mode] * factors.get(mode, 1.0) for mode in (Mode.FULL, Mode.DIFFERENTIAL)
    )
    mode = only or (Mode.DIFFERENTIAL if differential < MARGIN * full else Mode.FULL)
    named = {mode.value: factor for mode, factor in factors.items()}
    return Choice(mode, full, differential, facts, named, forced=only is not None)


def learned(past: Iterable[Mapping[str, Any]]) -> dict[Mode, float]:
    """By how much each way took longer than its plain estimate, from choices on record.

    `past` are choices with their measured times, newest first. A way that was not taken for a while
    counts for less with every refresh since, so that it is tried again one day: what it took may
    be that of a cold JVM, or of a table that has changed since. The more the two ways differ, the
    longer that takes.
    """
    ratios: dict[Mode, list[float]] = {}
    since: dict[Mode, int] = {}
    for place, entry in enumerate(past):
        measured = entry.get("measured_ms")
        mode = Mode(entry["mode"])
        known = ratios.setdefault(mode, [])
        if measured is None or entry.get("paid_once") or len(known) >= MEMORY:
            continue
        since.setdefault(mode, place)
        plain = estimates(Workload(**entry["workload"]))[mode]
        known.append(min(FACTOR_MAX, max(1 / FACTOR_MAX, measured / plain)))
    return {mode: median(found) * FADES ** since[mode] for mode, found in ratios.items() if found}
