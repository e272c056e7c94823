from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.tables.core.model import Status
from penstock.tables.core.verdict import Reason, UnitFacts, UpstreamFacts, may_run

READY = UnitFacts(key="table:u", due_ms=1_000, changed=("raw",))
NOW_MS = 5_000

REASONS = {
    Reason.IN_FLIGHT: ({"in_flight_job": 7}, "job 7"),
    Reason.DRAINING: ({"draining": True}, "draining"),
    Reason.GATED: ({"gated": ("raw",)}, "raw"),
    Reason.LOCK_HELD: ({"locked": ("u",)}, "u"),
    Reason.PAUSED: ({"stopped": (("u", Status.PAUSED),)}, "u is PAUSED"),
    Reason.SUSPENDED: ({"stopped": (("u", Status.SUSPENDED),)}, "u is SUSPENDED"),
    Reason.ERROR: ({"stopped": (("u", Status.ERROR),)}, "u is ERROR"),
    Reason.SOURCE_MISSING: ({"missing": ("raw",)}, "source raw is not in the lake"),
    Reason.ENGINE_AWAY: ({"retry_at_ms": 7_000, "away": "nobody"}, "again in 2 s: nobody"),
    Reason.BACKING_OFF: (
        {"retry_at_ms": 7_000, "error": "no room", "attempt": 3},
        "again in 2 s (attempt 3): no room",
    ),
    Reason.ON_DEMAND: ({"due_ms": None}, "on demand"),
    Reason.NO_COORDINATOR: ({"coordinated": False}, "no coordinator is running"),
    Reason.NOT_DUE: ({"due_ms": 6_500}, "due in 1.5 s"),
    Reason.UPSTREAM_FAILED: (
        {
            "upstreams": (
                UpstreamFacts("table:x", failing=True, error="no room", retry_at_ms=8_000),
            )
        },
        "table:x failed and will be tried again in 3 s: no room",
    ),
    Reason.UPSTREAM_RUNNING: ({"upstreams": (UpstreamFacts("table:x", running=True),)}, "table:x"),
    Reason.UPSTREAM_DUE: ({"upstreams": (UpstreamFacts("table:x", will_run=True),)}, "table:x"),
    Reason.UPSTREAM_EMPTY: ({"unfilled": ("x",)}, "waiting for x, which was never filled"),
    Reason.NO_CHANGE: ({"changed": ()}, "nothing it reads has changed"),
    Reason.NO_BUDGET: ({"free_slots": 0}, "slots"),
    Reason.READY: ({}, "may run now"),
}


def test_every_reason_is_covered():
    assert set(REASONS) == set(Reason)


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_is_given_with_a_text_for_people(reason):
    changes, text = REASONS[reason]
    verdict = may_run(replace(READY, **changes), NOW_MS)
    assert verdict.reason is reason
    assert text in verdict.text
    assert verdict.may_run is (reason is Reason.READY)


@pytest.mark.parametrize(
    "reason",
    [
        Reason.PAUSED,
        Reason.SUSPENDED,
        Reason.ERROR,
        Reason.SOURCE_MISSING,
        Reason.ENGINE_AWAY,
        Reason.BACKING_OFF,
        Reason.ON_DEMAND,
        Reason.NOT_DUE,
        Reason.UPSTREAM_FAILED,
        Reason.UPSTREAM_RUNNING,
        Reason.UPSTREAM_DUE,
        Reason.UPSTREAM_EMPTY,
    ],
)
def test_a_request_overrides_what_holds_a_schedule_back(reason):
    facts = replace(READY, **REASONS[reason][0], requested=True)
    assert may_run(facts, NOW_MS).may_run


@pytest.mark.parametrize(
    "reason",
    [
        Reason.IN_FLIGHT,
        Reason.DRAINING,
        Reason.GATED,
        Reason.LOCK_HELD,
        Reason.NO_CHANGE,
        Reason.NO_BUDGET,
    ],
)
def test_a_request_does_not_override_what_would_do_harm(reason):
    facts = replace(READY, **REASONS[reason][0], requested=True)
    assert may_run(facts, NOW_MS).reason is reason


def test_time_alone_ends_back_off_and_waiting_to_be_due():
    assert may_run(replace(READY, due_ms=6_000), NOW_MS).until_ms == 6_000
    assert may_run(replace(READY, due_ms=6_000), 6_000).may_run
    assert may_run(replace(READY, retry_at_ms=7_000), NOW_MS).until_ms == 7_000
    assert may_run(replace(READY, retry_at_ms=7_000), 7_000).may_run


def test_a_run_above_that_ended_since_it_was_due_is_enough():
    busy = UpstreamFacts("table:x", running=True, will_run=True, finished_ms=1_000)
    assert may_run(replace(READY, upstreams=(busy,)), NOW_MS).may_run
    earlier = replace(busy, finished_ms=999)
    verdict = may_run(replace(READY, upstreams=(earlier,)), NOW_MS)
    assert verdict.reason is Reason.UPSTREAM_RUNNING


def test_a_retry_above_that_is_running_is_waited_for():
    retrying = UpstreamFacts("table:x", running=True, failing=True, finished_ms=4_000)
    verdict = may_run(replace(READY, upstreams=(retrying,)), NOW_MS)
    assert verdict.reason is Reason.UPSTREAM_RUNNING


def test_below_a_table_in_error_the_last_good_data_is_read_and_said_so():
    broken = UpstreamFacts("table:x", stopped=Status.ERROR)
    verdict = may_run(replace(READY, upstreams=(broken,)), NOW_MS)
    assert verdict.may_run
    assert verdict.stale == ("table:x",)
    assert "on the last good data: table:x is ERROR" in verdict.text


def test_contents_never_made_are_made_though_nothing_moved():
    assert may_run(replace(READY, changed=(), rebuild=True), NOW_MS).may_run


def test_many_names_are_not_all_listed():
    verdict = may_run(replace(READY, locked=("a", "b", "c", "d", "e")), NOW_MS)
    assert verdict.text.endswith("a, b, c and 2 more")
