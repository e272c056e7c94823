from __future__ import annotations

import threading

from penstock.ingest.windows import Windows
from penstock.spark.pipeline.stages import BatchStage, batch_messages


def test_a_full_stage_lets_nothing_in_until_a_batch_leaves() -> None:
    stage = BatchStage("store", window=1_000)
    assert stage.enter(350, 0, 0)
    assert stage.enter(350, 0, 0)
    assert not stage.enter(350, 0, 0)
    entered = threading.Event()
    thread = threading.Thread(target=lambda: stage.enter(350, 0, 30) and entered.set())
    thread.start()
    stage.leave(350, 1_000)
    thread.join(30)
    assert entered.is_set()
    assert stage.occupied == 700
    report = stage.report(1_000)
    assert (report.items_in, report.items_out, report.refused) == (1_050, 350, True)


def test_an_empty_stage_takes_a_batch_of_any_size() -> None:
    stage = BatchStage("store", window=10)
    assert stage.enter(5_000, 0, 0)
    assert not stage.enter(1, 0, 0)


def test_there_are_never_more_than_two_batches_in_a_stage() -> None:
    stage = BatchStage("parse", window=1_000)
    assert stage.enter(1, 0, 0)
    assert stage.has_place(0)
    assert stage.enter(1, 0, 0)
    assert not stage.has_place(0)
    assert not stage.enter(1, 0, 0)
    assert not stage.report(1_000).refused, "the window had room"
    stage.leave(1, 1_000)
    assert stage.has_place(0)


def test_a_batch_takes_its_share_of_the_smallest_window() -> None:
    stages = [BatchStage("parse", window=4_096), BatchStage("store", window=1_024)]
    assert batch_messages(stages) == 358


def test_a_stuck_stage_brings_every_window_above_it_to_the_smallest() -> None:
    stages = [BatchStage(name) for name in ("parse", "evaluate", "store")]
    windows = Windows(stages)
    for stage in stages:
        assert stage.enter(1_000, 100_000, 0)
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


def test_a_batch_that_was_given_up_does_not_count_as_done() -> None:
    stage = BatchStage("parse")
    stage.enter(10, 0, 0)
    stage.leave(10)
    assert (stage.report(1_000).items_out, stage.occupied) == (0, 0)


def test_a_stage_that_did_nothing_has_no_latency() -> None:
    stage = BatchStage("parse")
    assert (stage.status().p50_ns, stage.status().p99_ns) == (None, None)
    stage.enter(10, 0, 0)
    stage.leave(10, 2_000)
    stage.report(1_000)
    assert (stage.status().p50_ns or 0) > 0
    stage.report(2_000)
    assert (stage.status().p50_ns, stage.status().p99_ns) == (None, None)
