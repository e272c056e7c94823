"""What an ingest part tells the server of itself."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.flow.channel import WindowedChannel
from penstock.ingest.report import ingest_facts, state_of
from penstock.ingest.status import status_values
from penstock.ingest.windows import Windows


def status(**pipeline: Any) -> dict[str, Any]:
    windows = Windows([WindowedChannel(64, "parse"), WindowedChannel(64, "store")])
    for now_ms in range(0, 2_001, 100):
        windows.tick(now_ms)
    found = status_values(windows.status(), {"messages_acked_total": 5})
    return {**found, "pipeline": pipeline} if pipeline else found


def test_a_status_becomes_the_structs_of_the_protocol() -> None:
    facts = ingest_facts(
        status(held=True, stored_seq=7, drain_per_s=9, trouble=None, tariffs=None, behind=1),
        now_ms=10_000, after_ms=0, budget_bytes=99, reads=["topics.raw"], writes=["readings"],
    )  # fmt: skip
    store = facts.stages[1]
    assert (store.name, store.held, store.may_hold) == ("store", True, True)
    assert (store.p50_ms, store.p99_ms) == (None, None), "it finished nothing"
    assert not facts.stages[0].may_hold
    assert (facts.stored_seq, facts.budget_bytes, facts.edge) == (
        7,
        99,
        {"messages_acked_total": 5},
    )


def test_only_decisions_after_the_last_report_are_told() -> None:
    found = status()
    assert {each["action"] for each in found["decisions"]} == {"hold"}
    more = {**found["decisions"][0], "action": "increase", "ago_ms": 50}
    found["decisions"].append(more)
    told = ingest_facts(found, now_ms=10_000, after_ms=0, budget_bytes=0).decisions
    assert [(each.action, each.at) for each in told] == [("increase", 9_950)], "no window was left"
    again = ingest_facts(found, now_ms=10_000, after_ms=9_950, budget_bytes=0)
    assert again.decisions == []


def test_a_note_does_not_name_its_stage_again() -> None:
    found = status()
    assert found["stages"][0]["note"].startswith("parse: ")
    [parse, _] = ingest_facts(found, now_ms=1, after_ms=0, budget_bytes=0).stages
    assert parse.note.startswith("hold ")


def test_an_edge_alone_has_no_stage_to_hold() -> None:
    assert not any(
        s.may_hold for s in ingest_facts(status(), now_ms=1, after_ms=0, budget_bytes=0).stages
    )


@pytest.mark.parametrize(
    ("pipeline", "state"),
    [
        ({"trouble": "Spark is away", "held": True}, "failing"),
        ({"trouble": None, "held": True}, "held"),
        ({"trouble": None, "held": False}, "ok"),
    ],
)
def test_the_state_is_the_worst_that_holds(pipeline: dict[str, Any], state: str) -> None:
    assert state_of(status(**pipeline))[0] == state
