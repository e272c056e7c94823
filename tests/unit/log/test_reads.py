"""The read scheduler: same fairness, shared store calls, exact limits."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel.errors import Rejected
from penstock.log.queues import Backpressure, QueueLimits, Stopped
from penstock.log.reads import ReadRange, coalesce, cut
from penstock.log.shell import ReadOptions, ReadScheduler, WalScheduler
from penstock.log.store import Append, Compact, Compacted, Entry
from penstock.log.stores.memory import MemoryStore
from tests.unit.log.gated_store import DEADLINE_S, Answers, entry


def filled(count: int, partition: int = 1) -> MemoryStore:
    store = MemoryStore()
    entries = [Entry(n, 1, b"%04d" % n) for n in range(1, count + 1)]
    store.write([Append(partition, entries)], sync=True)
    return store


class SlowReads(MemoryStore):
    """Holds reads of partition 0 until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        if partition == 0:
            self.entered.release()
            assert self.gate.wait(DEADLINE_S)
        return super().read(partition, first_index, max_entries=max_entries, max_bytes=max_bytes)


def indexes(answer: object) -> list[int]:
    assert isinstance(answer, list)
    return [e.index for e in answer]


def test_a_read_submitted_before_start_is_parked_and_then_answered() -> None:
    reads, answers = ReadScheduler(filled(5)), Answers()
    reads.submit(1, ReadRange(2, 2, 999), answers.of("early"))
    assert answers.given == []
    reads.start()
    assert indexes(answers.wait(1)[0][1]) == [2, 3]
    reads.stop()


def test_a_read_submitted_when_a_write_is_answered_sees_that_write() -> None:
    store, answers = MemoryStore(), Answers()
    wal, reads = WalScheduler(store), ReadScheduler(store)
    wal.start()
    reads.start()
    for index in range(1, 101):

        def written(error: Exception | None, index: int = index) -> None:
            assert error is None
            reads.submit(1, ReadRange(index, 1, 999), answers.of(index))

        wal.submit(entry(1, index), written)
    for name, answer in answers.wait(100):
        assert indexes(answer) == [name]
    wal.stop()
    reads.stop()


def test_adjacent_reads_become_one_store_call_and_each_gets_its_own_entries() -> None:
    reads, answers = ReadScheduler(filled(100)), Answers()
    for number in range(10):
        reads.submit(1, ReadRange(1 + 10 * number, 10, 999), answers.of(number))
    reads.start()
    for number, answer in answers.wait(10):
        assert indexes(answer) == list(range(1 + 10 * number, 11 + 10 * number))  # type: ignore[operator]
    assert reads.store_calls == 1
    reads.stop()


def test_many_readers_of_the_same_range_share_one_store_call() -> None:
    reads, answers = ReadScheduler(filled(100)), Answers()
    for number in range(64):
        reads.submit(1, ReadRange(5, 20, 9_999), answers.of(number))
    reads.start()
    assert all(indexes(answer) == list(range(5, 25)) for _, answer in answers.wait(64))
    assert reads.store_calls == 1
    reads.stop()


def test_an_error_reaches_only_the_reads_that_deserve_it() -> None:
    store, answers = filled(20), Answers()
    store.write([Compact(1, 5)], sync=True)
    reads = ReadScheduler(store)
    reads.submit(1, ReadRange(1, 10, 999), answers.of("gone"))
    reads.submit(1, ReadRange(11, 2, 999), answers.of("there"))
    reads.start()
    outcome = dict(answers.wait(2))
    assert isinstance(outcome["gone"], Compacted)
    assert indexes(outcome["there"]) == [11, 12]
    reads.stop()


def test_a_full_partition_refuses_reads_and_others_go_on() -> None:
    store, answers = SlowReads(), Answers()
    store.write([entry(0, 1), entry(1, 1)], sync=True)
    reads = ReadScheduler(store, ReadOptions(workers=2, limits=QueueLimits(depth_max=3)))
    reads.start()
    for number in range(3):
        reads.submit(0, ReadRange(1, 1, 9), answers.of(number))
    assert store.entered.acquire(timeout=DEADLINE_S)
    with pytest.raises(Backpressure):
        reads.submit(0, ReadRange(1, 1, 9), answers.of("refused"))
    reads.submit(1, ReadRange(1, 1, 9), answers.of("other"))
    assert answers.wait(1)[0][0] == "other", "a slow partition delays nobody else"
    store.gate.set()
    assert len(answers.wait(4)) == 4
    reads.stop()


def test_stop_answers_every_read_it_took_and_refuses_the_rest() -> None:
    reads, answers = ReadScheduler(filled(10)), Answers()
    for number in range(1_000):
        reads.submit(1, ReadRange(1 + number % 10, 1, 9), answers.of(number))
    reads.stop()
    assert [name for name, _ in answers.given] == list(range(1_000))
    with pytest.raises(Stopped):
        reads.submit(1, ReadRange(1, 1, 9), answers.of("late"))


def test_a_callback_that_raises_harms_no_other() -> None:
    reads, answers = ReadScheduler(filled(3)), Answers()

    def explode(_: object) -> None:
        raise ZeroDivisionError

    reads.submit(1, ReadRange(1, 1, 9), explode)
    reads.submit(1, ReadRange(2, 1, 9), answers.of("fine"))
    reads.start()
    assert indexes(answers.wait(1)[0][1]) == [2]
    reads.stop()


@pytest.mark.parametrize("wanted", [ReadRange(1, 0, 9), ReadRange(1, 1, -1)])
def test_a_read_of_nothing_is_refused(wanted: ReadRange) -> None:
    with pytest.raises(Rejected, match="at least one entry"):
        ReadScheduler(filled(1)).submit(1, wanted, lambda _: None)


RANGES = st.lists(
    st.builds(ReadRange, st.integers(1, 30), st.integers(1, 12), st.integers(0, 40)), max_size=8
)


@given(RANGES, st.integers(0, 25))
def test_sharing_a_call_never_changes_an_answer(ranges: Sequence[ReadRange], count: int) -> None:
    store = filled(count) if count else MemoryStore()

    def read(wanted: ReadRange) -> list[Entry]:
        return store.read(
            1, wanted.first_index, max_entries=wanted.max_entries, max_bytes=wanted.max_bytes
        )

    for merged, positions in coalesce(ranges):
        found = read(merged)
        for position in positions:
            taken = cut(found, ranges[position])
            assert taken is None or taken == read(ranges[position])
