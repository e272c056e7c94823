"""One planner over all stages, and what people and Prometheus are shown."""

from __future__ import annotations

import pytest

from penstock.flow.channel import WindowedChannel
from penstock.flow.meter import StageStatus
from penstock.flow.planner import PlannerPolicy
from penstock.ingest.accept import EdgeCore
from penstock.ingest.limits import EdgeLimits
from penstock.ingest.status import Numbers, status_values
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
    assert status.decisions[0].action == "stalled"
    assert status.bottleneck == NAMES[blocked]
    assert "finished nothing" in status.stages[0].note


def test_a_budget_that_is_too_small_is_refused_at_the_start():
    with pytest.raises(Rejected):
        Windows(stages(), policy=PlannerPolicy(stages=("x",), budget_bytes=1_000))


def test_a_budget_that_begins_to_bind_is_told_once():
    told = []
    found = stages()
    windows = Windows(found, warn=told.append)
    found[0].try_send_many(["x"], 10**6)
    for now_ms in range(0, 4_000, 100):
        windows.tick(now_ms)
    assert len(told) == 1
    assert found[0].window < 4_096


def status_of(name: str, **more) -> StageStatus:
    return StageStatus(name, 1_024, 0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, **more)


def test_without_anybody_who_waits_there_is_no_bottleneck():
    assert bottleneck([status_of("a", busy=0.7), status_of("b", busy=0.9)]) is None
    assert bottleneck([status_of("a", busy=0.9, chain="job"), status_of("b", chain="job")]) is None


def test_a_first_stage_that_reads_all_the_time_is_the_bottleneck():
    """It refuses nobody: devices wait at their sockets."""
    assert bottleneck([status_of("a", busy=0.9), status_of("b", busy=0.2)]) == "a"
    assert bottleneck([status_of("a", busy=0.9), status_of("b", refused=True)]) == "b"


def test_the_last_stage_that_makes_others_wait_is_the_bottleneck():
    assert bottleneck([status_of("a", refused=True), status_of("b", refused=True)]) == "b"
    assert bottleneck([status_of("a", refused=True, busy=1.0), status_of("b", busy=0.4)]) == "a"


@pytest.mark.parametrize("slow", range(3))
def test_of_stages_in_one_job_the_one_that_takes_the_most_time_is_the_bottleneck(slow):
    names = ("parse", "evaluate", "store")
    stages = [status_of(name, busy=0.2, chain="job", refused=True) for name in names]
    stages[slow] = stages[slow]._replace(busy=0.4)
    before = [status_of("accept", refused=True, busy=2.0), status_of("reassemble", refused=True)]
    assert bottleneck([*before, *stages]) == names[slow]


def test_a_job_counts_as_a_whole_against_the_stage_before_it():
    """It takes everything at once, so that nothing waits for it but room in the topic."""
    job = [status_of(name, busy=busy, chain="job") for name, busy in (("a", 0.3), ("b", 0.4))]
    assert bottleneck([status_of("before", refused=True, busy=0.5), *job]) == "b"
    assert bottleneck([status_of("before", refused=True, busy=0.8), *job]) == "before"


def test_a_stage_that_is_stuck_is_the_bottleneck_however_little_it_does():
    stages = [status_of("a", refused=True, busy=1.0), status_of("b", stuck_ms=3_000)]
    assert bottleneck(stages) == "b"


def test_the_last_hundred_decisions_are_kept_with_their_reasons_and_repeated_ones_once():
    found = stages()
    windows = Windows(found)
    for now_ms in range(0, 60_001, 100):
        found[4].try_send_many(range(100_000))  # refused, and 100 ms later all of it is done
        found[4].done(len(found[4].receive_up_to(100_000)))
        windows.tick(now_ms)
    decisions = windows.status().decisions
    assert 30 < len(decisions) <= 100
    assert [each.ago_ms for each in decisions] == sorted(each.ago_ms for each in decisions)
    assert sum(each.stage == "parse" for each in decisions) == 1, "it held all the time"
    grown = [each for each in decisions if each.stage == "store" and each.action == "increase"]
    assert grown[-1].window == 4_160
    assert grown[-1].reason == "senders waited"


def test_prometheus_gets_every_number_with_its_type():
    core = EdgeCore(EdgeLimits(), ManualClock())
    windows = Windows(core.stages)
    windows.stages[1].latency_total.record(3_000_000, 2)
    text = Numbers(core, windows, retries=3).prometheus().decode()
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
    assert "ingest_behind" not in text, "an edge alone has no pipeline"
    assert "ingest_behind 7" in Numbers(core, windows, behind=7).prometheus().decode().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    for line in lines:
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            for suffix in ("_bucket", "_sum", "_count"):
                name = name.removesuffix(suffix)
            assert name in names


def test_a_status_is_plain_values():
    core = EdgeCore(EdgeLimits(), ManualClock())
    windows = Windows(core.stages)
    found = status_values(windows.status(), Numbers(core, windows).edge())
    assert [stage["name"] for stage in found["stages"]] == ["accept", "reassemble"]
    assert (found["bottleneck"], found["edge"]["connections"]) == (None, 0)
    assert [(stage["p50_ns"], stage["p99_ns"]) for stage in found["stages"]] == [(None, None)] * 2
