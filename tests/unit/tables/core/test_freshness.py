"""How fresh a table is: a word for every reason, and when waiting becomes late."""

from __future__ import annotations

import pytest

from penstock.tables.core.freshness import LATE_MS, freshness, state_of
from penstock.tables.core.health import TableHealth
from penstock.tables.core.model import Mode, Status
from penstock.tables.core.verdict import Reason

NOW_MS = 1_000_000
STATES = {"fresh", "running", "waiting", "late", "error", "paused", "away"}


def row(reason: Reason, *, fresh_ms: int | None = 0, due_ms: int | None = 1) -> TableHealth:
    return TableHealth(
        "hours",
        Status.ACTIVE,
        Mode.AUTO,
        "1m",
        "table:hours",
        reason,
        "",
        fresh_ms,
        due_ms,
        0,
        None,
    )


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_state(reason: Reason) -> None:
    assert state_of(reason, stale_by_ms=0) in STATES - {"late"}


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (Reason.NOT_DUE, "fresh"),
        (Reason.NO_CHANGE, "fresh"),
        (Reason.IN_FLIGHT, "running"),
        (Reason.PAUSED, "paused"),
        (Reason.BACKING_OFF, "error"),
        (Reason.ERROR, "error"),
        (Reason.NO_COORDINATOR, "away"),
        (Reason.ENGINE_AWAY, "away"),
        (Reason.UPSTREAM_DUE, "late"),
        (Reason.NO_BUDGET, "late"),
    ],
)
def test_the_state_of_a_table_that_was_due_long_ago(reason: Reason, state: str) -> None:
    assert freshness(row(reason), NOW_MS).state == state


def test_a_table_that_was_never_refreshed_is_not_late_since_1970() -> None:
    assert freshness(row(Reason.READY, fresh_ms=None, due_ms=0), NOW_MS) == ("waiting", None)


@pytest.mark.parametrize(("stale_by_ms", "state"), [(LATE_MS, "waiting"), (LATE_MS + 1, "late")])
def test_a_table_that_waits_for_too_long_is_late(stale_by_ms: int, state: str) -> None:
    found = freshness(row(Reason.READY, due_ms=NOW_MS - stale_by_ms), NOW_MS)
    assert found == (state, stale_by_ms)


def test_a_table_that_is_not_due_is_not_stale() -> None:
    assert freshness(row(Reason.NOT_DUE, due_ms=NOW_MS + 5), NOW_MS) == ("fresh", 0)
    assert freshness(row(Reason.NO_CHANGE, due_ms=0), NOW_MS) == ("fresh", 0)
    assert freshness(row(Reason.PAUSED, due_ms=None), NOW_MS) == ("paused", None)


def test_a_table_on_demand_waits_until_it_was_filled() -> None:
    assert freshness(row(Reason.ON_DEMAND, due_ms=None), NOW_MS) == ("fresh", 0)
    never = row(Reason.ON_DEMAND, fresh_ms=None, due_ms=None)
    assert freshness(never, NOW_MS) == ("waiting", None)
