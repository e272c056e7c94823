from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import TableNotFound
from penstock.tables.core.capacity import DispatchSettings, ParallelMode
from penstock.tables.core.dispatch import Coordinator
from penstock.tables.core.events import (
    AnswerRequest,
    AskToken,
    Cancel,
    CloseJob,
    Contents,
    DrainChanged,
    Enqueue,
    GateChanged,
    GraphChanged,
    JobCancelled,
    JobSucceeded,
    LocksChanged,
    MadeByHand,
    PoolContended,
    RecordSkip,
    RefreshRequested,
    ReleaseToken,
    SetStatus,
    Start,
    StatusChanged,
    TokenLost,
    TokenWon,
    WorkerDied,
    WouldDispatch,
)
from penstock.tables.core.facts import TableMemory
from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, LakePosition
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import JobStatus
from penstock.tables.core.model import Status
from penstock.tables.core.verdict import Reason
from tests.unit.tables.core.stage import Stage, answers, reads, starts, statuses

CHAIN = (reads("a", "raw"), reads("b", "a"), reads("c", "b"))
FAN = (reads("a", "raw"), reads("b", "a"), reads("other", "raw2"), reads("below", "other"))


def quiet(*tables, **options) -> Stage:
    """A stage whose tables are all made and not yet due again."""
    stage = Stage(*tables, **options)
    while stage.started():
        board = stage.coordinator.facts
        stage.succeed(*[board.jobs[job].root for job in list(board.jobs)])
    return stage


def test_new_tables_are_made_in_order_each_when_the_last_one_above_it_has_ended():
    stage = Stage(*CHAIN)
    assert stage.started() == ["table:a"]
    assert stage.why("b") == "upstream_running"
    assert stage.why("c") == "upstream_due"
    assert starts(stage.succeed("a")) == ["table:b"]
    assert starts(stage.succeed("b")) == ["table:c"]


def test_there_is_no_barrier_between_levels():
    stage = Stage(*FAN)
    assert sorted(stage.started()) == ["table:a", "table:other"]
    assert starts(stage.succeed("a")) == ["table:b"]
    assert "table:other" in stage.started()


def test_a_job_is_stored_before_it_is_started():
    stage = Stage(reads("a", "raw"))
    kinds = [type(effect) for effect in stage.effects]
    assert kinds == [AskToken, Enqueue, Start]
    job = stage.effects[1].job
    assert (job.members, job.root, job.coordinator, job.attempt_no) == (("a",), "a", "c1", 1)


def test_what_has_not_changed_is_not_refreshed_but_counts_as_fresh():
    stage = quiet(*CHAIN)
    effects = stage.wait(1_500)
    assert starts(effects) == []
    assert {e.reason for e in effects if isinstance(e, RecordSkip)} == {Reason.NO_CHANGE}
    assert stage.why("a") == "no_change"
    assert not [e for e in stage.wait(1_500) if isinstance(e, RecordSkip)]  # once is enough


def test_a_change_reaches_every_table_below():
    stage = quiet(*CHAIN)
    stage.write("raw")
    assert stage.started() == []  # not due yet
    assert starts(stage.wait(1_500)) == ["table:a"]
    assert starts(stage.succeed("a")) == ["table:b"]


def test_a_refresh_that_changed_no_row_ends_there():
    stage = quiet(*CHAIN)
    stage.write("raw")
    stage.wait(1_500)
    assert starts(stage.succeed("a", changed=False)) == []
    assert stage.why("b") == "no_change"


def test_a_change_after_a_quiet_time_is_taken_up_at_once_but_not_twice_in_an_interval():
    stage = quiet(*CHAIN)
    stage.wait(5_500)
    stage.write("raw")
    assert stage.started() == ["table:a"]
    assert starts(stage.succeed("a")) == ["table:b"]
    stage.write("raw")
    assert "table:a" not in stage.started()[1:]
    assert "table:a" in starts(stage.wait(1_000))


def test_after_a_quiet_time_a_table_below_two_waits_for_both_and_runs_once():
    stage = quiet(
        reads("left", "raw", consistency="none"),
        reads("right", "raw", consistency="none"),
        reads("both", "left", "right", consistency="none"),
        running_max=2,
    )
    stage.wait(5_500)
    stage.write("raw")
    assert sorted(stage.started()) == ["table:left", "table:right"]
    assert starts(stage.succeed("left")) == []
    assert stage.why("both") == "upstream_running"
    assert starts(stage.succeed("right")) == ["table:both"]


def test_cron_says_when_whatever_has_changed():
    stage = quiet(reads("a", "raw", schedule="0 * * * *"))
    stage.wait(1_800_000)
    stage.write("raw")
    assert stage.why("a") == "not_due"


def test_the_longest_overdue_goes_first_then_the_shorter_interval_then_the_order():
    stage = quiet(
        reads("slow", "raw", schedule="10s"),
        reads("z", "raw", schedule="2s"),
        reads("m", "raw", schedule="2s"),
        running_max=1,
    )
    stage.write("raw")
    stage.wait(60_000)
    order = []
    while stage.started():
        order += stage.started()
        stage.succeed(stage.coordinator.live_jobs[0].root)
    assert order == ["table:m", "table:z", "table:slow"]


def test_no_more_jobs_run_than_the_warehouse_may_have():
    stage = Stage(*(reads(f"t{n}", "raw") for n in range(6)), running_max=2)
    assert len(stage.started()) == 2
    assert stage.why("t5") == "no_budget"
    stage.succeed("t0")
    assert len(stage.started()) == 2


def test_without_a_permit_nothing_starts_and_it_is_asked_for_again_on_the_next_tick():
    stage = Stage(reads("a", "raw"), permits=0)
    assert stage.started() == []
    stage.tell(TokenLost())
    assert stage.why("a") == "no_budget"
    assert stage.wait(10) == [AskToken()]


def test_a_permit_that_nobody_needs_any_more_is_given_back():
    stage = Stage(reads("a", "raw"), permits=0)
    stage.tell(StatusChanged("a", Status.PAUSED))
    assert stage.tell(TokenWon()) == [ReleaseToken()]


def test_a_permit_given_back_is_left_to_others_who_wait():
    stage = Stage(reads("a", "raw"), reads("b", "raw"), running_max=1)
    stage.tell(PoolContended(True))
    assert stage.succeed("a") == [ReleaseToken()]
    assert stage.why("b") == "no_budget"
    assert starts(stage.tell(PoolContended(False))) == ["table:b"]


def test_a_permit_is_left_to_others_only_for_a_while():
    stage = Stage(reads("a", "raw"), reads("b", "raw"), running_max=1)
    stage.tell(PoolContended(True))
    stage.succeed("a")
    assert starts(stage.wait(999)) == []
    assert starts(stage.wait(1)) == ["table:b"]


def test_a_retryable_failure_is_tried_again_after_a_second_then_two_and_then_suspends():
    stage = quiet(*CHAIN)
    stage.write("raw")
    stage.wait(1_500)
    stage.fail("a")
    assert stage.why("a") == "backing_off"
    assert starts(stage.wait(999)) == []
    assert starts(stage.wait(1)) == ["table:a"]
    assert stage.running("a").attempt_no == 2
    stage.fail("a")
    assert starts(stage.wait(1_999)) == []
    assert starts(stage.wait(1)) == ["table:a"]
    assert statuses(stage.fail("a")) == [("a", "SUSPENDED")]
    assert stage.why("a") == "suspended"
    assert starts(stage.wait(600_000)) == []


def test_a_success_ends_the_row_of_failures():
    stage = quiet(reads("a", "raw"))
    for _ in range(4):
        stage.write("raw")
        stage.wait(5_000)
        stage.fail("a")
        stage.wait(1_000)
        stage.succeed("a")
    assert stage.coordinator.facts.statuses["a"] is Status.ACTIVE


def test_a_permanent_failure_is_an_error_at_once():
    stage = quiet(*CHAIN)
    stage.write("raw")
    stage.wait(1_500)
    effects = stage.fail("a", FailureKind.PERMANENT)
    assert statuses(effects) == [("a", "ERROR")]
    closed = [e.job for e in effects if isinstance(e, CloseJob)]
    assert [job.status for job in closed] == [JobStatus.PERMANENT_FAILED]
    assert stage.why("a") == "error"


def test_the_direct_readers_of_a_retryable_failure_wait_and_others_do_not():
    stage = quiet(
        reads("a", "raw"), reads("b", "a", "raw2", consistency="none"), reads("c", "b", "raw3")
    )
    for source in ("raw", "raw2", "raw3"):
        stage.write(source)
    stage.wait(1_500)
    effects = stage.fail("a")
    assert stage.why("b") == "upstream_failed"
    assert starts(effects) == ["table:c"]  # it reads b, which will not run for now
    stage.succeed("c")
    stage.wait(1_000)
    assert starts(stage.succeed("a")) == ["table:b"]


def test_below_a_suspended_or_failed_table_refreshes_go_on_with_its_last_good_data():
    stage = quiet(reads("a", "raw"), reads("b", "a", "raw2", consistency="none"))
    stage.write("raw")
    stage.write("raw2")
    stage.wait(1_500)
    effects = stage.fail("a", FailureKind.PERMANENT)
    (start,) = [e for e in effects if isinstance(e, Start)]
    assert start.job.unit_key == "table:b"
    assert start.stale == ("table:a",)


def test_a_lock_collision_never_counts():
    stage = quiet(reads("a", "raw"))
    stage.write("raw")
    stage.wait(1_500)
    for _ in range(10):
        assert statuses(stage.fail("a", FailureKind.COLLISION)) == []
        assert stage.why("a") == "backing_off"
        assert starts(stage.wait(1_000)) == ["table:a"]
    assert stage.running("a").attempt_no == 1


def test_an_engine_that_is_away_is_asked_for_every_second_and_never_counts():
    stage = quiet(reads("a", "raw"))
    stage.write("raw")
    stage.wait(1_500)
    for pause_ms in [1_000] * 8:
        assert statuses(stage.fail("a", FailureKind.AWAY)) == []
        assert stage.why("a") == "engine_away"
        assert starts(stage.wait(pause_ms - 1)) == []
        assert starts(stage.wait(1)) == ["table:a"]
    stage.fail("a")
    assert stage.why("a") == "backing_off"
    assert starts(stage.wait(1_000)) == ["table:a"], "as after the first failure"
    stage.succeed("a")
    assert stage.coordinator.facts.statuses["a"] is Status.ACTIVE


def test_one_table_asks_for_all_whether_the_engine_is_back():
    stage = quiet(reads("a", "raw"), reads("b", "raw"), reads("c", "raw"))
    stage.write("raw")
    stage.wait(1_500)
    running = [key.removeprefix("table:") for key in stage.started()]
    for name in running:
        effects = stage.fail(name, FailureKind.AWAY)
        closed = [e.job.status for e in effects if isinstance(e, CloseJob)]
        assert closed == [JobStatus.CANCELLED], "no refresh failed"
    asked = []
    for _ in range(6):
        asked += starts(stage.wait(1_000))
        assert starts(stage.wait(0)) == []
        stage.fail(asked[-1].removeprefix("table:"), FailureKind.AWAY)
    assert len(asked) == 6, "one in a second"
    assert all(one != other for one, other in pairwise(asked)), "none asks twice in a row"
    (first,) = starts(stage.wait(1_000))
    rest = starts(stage.succeed(first.removeprefix("table:")))
    assert {first, *rest} == {"table:a", "table:b", "table:c"}


def test_a_query_that_ends_the_engine_each_time_is_suspended_with_the_reason():
    stage = quiet(reads("a", "raw"))
    stage.write("raw")
    stage.wait(1_500)
    for _ in range(2):
        effects = stage.fail("a", FailureKind.LOST)
        assert statuses(effects) == []
        assert [e.job.status for e in effects if isinstance(e, CloseJob)] == [JobStatus.CANCELLED]
        assert stage.why("a") == "engine_away"
        assert starts(stage.wait(1_000)) == ["table:a"]
        stage.fail("a", FailureKind.AWAY)  # it is not back yet, which is nobody's fault
        assert starts(stage.wait(1_000)) == ["table:a"]
    effects = stage.fail("a", FailureKind.LOST)
    assert [e for e in effects if isinstance(e, SetStatus)] == [
        SetStatus("a", Status.SUSPENDED, "3 failures in a row, the last: broken")
    ]
    assert stage.coordinator.facts.tables["a"].error == "3 failures in a row, the last: broken"
    assert starts(stage.wait(60_000)) == []


def test_tables_that_lost_their_engine_run_alone_so_that_only_one_is_to_blame():
    stage = quiet(reads("a", "raw"), reads("b", "raw"), reads("killer", "raw"), reads("d", "other"))
    stage.write("raw")
    stage.wait(1_500)
    assert sorted(stage.started()) == ["table:a", "table:b", "table:killer"]
    ran = []
    stopped = []
    for _ in range(40):
        running = [key.removeprefix("table:") for key in stage.started()]
        if "killer" in running:
            effects = [e for name in running for e in stage.fail(name, FailureKind.LOST)]
            stopped += statuses(effects)
        else:
            stage.succeed(*running)
        stage.write("other")  # the most urgent one is always another table
        stage.wait(1_000)
        ran.append(sorted(stage.started()))
    assert stopped == [("killer", "SUSPENDED")]
    assert [units for units in ran if "table:killer" in units] == [["table:killer"]] * 2
    facts = stage.coordinator.facts
    assert {name: facts.statuses[name].value for name in ("a", "b", "d")} == {
        "a": "ACTIVE", "b": "ACTIVE", "d": "ACTIVE",
    }  # fmt: skip
    assert facts.states["table:a"].retry.losses == facts.states["table:b"].retry.losses == 0


def test_a_failed_request_never_counts_and_is_answered():
    stage = quiet(reads("a", "raw", schedule="1h"))
    stage.write("raw")
    for number in range(5):
        assert starts(stage.tell(RefreshRequested(f"r{number}", "a"))) == ["table:a"]
        effects = stage.fail("a", FailureKind.RETRYABLE)
        assert answers(effects) == [(f"r{number}", False)]
        assert statuses(effects) == []
    assert stage.why("a") == "not_due"


def test_a_request_that_finds_the_query_wrong_stops_the_table():
    stage = quiet(reads("a", "raw", schedule="1h"))
    stage.write("raw")
    stage.tell(RefreshRequested("r", "a"))
    effects = stage.fail("a", FailureKind.PERMANENT)
    assert answers(effects) == [("r", False)]
    assert statuses(effects) == [("a", "ERROR")]
    assert stage.why("a") == "error"


@pytest.mark.parametrize("schedule", ["on demand", "1d"])
@pytest.mark.parametrize("kind", [FailureKind.AWAY, FailureKind.COLLISION])
def test_nobody_waits_for_a_table_that_nobody_will_try_again(schedule, kind):
    stage = Stage(reads("a", "raw", schedule=schedule), reads("b", "a", "other"))
    if schedule == "on demand":
        stage.tell(RefreshRequested("first", "a"))
    stage.succeed("a", "b")
    stage.tell(RefreshRequested("r", "a", force=True))
    assert answers(stage.fail("a", kind)) == [("r", False)]
    assert stage.why("a") == ("on_demand" if schedule == "on demand" else "not_due")
    stage.write("other")
    assert starts(stage.wait(2_000)) == ["table:b"]


def test_nobody_waits_for_a_failed_table_that_is_made_on_demand_from_now_on():
    stage = quiet(reads("a", "raw"), reads("b", "a", "other", consistency="none"))
    stage.write("raw")
    stage.write("other")
    stage.wait(1_500)
    stage.fail("a")
    assert stage.why("b") == "upstream_failed"
    lazy = stage.graph.with_table(reads("a", "raw", schedule="on demand"))
    assert starts(stage.tell(GraphChanged(lazy, 2))) == ["table:b"]


def test_a_request_is_served_though_nothing_is_due():
    stage = quiet(reads("a", "raw", schedule="on demand"))
    assert stage.why("a") == "on_demand"
    stage.tell(RefreshRequested("first", "a"))
    assert answers(stage.succeed("a")) == [("first", True)]
    assert answers(stage.tell(RefreshRequested("second", "a"))) == [("second", True)]
    assert stage.started() == []  # nothing had changed
    assert starts(stage.tell(RefreshRequested("third", "a", force=True))) == ["table:a"]


def test_a_request_during_a_refresh_is_served_by_the_next():
    stage = Stage(reads("a", "raw"))
    stage.tell(RefreshRequested("r", "a"))
    stage.write("raw2")
    assert stage.why("a") == "in_flight"
    board = stage.coordinator.facts
    board.positions["raw"] = stage.next_position()
    effects = stage.succeed("a")
    assert answers(effects) == [("r", True)]  # what was read is what there is


def test_a_successful_request_brings_a_stopped_table_back():
    stage = quiet(*CHAIN)
    stage.write("raw")
    stage.wait(1_500)
    stage.fail("a", FailureKind.PERMANENT)
    stage.tell(RefreshRequested("r", "a"))
    effects = stage.succeed("a")
    assert statuses(effects) == [("a", "ACTIVE")]
    assert answers(effects) == [("r", True)]


def test_a_paused_table_stays_paused_after_a_request():
    stage = quiet(*CHAIN)
    stage.tell(StatusChanged("a", Status.PAUSED))
    stage.write("raw")
    assert starts(stage.wait(5_000)) == []
    stage.tell(RefreshRequested("r", "a"))
    assert statuses(stage.succeed("a")) == []
    assert stage.why("a") == "paused"


def test_resuming_catches_up_what_was_missed_at_once():
    stage = quiet(reads("a", "raw", schedule="1h"))
    stage.tell(StatusChanged("a", Status.PAUSED))
    stage.write("raw")
    assert starts(stage.tell(StatusChanged("a", Status.ACTIVE))) == ["table:a"]


def test_a_lost_worker_is_replaced_at_once_and_the_unit_runs_again():
    stage = Stage(reads("a", "raw"))
    job = stage.running("a")
    effects = stage.tell(WorkerDied(f"w{job.job_id}"))
    closed = [e.job for e in effects if isinstance(e, CloseJob)]
    assert [(j.status, j.retryable) for j in closed] == [(JobStatus.RETRYABLE_FAILED, True)]
    assert starts(effects) == ["table:a"]
    assert stage.running("a").attempt_no == 2


def test_a_query_that_kills_every_worker_is_suspended_in_the_end():
    stage = Stage(reads("a", "raw"))
    for _ in range(10):
        stage.wait(60_000)
        effects = stage.tell(WorkerDied(f"w{stage.running('a').job_id}"))
    assert statuses(effects) == [("a", "SUSPENDED")]


def test_a_request_survives_the_worker_that_served_it():
    stage = quiet(reads("a", "raw", schedule="1h"))
    stage.write("raw")
    stage.tell(RefreshRequested("r", "a"))
    assert answers(stage.tell(WorkerDied(f"w{stage.running('a').job_id}"))) == []
    assert answers(stage.succeed("a")) == [("r", True)]


def test_a_request_that_kills_every_worker_waits_longer_and_longer_and_is_refused_in_the_end():
    stage = quiet(reads("a", "raw", schedule="on demand"))
    stage.tell(RefreshRequested("r", "a", force=True))
    for pause_ms in (0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000):
        assert answers(stage.tell(WorkerDied(f"w{stage.running('a').job_id}"))) == []
        if pause_ms:
            assert stage.why("a") == "backing_off"
            assert starts(stage.wait(pause_ms - 1)) == []
            assert starts(stage.wait(1)) == ["table:a"]
    effects = stage.tell(WorkerDied(f"w{stage.running('a').job_id}"))
    assert statuses(effects) == [("a", "SUSPENDED")]
    (answer,) = [effect for effect in effects if isinstance(effect, AnswerRequest)]
    assert not answer.ok
    assert "10 failures in a row" in answer.detail
    assert starts(effects) == starts(stage.wait(600_000)) == []
    assert stage.why("a") == "suspended"


def test_a_request_that_lost_its_worker_waits_also_if_the_table_is_paused():
    stage = quiet(reads("a", "raw"))
    stage.tell(StatusChanged("a", Status.PAUSED))
    stage.tell(RefreshRequested("r", "a", force=True))
    for _ in range(2):
        stage.tell(WorkerDied(f"w{stage.running('a').job_id}"))
    assert stage.why("a") == "backing_off"
    assert starts(stage.wait(1_000)) == ["table:a"]
    assert answers(stage.succeed("a")) == [("r", True)]


def test_a_closed_gate_holds_every_reader_of_the_source_and_nobody_else():
    stage = quiet(*FAN)
    stage.write("raw")
    stage.write("raw2")
    stage.tell(GateChanged("raw", True))
    assert starts(stage.wait(1_500)) == ["table:other"]
    assert stage.why("a") == "gated"
    assert starts(stage.tell(GateChanged("raw", False))) == ["table:a"]


def test_a_table_that_someone_else_refreshes_waits_for_the_lock():
    stage = quiet(*CHAIN)
    stage.write("raw")
    stage.tell(LocksChanged(frozenset({"a"})))
    effects = stage.wait(1_500)
    assert starts(effects) == []
    assert stage.why("a") == "lock_held"
    assert Reason.LOCK_HELD in {e.reason for e in effects if isinstance(e, RecordSkip)}
    assert starts(stage.tell(LocksChanged(frozenset()))) == ["table:a"]


DIAMOND = (reads("b", "raw"), reads("c", "raw"), reads("d", "b", "c"))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (LocksChanged(frozenset({"c"})), "lock_held"),
        (GateChanged("c", True), "gated"),
        (StatusChanged("c", Status.PAUSED), "paused"),
    ],
)
def test_one_member_that_cannot_run_holds_the_whole_group(event, reason):
    stage = quiet(*DIAMOND)
    stage.tell(event)
    stage.write("raw")
    assert starts(stage.wait(1_500)) == []
    assert stage.why("b") == stage.why("d") == reason


def test_the_member_at_fault_is_the_one_that_is_stopped():
    stage = quiet(*DIAMOND)
    stage.write("raw")
    stage.wait(1_500)
    assert statuses(stage.fail("d", FailureKind.PERMANENT, member="c")) == [("c", "ERROR")]
    assert stage.why("b") == "error"


def test_draining_lets_what_runs_end_and_starts_nothing():
    stage = Stage(*CHAIN)
    stage.tell(DrainChanged(True))
    assert starts(stage.succeed("a")) == []
    assert stage.why("b") == "draining"
    assert starts(stage.tell(DrainChanged(False))) == ["table:b"]


def test_a_table_that_was_replaced_is_made_anew_and_its_old_job_cancelled():
    stage = Stage(*CHAIN)
    old = stage.running("a")
    changed = stage.graph.with_table(reads("a", "raw", "raw9"))
    effects = stage.tell(GraphChanged(changed, 2))
    assert [e.job.job_id for e in effects if isinstance(e, Cancel)] == [old.job_id]
    assert stage.why("a") == "in_flight"  # until the old job is gone
    assert starts(stage.tell(JobCancelled(old.job_id))) == ["table:a"]
    assert stage.running("a").graph_version == 2


def test_an_old_job_that_lands_all_the_same_does_not_count_as_the_new_query():
    stage = Stage(*CHAIN)
    changed = stage.graph.with_table(reads("a", "raw", "raw9"))
    stage.tell(GraphChanged(changed, 2))
    stage.coordinator.facts.positions["raw9"] = stage.next_position()
    assert starts(stage.succeed("a")) == ["table:a"]


@pytest.mark.parametrize("kind", list(FailureKind))
def test_how_an_old_query_failed_is_not_held_against_the_new_one(kind):
    stage = Stage(*CHAIN)
    old = stage.running("a")
    stage.tell(RefreshRequested("r", "a"))
    changed = stage.graph.with_table(reads("a", "raw", "raw9"))
    stage.tell(GraphChanged(changed, 2))
    effects = stage.fail("a", kind, "a")
    closed = [(e.job.job_id, e.job.status) for e in effects if isinstance(e, CloseJob)]
    assert closed == [(old.job_id, JobStatus.CANCELLED)]
    assert statuses(effects) == answers(effects) == []
    assert starts(effects) == ["table:a"]
    assert stage.running("a").attempt_no == 1


def test_an_old_job_that_loses_its_worker_is_not_held_against_the_new_query():
    stage = Stage(*CHAIN)
    old = stage.running("a")
    stage.tell(GraphChanged(stage.graph.with_table(reads("a", "raw", "raw9")), 2))
    assert starts(stage.tell(WorkerDied(f"w{old.job_id}"))) == ["table:a"]
    assert stage.running("a").attempt_no == 1


def test_a_job_of_a_unit_that_stays_goes_on_when_the_graph_changes():
    stage = Stage(*CHAIN)
    effects = stage.tell(GraphChanged(stage.graph.with_table(reads("x", "raw")), 2))
    assert not [e for e in effects if isinstance(e, Cancel)]
    assert starts(effects) == ["table:x"]


def test_failures_are_remembered_when_the_graph_changes():
    stage = quiet(*CHAIN)
    stage.write("raw")
    stage.wait(1_500)
    stage.fail("a")
    stage.tell(GraphChanged(stage.graph.with_table(reads("x", "raw")), 2))
    assert stage.why("a") == "backing_off"


def test_a_request_for_a_table_that_is_dropped_is_answered():
    stage = Stage(reads("a", "raw"), reads("b", "a"), running_max=1)
    stage.tell(RefreshRequested("r", "b"))
    effects = stage.tell(GraphChanged(stage.graph.without("b"), 2))
    assert answers(effects) == [("r", False)]


def test_what_ended_already_or_was_never_ours_is_passed_over():
    stage = Stage(*CHAIN)
    job = stage.running("a")
    stage.succeed("a")
    assert stage.tell(JobSucceeded(job.job_id, {})) == []
    assert stage.tell(JobCancelled(999)) == []
    assert stage.tell(WorkerDied("nobody")) == []


def test_an_unknown_table_is_refused_and_nothing_changes():
    stage = Stage(*CHAIN)
    with pytest.raises(TableNotFound):
        stage.tell(RefreshRequested("r", "nobody"))
    with pytest.raises(TableNotFound):
        stage.coordinator.why("nobody", 0)


@pytest.mark.parametrize("mode", [ParallelMode.OFF, ParallelMode.DRY_RUN])
def test_serial_modes_run_one_job_at_a_time_inline_and_take_no_permits(mode):
    stage = Stage(*FAN, mode=mode)
    order = []
    while stage.started():
        assert len(stage.started()) == 1
        order += stage.started()
        stage.succeed(stage.coordinator.live_jobs[0].root)
    assert order == ["table:a", "table:b", "table:other", "table:below"]
    begun = [effect for effect in stage.effects if isinstance(effect, Start)]
    assert all(effect.inline for effect in begun)
    assert not [e for e in stage.effects if isinstance(e, (AskToken, ReleaseToken))]


def test_a_dry_run_says_what_would_have_been_started_together():
    stage = Stage(*FAN, mode=ParallelMode.DRY_RUN)
    (would,) = [e for e in stage.effects if isinstance(e, WouldDispatch)]
    assert (would.job.unit_key, would.alongside) == ("table:a", ("table:other",))


def test_the_coordinator_says_when_to_wake_it():
    stage = quiet(reads("a", "raw", schedule="10s"))
    assert stage.coordinator.wake_ms() == stage.now_ms + 10_000
    stage.wait(10_000)
    assert stage.coordinator.wake_ms() is None  # only a change can make it due
    cron = quiet(reads("a", "raw", schedule="* * * * * *"))
    cron.wait(1_000)
    woken_ms = cron.coordinator.wake_ms()
    assert woken_ms is not None
    assert woken_ms <= cron.now_ms + 1_000


def test_time_that_goes_back_does_no_harm():
    stage = quiet(*CHAIN)
    stage.now_ms -= 500_000
    stage.write("raw")
    stage.wait(0)
    assert stage.started() == []


def test_contents_made_by_a_clock_that_was_ahead_are_as_fresh_as_now():
    now_ms, day_ms = 1_000_000, 86_400_000
    ahead = TableMemory(Frontier({"raw": LakePosition(1)}), LakePosition(2), now_ms + day_ms)
    core = Coordinator("c1", DispatchSettings(), Random(1), memory={"a": ahead})
    core.step(GraphChanged(StreamGraph([reads("a", "raw", schedule="10s")]), 1), now_ms)
    assert core.why("a", now_ms).until_ms == now_ms + 10_000
    by_hand = Contents(Frontier({"raw": LakePosition(3)}), LakePosition(4), now_ms + day_ms)
    core.step(MadeByHand({"a": by_hand}), now_ms + 5_000)
    assert core.why("a", now_ms).until_ms == now_ms + 15_000


def test_a_coordinator_without_slots_cannot_be_made():
    with pytest.raises(Rejected, match="at least 1"):
        DispatchSettings(max_concurrent_refreshes=0)


def test_what_people_made_by_hand_is_taken_in_and_read_by_those_below():
    stage = Stage(reads("a", "raw", schedule="on demand"), reads("b", "a", schedule="10s"))
    stage.tell(RefreshRequested("r", "a"))
    stage.succeed("a")
    stage.succeed("b")
    stage.write("raw")
    at = stage.next_position()
    seen = Frontier({"raw": stage.coordinator.facts.positions["raw"]})
    stage.tell(MadeByHand({"a": Contents(seen, at, stage.now_ms), "gone": Contents(seen, at, 0)}))
    assert stage.coordinator.facts.tables["a"].frontier == seen
    stage.wait(10_000)
    assert stage.started() == ["table:b"]


def test_what_people_made_by_hand_brings_a_stopped_table_back():
    stage = Stage(reads("a", "raw", schedule="1s"))
    stage.fail("a", FailureKind.PERMANENT)
    assert stage.why("a") == "error"
    seen = Frontier({"raw": stage.coordinator.facts.positions["raw"]})
    found = stage.tell(MadeByHand({"a": Contents(seen, stage.next_position(), stage.now_ms)}))
    assert statuses(found) == [("a", "ACTIVE")]
    assert stage.why("a") == "not_due"
