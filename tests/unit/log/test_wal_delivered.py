"""The WAL scheduler with answers given by another thread, which encodes ahead: nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.queues import Backpressure, QueueLimits, Stopped
from penstock.log.shell import WalOptions, WalScheduler
from penstock.log.store import Append, Entry, Operation
from penstock.log.stores.segment import open_segment
from tests.unit.log.gated_store import DEADLINE_S, Answers, GatedStore, entry, hold, wait_until


class StagedGroup(list[Operation]):
    """What was staged, so that a write can tell."""


class StagingStore(GatedStore):
    """Knows which groups were staged by which thread, and which writes got one of those."""

    def __init__(self) -> None:
        super().__init__()
        self.staged_by: list[str] = []
        self.staged: list[bool] = []
        self.stage_fails: Callable[[Sequence[Operation]], bool] = lambda _: False

    def stage(self, group: Sequence[Operation]) -> Sequence[Operation]:
        if self.stage_fails(group):
            raise OSError("cannot be staged")
        self.staged_by.append(threading.current_thread().name)
        return StagedGroup(group)

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        self.staged.append(isinstance(group, StagedGroup))
        return super().write(group, sync=sync)


class Loop:
    """A thread that runs what it is given, in order, as an event loop does."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.put = self._calls.put
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        """Return when everything given so far was run."""
        self.put(None)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def store() -> StagingStore:
    return StagingStore()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def make(store: StagingStore, loop: Loop) -> Iterator[Callable[..., WalScheduler]]:
    made: list[WalScheduler] = []

    def start(**options: object) -> WalScheduler:
        wal = WalScheduler(store, WalOptions(**options), deliver=loop.put)  # type: ignore[arg-type]
        wal.start()
        made.append(wal)
        return wal

    yield start
    store.gate.set()
    for wal in made:
        wal.stop()


MakeWal = Callable[..., WalScheduler]


def writer(
    wal: WalScheduler, partition: int, last: int, over: Callable[[object], None]
) -> Callable[[Exception | None], None]:
    """A completion that writes the partition's next entry, up to a last one."""
    index = 0

    def again(error: Exception | None) -> None:
        nonlocal index
        assert error is None
        index += 1
        if index <= last:
            wal.submit(entry(partition, index), again)
        else:
            over(None)

    return again


def test_writers_that_go_on_from_their_answers_all_come_to_the_end(
    store: StagingStore, make: MakeWal, loop: Loop
) -> None:
    wal, answers = make(limits=QueueLimits(depth_max=1)), Answers()
    for partition in range(64):
        loop.put(lambda p=partition: writer(wal, p, 100, answers.of(p))(None))  # type: ignore[misc]
    assert {error for _, error in answers.wait(64)} == {None}
    assert all(store.bounds(partition).last_index == 100 for partition in range(64))
    assert store.overlaps == 0
    assert "loop" in store.staged_by, "the thread of the answers encoded ahead"
    assert all(store.staged)
    wait_until(lambda: wal.status().depth == 0)
    assert wal.status().served == 6_400


def test_what_is_staged_while_the_worker_waits_is_its_next_group(
    store: StagingStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for partition in range(31):
        wal.submit(entry(partition, 1), answers.of(partition))
    assert len(store.staged_by) == 1, "only what is held"
    wal.submit(entry(31, 1), answers.of(31))
    assert store.staged_by[1:] == [threading.current_thread().name]
    for partition in range(32, 72):
        wal.submit(entry(partition, 1), answers.of(partition))
    assert len(store.staged_by) == 2, "one group is ready: there is no second"
    status = wal.status()
    assert (status.depth, status.queued) == (73, 40)
    store.gate.set()
    answers.wait(73)
    assert [len(call) for call in store.calls] == [1, 32, 40]


def test_a_partition_that_is_being_written_is_not_staged(
    store: StagingStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for index in range(2, 42):
        wal.submit(entry(999, index), answers.of(index))
    assert len(store.staged_by) == 1, "only what is held"
    store.gate.set()
    assert [name for name, _ in answers.wait(41)] == ["held", *range(2, 42)]
    assert store.overlaps == 0


def test_a_line_that_is_too_long_for_a_group_is_served_in_turns(
    store: StagingStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for index in range(1, 4_001):
        wal.submit(entry(1, index), answers.of(("hot", index)))
    wal.submit(entry(2, 1), answers.of("cold"))
    store.gate.set()
    answers.wait(4_002)
    cold = next(n for n, call in enumerate(store.calls) if any(op.partition == 2 for op in call))
    assert cold <= 2, "beyond what was staged, in the next group"


def test_98_ready_partitions_behind_a_staged_group_make_store_calls_of_64_and_34(
    store: StagingStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    for partition in range(130):
        wal.submit(entry(partition, 1), answers.of(partition))
    store.gate.set()
    answers.wait(131)
    assert [len(call) for call in store.calls] == [1, 32, 64, 34]


def test_a_group_that_cannot_be_staged_fails_alone_in_its_write(
    store: StagingStore, make: MakeWal
) -> None:
    wal, answers = make(), Answers()
    hold(store, wal, answers)
    store.stage_fails = lambda group: len(group) == 32

    def broken(group: Sequence[Operation]) -> Mapping[int, Exception]:
        if len(group) == 32:
            raise OSError("cannot be written")
        return {}

    store.fail = broken
    for partition in range(32):
        wal.submit(entry(partition, 1), answers.of(partition))
    store.gate.set()
    assert [type(error) for _, error in answers.wait(33)] == [type(None)] + [OSError] * 32
    wal.submit(entry(0, 1), answers.of("again"))
    assert answers.wait(34)[-1] == ("again", None)


def test_a_write_that_raises_fails_those_too_that_were_left_out_when_it_was_staged(
    make: MakeWal, store: StagingStore
) -> None:
    """An operation that is not in the block must never pass for one that was written."""
    wal, answers = make(), Answers()

    def closed(_: Sequence[Operation]) -> Mapping[int, Exception]:
        raise OSError("the store is closed")

    hold(store, wal, answers)
    store.fail = lambda group: {} if len(group) == 1 else closed(group)
    store.stage = lambda group: StagedGroup(group[1:])  # type: ignore[method-assign]
    for partition in range(3):
        wal.submit(entry(partition, 1), answers.of(partition))
    store.gate.set()
    assert [type(error) for _, error in answers.wait(4)] == [type(None)] + [OSError] * 3


def test_garbage_harms_neither_who_submits_after_it_nor_the_others_of_its_group(
    tmp_path: Path, loop: Loop
) -> None:
    store = open_segment(tmp_path)
    wal, answers = WalScheduler(store, deliver=loop.put), Answers()
    wal.submit(Append(99, (Entry(1, 1, None),)), answers.of("garbage"))  # type: ignore[arg-type]
    for partition in range(40):  # not started: the 32nd of all has the group staged
        wal.submit(entry(partition, 1), answers.of(partition))
    wal.start()
    given = dict(answers.wait(41))
    assert isinstance(given.pop("garbage"), Rejected)
    assert set(given.values()) == {None}
    wal.stop()
    assert all(store.bounds(partition).last_index == 1 for partition in range(40))
    store.close()


def test_writes_of_one_partition_are_answered_in_order(store: StagingStore, make: MakeWal) -> None:
    wal, answers = make(batch_max=3, group_partitions_max=2), Answers()
    for index in range(1, 201):
        for partition in range(6):
            wal.submit(entry(partition, index), answers.of((partition, index)))
    given = answers.wait(1_200)
    for partition in range(6):
        mine = [name[1] for name, _ in given if name[0] == partition]  # type: ignore[index]
        assert mine == list(range(1, 201))
    assert store.overlaps == 0


def test_threads_that_submit_while_stop_is_called_lose_nothing(
    store: StagingStore, make: MakeWal, loop: Loop
) -> None:
    wal, answers = make(), Answers()
    accepted = [0] * 32
    running = threading.Barrier(33)

    def submit(partition: int) -> None:
        running.wait(DEADLINE_S)
        while True:
            try:
                index = accepted[partition] + 1
                wal.submit(entry(partition, index), answers.of((partition, index)))
            except Backpressure:
                continue
            except Stopped:
                return
            accepted[partition] = index

    threads = [threading.Thread(target=submit, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    running.wait(DEADLINE_S)
    answers.wait(500)
    wal.stop()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert [store.bounds(partition).last_index for partition in range(32)] == accepted
    given = answers.wait(sum(accepted))
    for partition in range(32):
        mine = [name[1] for name, _ in given if name[0] == partition]  # type: ignore[index]
        assert mine == list(range(1, accepted[partition] + 1))
    assert wal.status().depth == 0


def test_blocking_writers_and_a_loop_share_the_worker(
    store: StagingStore, make: MakeWal, loop: Loop
) -> None:
    wal, answers = make(), Answers()

    def block(partition: int) -> None:
        for index in range(1, 201):
            wal.write(entry(partition, index))

    threads = [threading.Thread(target=block, args=(100 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for partition in range(40):
        loop.put(lambda p=partition: writer(wal, p, 50, answers.of(p))(None))  # type: ignore[misc]
    answers.wait(40)
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert all(store.bounds(100 + n).last_index == 200 for n in range(4))
    assert store.overlaps == 0


def test_stop_may_be_called_by_the_thread_that_gives_the_answers(
    store: StagingStore, make: MakeWal, loop: Loop
) -> None:
    wal, answers, stopped = make(), Answers(), threading.Event()
    hold(store, wal, answers)
    for partition in range(40):
        wal.submit(entry(partition, 1), answers.of(partition))

    def stop() -> None:
        store.gate.set()
        wal.stop()
        stopped.set()

    loop.put(stop)
    assert stopped.wait(DEADLINE_S)
    assert all(store.bounds(partition).last_index == 1 for partition in range(40))
    assert len(answers.wait(41)) == 41


def test_a_loop_that_is_closed_costs_the_answers_and_nothing_else(
    store: StagingStore, caplog: pytest.LogCaptureFixture
) -> None:
    def closed(_: object) -> None:
        raise RuntimeError("the loop is closed")

    wal = WalScheduler(store, deliver=closed)
    wal.start()
    for index in (1, 2):
        wal.submit(entry(1, index), lambda _: None)
        wait_until(lambda: wal.status().depth == 0)
    wal.stop()
    assert store.bounds(1).last_index == 2
    assert "answers of a group could not be given" in caplog.text


def test_answers_are_delivered_by_one_worker_only(store: StagingStore, loop: Loop) -> None:
    with pytest.raises(Rejected, match="expected one worker"):
        WalScheduler(store, WalOptions(workers=2), deliver=loop.put)
