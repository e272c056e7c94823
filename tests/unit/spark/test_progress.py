from __future__ import annotations

from dataclasses import dataclass

from penstock.spark.progress import look


@dataclass
class Stage:
    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int
    done: bool


def test_time_left_follows_the_share_of_tasks() -> None:
    stages = [Stage(4, 4, 100, True), Stage(4, 2, 50, False)]
    seen = look(stages, operation_id="o", running=2, elapsed_ms=3_000, done=False)
    assert (seen.stages, seen.stages_done, seen.tasks, seen.tasks_done) == (2, 1, 8, 6)
    assert (seen.bytes_read, seen.tasks_running, seen.share) == (150, 2, 0.75)
    assert seen.left_ms == 1_000


def test_at_first_nobody_knows_how_long_it_takes() -> None:
    seen = look([], operation_id="o", running=0, elapsed_ms=500, done=False)
    assert (seen.left_ms, seen.share) == (None, 0.0)


def test_a_query_that_is_done_has_nothing_left() -> None:
    seen = look([Stage(3, 1, 0, False)], operation_id="o", running=0, elapsed_ms=9, done=True)
    assert (seen.left_ms, seen.share) == (0, 1.0)
