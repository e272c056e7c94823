"""How fresh a table is, in one word for a colour and one number for a sort.

>>> state_of(Reason.NOT_DUE, stale_by_ms=0), state_of(Reason.UPSTREAM_DUE, stale_by_ms=60_000)
('fresh', 'late')
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.tables.core.health import TableHealth
from penstock.tables.core.verdict import Reason

LATE_MS: Final = 10_000
"""A table that waits for longer after it was due is late."""
_QUIET: Final = frozenset({Reason.NOT_DUE, Reason.NO_CHANGE, Reason.ON_DEMAND})
"""Reasons of a table that nothing is to be done about."""
_FIXED: Final = {
    **dict.fromkeys(_QUIET, "fresh"),
    Reason.IN_FLIGHT: "running",
    Reason.PAUSED: "paused",
    Reason.SUSPENDED: "error",
    Reason.ERROR: "error",
    Reason.SOURCE_MISSING: "error",
    Reason.BACKING_OFF: "error",
    Reason.ENGINE_AWAY: "away",
    Reason.NO_COORDINATOR: "away",
}
"""The other reasons make a table wait, and late in the end."""


class Freshness(NamedTuple):
    """A table's state (fresh, running, waiting, late, error, paused, away), and how late it is."""

    state: str
    stale_by_ms: int | None


def freshness(row: TableHealth, now_ms: int) -> Freshness:
    """How fresh a table is."""
    stale_by_ms = _stale_by_ms(row, now_ms)
    if row.reason is Reason.ON_DEMAND and row.fresh_ms is None:
        return Freshness("waiting", stale_by_ms)
    return Freshness(state_of(row.reason, stale_by_ms=stale_by_ms or 0), stale_by_ms)


def state_of(reason: Reason, *, stale_by_ms: int) -> str:
    """The word for a reason, of a table that has been due for so long."""
    fixed = _FIXED.get(reason)
    if fixed is not None:
        return fixed
    return "late" if stale_by_ms > LATE_MS else "waiting"


def _stale_by_ms(row: TableHealth, now_ms: int) -> int | None:
    """How long ago it should have been refreshed; None if it never has to be, or never was."""
    if row.reason in _QUIET:
        return 0 if row.fresh_ms is not None else None
    return max(0, now_ms - row.due_ms) if row.due_ms else None
