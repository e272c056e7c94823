from __future__ import annotations

import pytest

from penstock.ingest.windows import Windows
from penstock.spark.pipeline.stages import WARM_BATCHES, BatchStage, JobStages

SECOND_NS = 1_000_000_000


def spent(parse: int, evaluate: int, store: int) -> dict[str, int]:
    return {"parse": parse, "evaluate": evaluate, "store": store}


def occupied(stages: JobStages) -> list[int]:
    return [stage.occupied for stage in stages.all]


def warmed(stage: BatchStage) -> BatchStage:
    for _ in range(WARM_BATCHES):
        stage.enter(1, 100)
        stage.leave(1, 5)
    return stage


def passed(stages: JobStages, count: int, times: dict[str, int]) -> None:
    stages.gathered(count, 0)
    stages.begun()
    stages.made(count, 0, times)
    stages.stored(count, times["store"])


def test_a_batch_takes_its_share_of_the_smallest_window() -> None:
    stages = JobStages()
    stages.store.resize(1_024)
    assert stages.batch_messages == 358


def test_a_batch_counts_in_each_stage_once_with_the_time_measured_for_it() -> None:
    stages = JobStages()
    passed(stages, 100, spent(5_000, 7_000, 9_000))
    for stage, took_ns in zip(stages.all, (5_000, 7_000, 9_000), strict=True):
        report = stage.report(1_000)
        assert (report.items_in, report.items_out, report.occupied) == (100, 100, 0)
        assert 0.9 * took_ns < report.p50_ns < 1.1 * took_ns


def test_what_is_in_the_job_and_what_waits_for_it_takes_slots_of_all_three() -> None:
    stages = JobStages()
    times = spent(1_000, SECOND_NS, 1_000)
    stages.gathered(10, 0)
    stages.begun()
    stages.gathered(7, 0)
    assert occupied(stages) == [17, 17, 17]
    stages.made(10, 0, times)
    assert occupied(stages) == [7, 7, 17], "it waits to be committed"
    stages.stored(10, times["store"])
    stages.begun()
    stages.made(7, 0, times)
    stages.stored(7, times["store"])
    assert occupied(stages) == [0, 0, 0]


def stuck(stages: JobStages, from_ms: int = 0) -> list[str]:
    """The stages that have finished nothing for two seconds and are to blame for it."""
    for stage in stages.all:
        for now_ms in range(from_ms, from_ms + 2_001, 100):
            stage.measure(now_ms)
    return [stage.name for stage in stages.all if stage.report(now_ms).stuck_ms >= 1_800]


def test_a_job_that_does_not_end_is_stuck_in_the_stage_that_took_longest_lately() -> None:
    for slowest in ("parse", "evaluate", "store"):
        stages = JobStages()
        times = spent(1_000, 1_000, 1_000) | {slowest: SECOND_NS}
        passed(stages, 10, times)
        stages.gathered(10, 0)
        stages.begun()
        assert stuck(stages) == [slowest]


def test_a_batch_that_is_not_committed_is_stuck_in_store_whatever_took_longest() -> None:
    stages = JobStages()
    stages.gathered(10, 0)
    stages.begun()
    stages.gathered(5, 0)
    stages.made(10, 0, spent(SECOND_NS, 1, 1))
    stages.begun()
    assert stuck(stages) == ["store"]
    stages.stored(10, 1)
    assert stuck(stages, 5_000) == ["parse"]


def test_what_is_on_its_way_from_the_topic_has_its_slots_already() -> None:
    stages = JobStages()
    stages.reading(500)
    assert occupied(stages) == [500, 500, 500]
    stages.begun()
    stages.gathered(480, 0)
    assert occupied(stages) == [480, 480, 480]
    stages.reading(0)
    assert occupied(stages) == [480, 480, 480]
    assert stages.parse.report(1_000).items_in == 480


def test_a_saturated_chain_rests_at_the_target() -> None:
    stages = JobStages()
    gathered = 0
    for _ in range(5):
        while (room := stages.room(gathered)) > 0:
            stages.gathered(min(room, 300), 0)
            gathered += min(room, 300)
        assert gathered == stages.batch_messages
        if stages.parse.occupied > gathered:
            assert 0.69 < stages.parse.occupied / 4_096 < 0.71
            stages.made(gathered, 0, spent(9, 1, 1))
            stages.stored(gathered, 1)
        stages.begun()
        gathered = 0


def test_no_more_comes_than_the_window_takes_with_what_waits_to_be_committed() -> None:
    stages = JobStages()
    passed(stages, 10, spent(1, 1, 9))
    stages.begun()
    for _ in range(2):  # two batches wait to be committed
        stages.gathered(stages.batch_messages, 0)
        stages.made(stages.batch_messages, 0, spent(1, 1, 9))
    assert stages.room(0) == int(0.85 * 4_096) - 2 * stages.batch_messages
    stages.store.resize(1_024)
    assert stages.room(0) <= 0


@pytest.mark.parametrize("window", [1_024, 1_025, 2_867, 4_097, 4_101, 131_071])
def test_a_full_chain_is_inside_the_band_in_every_stage_whatever_its_window(window: int) -> None:
    stages = JobStages()
    for stage in stages.all:
        stage.resize(window)
    most = stages.batch_messages
    stages.gathered(most, 0)
    stages.begun()
    stages.made(most, 0, spent(9, 1, 1))  # waits to be committed
    stages.gathered(most, 0)
    stages.begun()
    while (room := stages.room(0)) > 0:
        stages.gathered(room, 0)
    assert all(0.5 <= stage.occupied / window <= 0.85 for stage in stages.all)
    assert 2 * most / window > 0.69


def test_an_empty_chain_takes_a_batch_whatever_its_windows() -> None:
    stages = JobStages()
    for stage in stages.all:
        stage.resize(1)
    assert stages.room(0) == 1


def test_a_chain_refuses_in_all_its_stages() -> None:
    stages = JobStages()
    stages.refused()
    assert [stage.report(1_000).refused for stage in stages.all] == [True] * 3


def test_a_job_that_waits_for_a_stage_is_stuck_there() -> None:
    stages = JobStages()
    stages.gathered(10, 0)
    stages.begun()
    stages.held_up_by(stages.store)
    assert stuck(stages) == ["store"]
    stages.held_up_by(stages.evaluate)
    assert stuck(stages, 5_000) == ["evaluate"]


def test_a_stuck_stage_brings_every_window_above_it_to_the_smallest() -> None:
    stages = [BatchStage(name) for name in ("parse", "evaluate", "store")]
    windows = Windows(stages)
    for stage in stages:
        warmed(stage).enter(1_000, 100_000)
    for now_ms in range(0, 5_001, 100):
        windows.tick(now_ms)
    assert [stage.window for stage in stages] == [1_024] * 3
    assert stages[2].report(5_100).stuck_ms >= 5_000
    assert windows.status().bottleneck == "store"
    for stage in stages:
        stage.leave(1_000, 5)
    windows.tick(5_200)
    windows.tick(6_200)
    assert all(stage.status().stuck_ms == 0 for stage in stages)


def test_batches_that_were_given_up_do_not_count_as_done() -> None:
    stages = JobStages()
    stages.gathered(10, 0)
    stages.clear()
    assert (stages.parse.report(1_000).items_out, stages.parse.occupied) == (0, 0)


def test_a_stage_that_did_nothing_has_no_latency() -> None:
    stage = BatchStage("parse")
    assert (stage.status().p50_ns, stage.status().p99_ns) == (None, None)
    stage.enter(10, 0)
    stage.leave(10, 2_000)
    stage.report(1_000)
    assert (stage.status().p50_ns or 0) > 0
    stage.report(2_000)
    assert (stage.status().p50_ns, stage.status().p99_ns) == (None, None)


def test_a_stage_is_starting_until_its_first_batches_are_done_and_again_after_all_was_lost():
    stage = BatchStage("parse")
    for _ in range(2):
        for _ in range(WARM_BATCHES):
            assert stage.warming
            stage.enter(10, 0)
            stage.measure(0)
            assert stage.report(1_000).warming
            stage.leave(10, 1_000)
        assert not stage.warming
        stage.clear()


def test_the_second_in_which_a_stage_was_warm_still_counts_as_starting():
    stage = BatchStage("parse")
    stage.measure(100)
    warmed(stage).measure(200)
    assert stage.report(1_000).warming
    assert not stage.report(2_000).warming


def test_a_spark_that_takes_long_to_start_does_not_shrink_the_windows():
    stages = [BatchStage(name) for name in ("parse", "evaluate", "store")]
    windows = Windows(stages)
    stages[0].enter(1_000, 100_000)
    for now_ms in range(0, 30_001, 100):
        windows.tick(now_ms)
    assert [stage.window for stage in stages] == [4_096] * 3


def test_the_stage_that_took_the_time_inside_the_job_is_named():
    stages = JobStages()
    windows = Windows(stages.all)
    for second in range(3):
        stages.refused()
        passed(stages, 1_000, spent(*(ms * 1_000_000 for ms in (100, 700, 50))))
        windows.tick(1_000 * second)
    status = windows.status()
    assert status.bottleneck == "evaluate"
    assert [round(stage.busy, 2) for stage in status.stages] == [0.1, 0.7, 0.05]
