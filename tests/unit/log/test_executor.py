"""The partition executor: classes of work, slices, restore before serve, failing alone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import pytest

from penstock.kernel.errors import Corrupt
from penstock.log.executor import (
    SLICE_NS,
    ClientQueueFull,
    PartitionExecutor,
    Phase,
    RestoreInProgress,
    WorkKind,
    WorkQueues,
)
from penstock.log.queues import Stopped
from penstock.protocol.errors import PartitionFailed


class ByHand:
    """An executor on a loop and a clock that the test moves."""

    def __init__(self, client_max: int = 2_048) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.now_ns = 0
        self.ran: list[object] = []
        self.dropped: list[tuple[object, Exception]] = []
        self.executor = PartitionExecutor(
            3, call_soon=self.soon.append, now_ns=lambda: self.now_ns, client_max=client_max
        )

    def serving(self) -> ByHand:
        self.executor.start()
        self.executor.restored()
        return self

    def submit(self, kind: WorkKind, name: object, took_ns: int = 0) -> None:
        def run() -> None:
            self.ran.append(name)
            self.now_ns += took_ns

        dropped = partial(lambda name, error: self.dropped.append((name, error)), name)
        self.executor.submit(kind, run, dropped)

    def occupied(self) -> ByHand:
        """Use up the slice, so that what comes now waits."""
        self.submit(WorkKind.CLIENT, "occupied", SLICE_NS)
        self.ran.clear()
        return self

    def turn(self) -> None:
        """One turn of the loop."""
        for call in [self.soon.popleft() for _ in range(len(self.soon))]:
            call()

    def run(self) -> None:
        while self.soon:
            self.turn()


def test_with_all_classes_waiting_the_turns_are_8_4_2_1() -> None:
    queues, turns = WorkQueues(), []
    for _ in range(100):
        for kind in WorkKind:
            queues.put(kind, (partial(turns.append, kind), None))
    for _ in range(5):
        turns.clear()
        for _ in range(15):
            queues.take()[0]()
        assert [Counter(turns)[kind] for kind in reversed(WorkKind)] == [8, 4, 2, 1]


def test_what_comes_while_it_is_idle_runs_at_once() -> None:
    hand = ByHand().serving()
    for kind in WorkKind:
        hand.submit(kind, kind)
    assert (hand.ran, list(hand.soon)) == ([*WorkKind], [])


def test_what_comes_while_work_runs_waits_for_its_end_and_not_for_the_loop() -> None:
    hand = ByHand().serving()

    def outer() -> None:
        hand.submit(WorkKind.CLIENT, "inner")
        hand.ran.append("outer")

    hand.executor.submit(WorkKind.CLIENT, outer)
    assert (hand.ran, list(hand.soon)) == (["outer", "inner"], [])


def test_a_used_up_slice_lets_the_loop_have_its_turn_and_idle_time_gives_it_back() -> None:
    hand = ByHand().serving()
    for number in range(4):
        hand.submit(WorkKind.CLIENT, number, SLICE_NS // 2)
    assert (hand.ran, len(hand.soon)) == ([0, 1], 1)
    hand.turn()
    assert hand.ran == [0, 1, 2, 3]
    hand.now_ns += 1
    hand.submit(WorkKind.CLIENT, "a nanosecond of rest is a nanosecond of work")
    assert len(hand.ran) == 5
    hand.submit(WorkKind.CLIENT, "long", SLICE_NS)
    hand.submit(WorkKind.CLIENT, "waits")
    assert hand.ran[-1] == "long"
    hand.run()
    hand.now_ns += SLICE_NS
    hand.submit(WorkKind.CLIENT, "at once")
    assert hand.ran[-2:] == ["waits", "at once"]


def test_what_waits_is_served_a_slice_in_each_turn_of_the_loop() -> None:
    hand = ByHand().serving().occupied()
    for number in range(100):
        hand.submit(WorkKind.CONTROL, number, SLICE_NS // 10)
    assert len(hand.soon) == 1
    hand.turn()
    assert (len(hand.ran), len(hand.soon)) == (10, 1), "it comes again, behind the others"
    hand.run()
    assert hand.ran == list(range(100))


def test_heartbeats_are_not_starved_by_a_full_client_queue() -> None:
    hand = ByHand().serving().occupied()
    for number in range(2_048):
        hand.submit(WorkKind.CLIENT, number)
    hand.submit(WorkKind.CONTROL, "heartbeat")
    hand.run()
    assert "heartbeat" in hand.ran[:3]


def test_every_class_keeps_its_order() -> None:
    hand = ByHand().serving().occupied()
    for number in range(300):
        for kind in WorkKind:
            hand.submit(kind, (kind, number))
    hand.run()
    for kind in WorkKind:
        mine = [number for found, number in hand.ran if found is kind]  # type: ignore[misc]
        assert mine == list(range(300))


def test_client_work_is_bounded_and_says_busy_at_once_while_other_work_is_not() -> None:
    hand = ByHand(client_max=2).serving().occupied()
    hand.submit(WorkKind.CLIENT, 1)
    hand.submit(WorkKind.CLIENT, 2)
    with pytest.raises(ClientQueueFull, match="partition 3 has 2 client requests queued, of 2"):
        hand.submit(WorkKind.CLIENT, 3)
    for kind in (WorkKind.CONTROL, WorkKind.REPLICATION, WorkKind.MAINTENANCE):
        for number in range(5_000):
            hand.submit(kind, number)
    hand.run()
    assert len(hand.ran) == 15_002
    hand.submit(WorkKind.CLIENT, 4)


def test_until_restored_client_work_is_refused_and_everything_else_is_served() -> None:
    hand = ByHand()
    for prepare in (lambda: None, hand.executor.start):
        prepare()
        with pytest.raises(RestoreInProgress, match="partition 3 is still reading its log"):
            hand.submit(WorkKind.CLIENT, "early")
    hand.submit(WorkKind.CONTROL, "vote")
    hand.submit(WorkKind.REPLICATION, "append")
    hand.submit(WorkKind.MAINTENANCE, "restore")
    hand.run()
    assert hand.ran == ["vote", "append", "restore"]
    assert hand.executor.status.phase is Phase.RESTORING
    hand.executor.restored()
    hand.submit(WorkKind.CLIENT, "now")
    assert hand.ran[-1] == "now"


def test_a_failed_restore_stops_the_partition_and_says_why_and_where() -> None:
    hand = ByHand()
    told: list[Exception] = []
    hand.executor.on_failed = told.append
    hand.executor.start()
    hand.submit(WorkKind.MAINTENANCE, "waiting")
    error = Corrupt("7.segment at offset 64: a checksum is wrong", file="7.segment", offset=64)
    hand.executor.fail(error)
    hand.executor.restored()
    for kind in WorkKind:
        with pytest.raises(
            PartitionFailed, match=r"partition 3 .* 7.segment at offset 64"
        ) as found:
            hand.submit(kind, "anything")
        assert found.value.detail == {"partition": 3, "file": "7.segment", "offset": 64}
    status = hand.executor.status
    assert (status.phase, status.file, status.offset) == (Phase.FAILED, "7.segment", 64)
    assert told == [error]
    hand.run()
    assert hand.ran == []
    assert [name for name, _ in hand.dropped] == ["waiting"], "every waiter is answered"


def test_work_that_raises_fails_the_partition_and_answers_the_rest() -> None:
    hand = ByHand().serving().occupied()

    def bad() -> None:
        raise ZeroDivisionError("a bug in the state machine")

    hand.submit(WorkKind.CLIENT, "good")
    hand.executor.submit(WorkKind.CLIENT, bad)
    hand.submit(WorkKind.CLIENT, "behind")
    hand.run()
    assert hand.ran == ["good"]
    assert hand.executor.status.reason == "a bug in the state machine"
    assert [(name, type(error)) for name, error in hand.dropped] == [("behind", PartitionFailed)]
    with pytest.raises(PartitionFailed, match="a bug in the state machine"):
        hand.submit(WorkKind.CLIENT, "later")


def test_stop_refuses_new_work_and_still_takes_completions() -> None:
    hand = ByHand().serving().occupied()
    hand.submit(WorkKind.CLIENT, "taken")
    hand.executor.stop()
    for kind in (WorkKind.CONTROL, WorkKind.CLIENT, WorkKind.MAINTENANCE):
        with pytest.raises(Stopped):
            hand.submit(kind, "late")
    hand.run()
    hand.now_ns += SLICE_NS
    hand.submit(WorkKind.REPLICATION, "written")
    assert hand.ran == ["taken", "written"]
    hand.executor.stopped()
    assert hand.executor.status.phase is Phase.STOPPED
    with pytest.raises(Stopped):
        hand.submit(WorkKind.REPLICATION, "late")


def test_a_restore_that_ends_after_stop_is_ignored() -> None:
    hand = ByHand()
    hand.executor.start()
    hand.executor.stop()
    hand.executor.restored()
    assert hand.executor.status.phase is Phase.STOPPING


def test_the_status_is_read_without_the_queue() -> None:
    hand = ByHand().serving().occupied()
    hand.submit(WorkKind.CLIENT, "waiting")
    status = hand.executor.status
    assert (status.partition, status.phase, status.served) == (3, Phase.SERVING, 1)
    assert status.queued == {"control": 0, "replication": 0, "client": 1, "maintenance": 0}
    hand.run()
    assert hand.executor.status.served == 2
