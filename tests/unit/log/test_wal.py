"""The WAL scheduler: every way in which writes have been lost elsewhere, each a test."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from penstock.kernel.errors import PenstockError
from penstock.log.queues import Backpressure, QueueLimits, Stopped
from penstock.log.shell import WalOptions, WalScheduler
from penstock.log.store import Append, Entry, Operation, SetHardState
from penstock.testing import ManualClock
from tests.unit.log.gated_store import DEADLINE_S, Answers, GatedStore, entry, hold, wait_until

MakeWal = Callable[..., WalScheduler]


@pytest.fixture
def store() -> GatedStore:
    return GatedStore()


@pytest.fixture
def make(store: GatedStore) -> Iterator[MakeWal]:
    made: list[WalScheduler] = []

    def start(**options: object) -> WalScheduler:
        wal = WalScheduler(store, WalOptions(**options))  # type: ignore[arg-type]
        wal.start()
        made.append(wal)
        return wal

    yield start
    store.gate.set()
    for wal in made:
        wal.stop()


def payloads(store: GatedStore, partition: int) -> list[bytes]:
    found = store.read(partition, 1, max_entries=1 << 20, max_bytes=1 << 30)
    return [e.payload for e in found]


def test_200_partitions_with_2_writes_one_worker_and_batches_of_1_all_complete(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(workers=1, batch_max=1, group_partitions_max=1), Answers()
    for index in (1, 2):
        for partition in range(200):
            wal.submit(entry(partition, index), answers.of((partition, index)))
    assert {error for _, error in answers.wait(400)} == {None}
    assert all(store.bounds(partition).last_index == 2 for partition in range(200))


def test_stop_completes_4096_writes_queued_in_one_partition(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for index in range(1, 4_097):
        wal.submit(entry(1, index), answers.of(index))
    with pytest.raises(Backpressure) as caught:
        wal.submit(entry(1, 4_097), answers.of("refused"))
    assert caught.value.depth == 4_096
    store.gate.set()
    wal.stop()
    assert [name for name, _ in answers.given[1:]] == list(range(1, 4_097)), "all, in order"
    assert store.bounds(1).last_index == 4_096


def test_32_threads_submitting_while_stop_is_called_lose_nothing(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(workers=2), Answers()
    accepted: list[list[int]] = [[] for _ in range(32)]
    refused: list[int] = [0] * 32
    running = threading.Barrier(33)

    def submit(partition: int) -> None:
        running.wait(DEADLINE_S)
        index = 1
        while True:
            try:
                wal.submit(entry(partition, index), answers.of((partition, index)))
            except Backpressure:
                continue
            except Stopped:
                refused[partition] += 1
                return
            accepted[partition].append(index)
            index += 1

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    running.wait(DEADLINE_S)
    answers.wait(500)
    wal.stop()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert refused == [1] * 32
    total = sum(map(len, accepted))
    assert len(answers.given) == total, "every accepted write was answered before stop returned"
    assert {error for _, error in answers.given} == {None}
    for partition in range(32):
        assert store.bounds(partition).last_index == len(accepted[partition])
        answered = [name[1] for name, _ in answers.given if name[0] == partition]  # type: ignore[index]
        assert answered == accepted[partition]


def test_nothing_is_taken_after_stop(store: GatedStore, make: MakeWal) -> None:
    wal = make()
    wal.stop()
    wal.stop()
    for finishing in (False, True):
        with pytest.raises(Stopped):
            wal.submit(entry(1, 1), lambda _: None, finishing=finishing)
    assert store.calls == []


def test_writes_submitted_before_start_are_parked_and_then_written(store: GatedStore) -> None:
    wal, answers = WalScheduler(store), Answers()
    wal.submit(entry(1, 1), answers.of("early"))
    assert store.calls == []
    wal.start()
    assert answers.wait(1) == [("early", None)]
    wal.stop()


def test_a_scheduler_stopped_before_it_was_started_still_writes_what_it_took(
    store: GatedStore,
) -> None:
    wal, answers = WalScheduler(store), Answers()
    wal.submit(entry(1, 1), answers.of("early"))
    wal.stop()
    assert answers.given == [("early", None)]


def test_a_completion_that_raises_harms_no_other(
    store: GatedStore, make: MakeWal, caplog: pytest.LogCaptureFixture
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)

    def explode(_: Exception | None) -> None:
        raise ZeroDivisionError("in a callback")

    for index in range(1, 10):
        wal.submit(entry(1, index), explode if index == 5 else answers.of(index))
    with caplog.at_level(logging.ERROR, "penstock.log"):
        store.gate.set()
        names = [name for name, _ in answers.wait(9)]
    assert names == ["held", 1, 2, 3, 4, 6, 7, 8, 9]
    assert "completion callback raised" in caplog.text
    wal.submit(entry(1, 10), answers.of("later"))
    assert answers.wait(10)[-1] == ("later", None)


def test_a_store_error_fails_exactly_its_group_and_the_next_succeeds(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for partition in range(5):
        wal.submit(entry(partition, 1), answers.of(partition))

    def broken(group: Sequence[Operation]) -> dict[int, Exception]:
        if len(group) == 5:
            raise OSError("the controller is on fire")
        return {}

    store.fail = broken
    store.gate.set()
    outcome = [type(error) for _, error in answers.wait(6)]
    assert outcome == [type(None)] + [OSError] * 5
    wal.submit(entry(0, 1), answers.of("again"))
    assert answers.wait(7)[-1] == ("again", None)
    assert [len(call) for call in store.calls] == [1, 5, 1]


def test_good_shards_of_a_group_succeed_when_one_fails(store: GatedStore, make: MakeWal) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for partition in (1, 2, 3):
        wal.submit(entry(partition, 1), answers.of(partition))
    store.fail = lambda group: {2: OSError("shard 2")} if len(group) > 1 else {}
    store.gate.set()
    outcome = {name: type(error) for name, error in answers.wait(4)}
    assert outcome == {"held": type(None), 1: type(None), 2: OSError, 3: type(None)}


def test_a_refused_write_never_appears_in_the_log_and_harms_no_other(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(limits=QueueLimits(depth_max=3)), Answers()
    hold(store, wal, answers)
    refused = 0
    for number in range(6):
        try:
            wal.submit(entry(1, min(number, 3) + 1, b"%d" % number), answers.of(number))
        except Backpressure:
            refused += 1
    assert refused == 3
    store.gate.set()
    assert [name for name, _ in answers.wait(4)] == ["held", 0, 1, 2]
    wal.stop()
    assert payloads(store, 1) == [b"0", b"1", b"2"]
    assert len(answers.given) == 4


def test_a_commit_marker_is_not_refused_by_the_limit_for_new_proposals(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(limits=QueueLimits(depth_max=1, total_max=2)), Answers()
    hold(store, wal, answers)
    wal.submit(entry(1, 1), answers.of("proposal"))
    with pytest.raises(Backpressure):
        wal.submit(entry(1, 2), answers.of("more"))
    wal.submit(SetHardState(1, 1, 1), answers.of("marker"), finishing=True)
    store.gate.set()
    assert [name for name, _ in answers.wait(3)] == ["held", "proposal", "marker"]


def test_two_workers_never_write_one_partition_at_the_same_time(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(workers=4, group_partitions_max=2, batch_max=3), Answers()
    for index in range(1, 101):
        for partition in range(6):
            wal.submit(entry(partition, index), answers.of((partition, index)))
    given = answers.wait(600)
    assert store.overlaps == 0
    assert {error for _, error in given} == {None}
    for partition in range(6):
        mine = [name[1] for name, _ in given if name[0] == partition]  # type: ignore[index]
        assert mine == list(range(1, 101)), "answered in order too"


def test_a_hot_partition_does_not_delay_anothers_write_beyond_the_next_group(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for index in range(1, 4_001):
        wal.submit(entry(1, index), answers.of(("hot", index)))
    wal.submit(entry(2, 1), answers.of("cold"))
    store.gate.set()
    answers.wait(4_002)
    assert [operation.partition for operation in store.calls[1]].count(2) == 1
    assert len(store.calls[1]) == 257


def test_130_ready_partitions_make_store_calls_of_64_64_and_2(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for partition in range(130):
        wal.submit(entry(partition, 1), answers.of(partition))
    store.gate.set()
    answers.wait(131)
    assert [len(call) for call in store.calls] == [1, 64, 64, 2]


def test_one_sync_covers_a_group_and_is_left_out_if_nobody_asked(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    wal.submit(entry(1, 1), answers.of(1), sync=False)
    wal.submit(entry(2, 1), answers.of(2), sync=True)
    store.gate.set()
    answers.wait(3)
    wal.submit(entry(1, 2), answers.of(3), sync=False)
    answers.wait(4)
    assert store.syncs == [True, True, False]


def test_a_group_of_many_bytes_is_cut_into_store_calls_that_keep_order(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(group_bytes_max=1_000), Answers()
    hold(store, wal, answers)
    for index in range(1, 9):
        wal.submit(entry(1, index, b"x" * 400), answers.of(index))
    wal.submit(Append(2, (Entry(1, 1, b"y" * 5_000),)), answers.of("large"))
    store.gate.set()
    given = answers.wait(10)
    sizes = [sum(len(e.payload) for op in call for e in op.entries) for call in store.calls[1:]]  # type: ignore[union-attr]
    assert sizes == [800, 800, 800, 800, 5_000]
    assert [name for name, _ in given] == ["held", *range(1, 9), "large"]


def test_a_write_submitted_from_a_completion_is_taken(store: GatedStore, make: MakeWal) -> None:
    wal, answers = make(limits=QueueLimits(depth_max=1)), Answers()

    def again(index: int) -> Callable[[Exception | None], None]:
        def written(error: Exception | None) -> None:
            assert error is None
            if index < 50:
                wal.submit(entry(1, index + 1), again(index + 1))
            else:
                answers.of("end")(None)

        return written

    wal.submit(entry(1, 1), again(1))
    answers.wait(1)
    assert store.bounds(1).last_index == 50


def test_a_blocking_write_returns_when_durable_or_raises_what_went_wrong(
    store: GatedStore, make: MakeWal
) -> None:
    wal = make()
    wal.write(entry(1, 1))
    assert (store.bounds(1).last_index, store.syncs) == (1, [True])
    with pytest.raises(PenstockError):
        wal.write(entry(1, 7))
    wal.stop()
    with pytest.raises(Stopped):
        wal.write(entry(1, 2))


def start_writing(wal: WalScheduler, partitions: Sequence[int]) -> list[threading.Thread]:
    """Threads that each write one entry and wait for it."""
    threads = [
        threading.Thread(target=wal.write, args=(entry(partition, 1),)) for partition in partitions
    ]
    for thread in threads:
        thread.start()
    return threads


def test_blocking_writers_that_come_during_a_sync_share_the_next(
    store: GatedStore, make: MakeWal
) -> None:
    wal = make()
    store.gate.clear()
    threads = start_writing(wal, [0])
    assert store.entered.acquire(timeout=DEADLINE_S)
    threads += start_writing(wal, range(1, 33))
    wait_until(lambda: wal.status().depth == 33)
    store.gate.set()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert len(store.calls) <= 3, "the first, what the worker found then, and all the others"
    assert all(store.bounds(partition).last_index == 1 for partition in range(33))


def test_stop_waits_for_a_blocking_write_that_is_under_way(
    store: GatedStore, make: MakeWal
) -> None:
    wal = make()
    store.gate.clear()
    [writer] = start_writing(wal, [1])
    assert store.entered.acquire(timeout=DEADLINE_S)
    found: list[int] = []

    def stop() -> None:
        wal.stop()
        found.append(store.bounds(1).last_index)

    stopping = threading.Thread(target=stop)
    stopping.start()
    wait_until(lambda: not any(t.name.startswith("wal-") for t in threading.enumerate()))
    store.gate.set()
    stopping.join(DEADLINE_S)
    writer.join(DEADLINE_S)
    assert found == [1]


def test_blocking_and_submitted_writes_of_many_threads_all_complete_in_order(
    store: GatedStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()

    def work(partition: int) -> None:
        for index in range(1, 201):
            if index % 3:
                wal.write(entry(partition, index))
            else:
                wal.submit(entry(partition, index), answers.of((partition, index)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    answers.wait(8 * 66)
    assert all(store.bounds(partition).last_index == 200 for partition in range(8))
    assert store.overlaps == 0


def test_a_lone_write_is_written_at_once_however_wide_the_window(store: GatedStore) -> None:
    clock, answers = ManualClock(), Answers()
    wal = WalScheduler(store, clock=clock)
    wal.start()
    wal.set_commit_window(3_600_000.0)
    for index in range(1, 6):  # time stands still: a window would never end
        wal.submit(entry(1, index), answers.of(index))
        answers.wait(index)
    wal.stop()
    assert [len(call) for call in store.calls] == [1] * 5


def test_a_wide_window_collects_what_is_queued_into_one_group_and_stop_ends_it(
    store: GatedStore,
) -> None:
    clock, answers = ManualClock(), Answers()
    wal = WalScheduler(store, clock=clock)
    wal.start()
    hold(store, wal, answers)
    wal.set_commit_window(3_600_000.0)
    for partition in range(10):
        wal.submit(entry(partition, 1), answers.of(partition))
    store.gate.set()
    answers.wait(1)
    for partition in range(10):
        wal.submit(entry(partition, 2), answers.of(partition))
    assert len(store.calls) == 1, "the window has not ended"
    wal.stop()
    assert [len(call) for call in store.calls] == [1, 20]
    assert len(answers.given) == 21


def test_the_status_tells_what_waits(store: GatedStore, make: MakeWal) -> None:
    wal, answers = make(limits=QueueLimits(depth_max=2)), Answers()
    hold(store, wal, answers)
    wal.submit(entry(1, 1), answers.of(1))
    wal.submit(entry(1, 2), answers.of(2))
    with pytest.raises(Backpressure):
        wal.submit(entry(1, 3), answers.of(3))
    status = wal.status()
    assert (status.running, status.queued, status.depth, status.refusals) == (True, 2, 3, 1)
    assert wal.depth_of(1) == 2
    store.gate.set()
    answers.wait(3)


def test_sizes_below_one_are_refused() -> None:
    for field in ("workers", "group_partitions_max", "batch_max", "group_bytes_max"):
        with pytest.raises(PenstockError, match="at least 1"):
            WalOptions(**{field: 0})
