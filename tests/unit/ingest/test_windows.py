"""One planner over all stages, and what people and Prometheus are shown."""

from __future__ import annotations

import pytest

from penstock.flow import PlannerPolicy, StageStatus, WindowedChannel
from penstock.ingest.accept import EdgeCore
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.status import edge_values, prometheus, status_values
from penstock.ingest.windows import Windows, bottleneck
from penstock.kernel.errors import Rejected
from penstock.testing import ManualClock

NAMES = ("accept", "reassemble", "parse", "evaluate", "store")


def stages() -> list[WindowedChannel[object]]:
    return [WindowedChannel(1, name) for name in NAMES]


def test_all_stages_begin_with_the_planner_s_windows():
    found = stages()
    Windows(found)
    assert {stage.window for stage in found} == {4_096}


@pytest.mark.parametrize("blocked", range(5))
def test_a_blocked_stage_and_all_above_it_are_at_the_minimum_within_five_seconds(blocked):
    found = stages()
    windows = Windows(found, policy=PlannerPolicy(stages=("x",), window_initial=50_000))
    for stage in found[: blocked + 1]:
        stage.try_send_many(range(100_000))
    for now_ms in range(0, 5_001, 100):
        windows.tick(now_ms)
    assert [stage.window for stage in found[: blocked + 1]] == [1_024] * (blocked + 1)
    status = windows.status()
    assert status.bottleneck == NAMES[blocked]
    assert "finished nothing" in status.stages[0].note


def test_a_budget_that_is_too_small_is_refused_at_the_start():
    with pytest.raises(Rejected):
        Windows(stages(), policy=PlannerPolicy(stages=("x",), budget_bytes=1_000))


def test_a_budget_that_begins_to_bind_is_told_once():
    told = []
    found = stages()
    windows = Windows(found, warn=told.append)
    found[0].try_send("x", 10**6)
    for now_ms in range(0, 4_000, 100):
        windows.tick(now_ms)
    assert len(told) == 1
    assert found[0].window < 4_096


def status_of(name: str, **more) -> StageStatus:
    return StageStatus(name, 1_024, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, **more)


def test_the_last_stage_that_makes_others_wait_is_the_bottleneck():
    assert bottleneck([status_of("a"), status_of("b")]) is None
    assert bottleneck([status_of("a", refused=True), status_of("b", refused=True)]) == "b"
    assert bottleneck([status_of("a", refused=True), status_of("b", stuck_ms=2_000)]) == "b"


def test_prometheus_gets_every_number_with_its_type():
    core = EdgeCore(EdgeLimits(), ManualClock())
    windows = Windows(core.stages)
    windows.stages[1].latency_total.record(3_000_000, 2)
    text = prometheus(windows, edge_values(core, retries=3))
    lines = text.splitlines()
    for line in (
        'scheduler_window_size{stage="accept"} 4096',
        'scheduler_credits_granted{stage="reassemble"} 0',
        'scheduler_backpressure_events{stage="accept"} 0',
        'scheduler_stage_latency_seconds_bucket{stage="reassemble",le="0.0025"} 0',
        'scheduler_stage_latency_seconds_bucket{stage="reassemble",le="0.005"} 2',
        'scheduler_stage_latency_seconds_bucket{stage="reassemble",le="+Inf"} 2',
        'scheduler_stage_latency_seconds_count{stage="reassemble"} 2',
        "ingest_retries_total 3",
    ):
        assert line in lines
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    for line in lines:
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            for suffix in ("_bucket", "_sum", "_count"):
                name = name.removesuffix(suffix)
            assert name in names


def test_a_status_is_plain_values():
    core = EdgeCore(EdgeLimits(), ManualClock())
    found = status_values(Windows(core.stages).status(), edge_values(core))
    assert [stage["name"] for stage in found["stages"]] == ["accept", "reassemble"]
    assert (found["bottleneck"], found["edge"]["connections"]) == (None, 0)
    assert [(stage["p50_ns"], stage["p99_ns"]) for stage in found["stages"]] == [(None, None)] * 2
