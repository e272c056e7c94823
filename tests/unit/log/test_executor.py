"""The partition executor: classes of work, limits, restore before serve, drain on stop."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.executor import (
    ClientQueueFull,
    ExecutorCore,
    ExecutorLimits,
    PartitionFailed,
    Phase,
    RestoreInProgress,
    Work,
)
from penstock.log.queues import Stopped
from penstock.log.shell import PartitionExecutor
from penstock.log.shell.executor import OnRestored
from penstock.log.store import Bounds, HardState


class Recorder:
    """A state owner that writes down what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[Work, list[Any]]] = []
        self.refused: list[tuple[Any, Exception]] = []
        self.restored_with: tuple[Bounds, HardState] | None = None
        self.outstanding = 0
        self.fail_on: Any = None

    def restored(self, bounds: Bounds, hard_state: HardState) -> None:
        self.restored_with = (bounds, hard_state)

    def step(self, kind: Work, items: Sequence[Any]) -> None:
        if self.fail_on in items:
            raise ZeroDivisionError("a bug in the state machine")
        self.steps.append((kind, list(items)))

    def refuse(self, kind: Work, items: Sequence[Any], error: Exception) -> None:
        self.refused += [(item, error) for item in items]

    def state(self) -> int:
        return len(self.steps)

    @property
    def busy(self) -> bool:
        return self.outstanding > 0


class ByHand:
    """An executor whose runs and restore happen when the test says so."""

    def __init__(self, **limits: int) -> None:
        self.owner = Recorder()
        self.runs: deque[Callable[[], None]] = deque()
        self.answer: OnRestored | None = None
        self.executor = PartitionExecutor(
            3,
            self.owner,
            restore=self._restore,
            run_soon=self.runs.append,
            limits=ExecutorLimits(**limits),
        )

    def _restore(self, on_restored: OnRestored) -> None:
        self.answer = on_restored

    def serving(self) -> ByHand:
        self.executor.start()
        assert self.answer is not None
        self.answer((Bounds(0, 0, 5, 1), HardState(1, 1)))
        self.run()
        return self

    def run(self) -> None:
        while self.runs:
            self.runs.popleft()()


def test_with_all_classes_waiting_the_turns_are_8_4_2_1() -> None:
    core = ExecutorCore(0, ExecutorLimits(batch_max=1))
    core.phase = Phase.SERVING
    for number in range(100):
        for kind in Work:
            core.submit(kind, number)
    for _ in range(5):
        turns = Counter(core.next_turn().kind for _ in range(15))  # type: ignore[union-attr]
        assert [turns[kind] for kind in reversed(Work)] == [8, 4, 2, 1]


def test_heartbeats_are_not_starved_by_a_full_client_queue() -> None:
    hand = ByHand().serving()
    for number in range(2_048):
        hand.executor.submit(Work.CLIENT, number)
    hand.executor.submit(Work.CONTROL, "heartbeat")
    hand.run()
    assert hand.owner.steps[0] == (Work.CONTROL, ["heartbeat"])


def test_a_run_of_proposals_is_handed_over_as_one_batch_in_order() -> None:
    hand = ByHand().serving()
    for number in range(600):
        hand.executor.submit(Work.CLIENT, number)
    hand.run()
    assert [len(items) for _, items in hand.owner.steps] == [256, 256, 88]
    assert [item for _, items in hand.owner.steps for item in items] == list(range(600))


def test_every_class_keeps_its_order() -> None:
    hand = ByHand().serving()
    for number in range(300):
        for kind in Work:
            hand.executor.submit(kind, number)
    hand.run()
    for kind in Work:
        assert [i for k, items in hand.owner.steps if k is kind for i in items] == list(range(300))


def test_client_work_is_bounded_and_says_busy_at_once_while_other_work_is_not() -> None:
    hand = ByHand(client_max=2).serving()
    hand.executor.submit(Work.CLIENT, 1)
    hand.executor.submit(Work.CLIENT, 2)
    with pytest.raises(ClientQueueFull, match=r"fewer than 2 client requests.*found 2"):
        hand.executor.submit(Work.CLIENT, 3)
    for kind in (Work.CONTROL, Work.REPLICATION, Work.MAINTENANCE):
        for number in range(5_000):
            hand.executor.submit(kind, number)
    hand.run()
    assert (Work.CLIENT, [3]) not in hand.owner.steps
    hand.executor.submit(Work.CLIENT, 4)


def test_until_restored_client_work_is_refused_and_control_and_replication_are_served() -> None:
    hand = ByHand()
    for prepare in (lambda: None, hand.executor.start):
        prepare()
        with pytest.raises(RestoreInProgress, match="partition 3 is still reading its log"):
            hand.executor.submit(Work.CLIENT, "early")
    hand.executor.submit(Work.CONTROL, "vote")
    hand.executor.submit(Work.REPLICATION, "append")
    hand.run()
    assert [items for _, items in hand.owner.steps] == [["vote"], ["append"]]
    assert hand.executor.status.phase is Phase.RESTORING
    assert hand.answer is not None
    hand.answer((Bounds(0, 0, 5, 1), HardState(1, 1)))
    hand.run()
    assert hand.owner.restored_with == (Bounds(0, 0, 5, 1), HardState(1, 1))
    hand.executor.submit(Work.CLIENT, "now")
    hand.run()
    assert hand.owner.steps[-1] == (Work.CLIENT, ["now"])


def test_a_failed_restore_stops_the_partition_and_says_why() -> None:
    hand = ByHand()
    settled: list[str] = []
    hand.executor.start()
    hand.executor.when_settled(lambda: settled.append("settled"))
    hand.executor.submit(Work.MAINTENANCE, "waiting")
    assert hand.answer is not None
    hand.answer(OSError("block 7 is damaged"))
    hand.run()
    for kind in Work:
        with pytest.raises(PartitionFailed, match="restore failed: block 7 is damaged"):
            hand.executor.submit(kind, "anything")
    assert (hand.executor.status.phase, settled) == (Phase.FAILED, ["settled"])
    assert [item for item, _ in hand.owner.refused] == ["waiting"], "every waiter is answered"


def test_stop_refuses_new_work_does_what_was_taken_and_then_calls_back() -> None:
    hand, over = ByHand().serving(), []
    hand.executor.submit(Work.CLIENT, "taken")
    hand.executor.stop(lambda: over.append("stopped"))
    for kind in (Work.CONTROL, Work.CLIENT, Work.MAINTENANCE):
        with pytest.raises(Stopped):
            hand.executor.submit(kind, "late")
    assert over == []
    hand.run()
    assert hand.owner.steps == [(Work.CLIENT, ["taken"])]
    assert (over, hand.executor.status.phase) == (["stopped"], Phase.STOPPED)
    with pytest.raises(Stopped):
        hand.executor.submit(Work.REPLICATION, "late")


def test_stop_waits_for_completions_of_accepted_work() -> None:
    hand, over = ByHand().serving(), []
    hand.owner.outstanding = 1
    hand.executor.stop(lambda: over.append("stopped"))
    hand.run()
    assert over == []
    hand.executor.submit(Work.REPLICATION, "written")
    hand.owner.outstanding = 0
    hand.run()
    assert (over, hand.owner.steps) == (["stopped"], [(Work.REPLICATION, ["written"])])


def test_stop_of_a_stopped_or_unstarted_partition_calls_back_too() -> None:
    hand, over = ByHand(), []
    hand.executor.stop(lambda: over.append(1))
    hand.run()
    hand.executor.stop(lambda: over.append(2))
    assert over == [1, 2]


def test_a_restore_that_ends_after_stop_is_ignored() -> None:
    hand = ByHand()
    hand.executor.start()
    hand.executor.stop()
    hand.run()
    assert hand.answer is not None
    hand.answer((Bounds(), HardState()))
    hand.run()
    assert hand.owner.restored_with is None
    assert hand.executor.status.phase is Phase.STOPPED


def test_an_owner_that_raises_ends_the_partition_with_the_reason_and_answers_the_rest() -> None:
    hand = ByHand(batch_max=1).serving()
    hand.owner.fail_on = "bad"
    for item in ("good", "bad", "behind"):
        hand.executor.submit(Work.CLIENT, item)
    hand.run()
    assert hand.owner.steps == [(Work.CLIENT, ["good"])]
    assert hand.executor.status.reason == "a bug in the state machine"
    assert [item for item, _ in hand.owner.refused] == ["bad", "behind"]
    with pytest.raises(PartitionFailed, match="a bug in the state machine"):
        hand.executor.submit(Work.CLIENT, "later")


def test_a_busy_partition_lets_others_run_after_some_turns() -> None:
    hand = ByHand().serving()
    for number in range(100):
        hand.executor.submit(Work.CONTROL, number)
    assert len(hand.runs) == 1
    hand.runs.popleft()()
    assert len(hand.owner.steps) == 32
    assert len(hand.runs) == 1, "it comes again, behind the others"


def test_the_status_is_read_without_the_queue() -> None:
    hand = ByHand().serving()
    hand.executor.submit(Work.CLIENT, "waiting")
    status = hand.executor.status
    assert (status.partition, status.phase, status.state) == (3, Phase.SERVING, 0)
    assert status.queued == {"control": 0, "replication": 0, "client": 1, "maintenance": 0}
    hand.run()
    assert (hand.executor.status.state, hand.executor.status.served) == (1, 1)


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(Rejected, match="at least 1"):
        ExecutorLimits(client_max=0)
