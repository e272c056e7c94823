"""The read scheduler: same fairness, shared store calls, exact limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel.errors import Rejected
from penstock.kernel.system import SystemClock
from penstock.log.queues import Backpressure, QueueLimits, Stopped
from penstock.log.reads import ReadOptions, ReadRange, ReadScheduler, coalesce, cut
from penstock.log.store import Append, Compact, Compacted, LogEntry, LogStore
from penstock.log.stores.memory import MemoryStore
from penstock.log.wal import Wal
from tests.unit.log.entries import DEADLINE_S, entry


def filled(count: int, partition: int = 1) -> MemoryStore:
    store = MemoryStore()
    entries = [LogEntry(n, 1, b"%04d" % n) for n in range(1, count + 1)]
    store.write([Append(partition, entries)], sync=True)
    return store


class SlowReads(MemoryStore):
    """Holds reads of partition 0 until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Semaphore(0)

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        if partition == 0:
            self.entered.release()
            assert self.gate.wait(DEADLINE_S)
        return super().read(partition, first_index, max_entries=max_entries, max_bytes=max_bytes)


def indexes(answer: object) -> list[int]:
    assert isinstance(answer, list)
    return [e.index for e in answer]


@asynccontextmanager
async def reading(store: LogStore, **options: object) -> AsyncIterator[ReadScheduler]:
    """A scheduler that is not started; it stops at the end."""
    loop = asyncio.get_running_loop()
    reads = ReadScheduler(store, ReadOptions(**options), loop=loop)  # type: ignore[arg-type]
    yield reads
    await asyncio.wait_for(reads.stop(), DEADLINE_S)


class Answers:
    """Collects answers on the loop, and waits for a number of them."""

    def __init__(self) -> None:
        self.given: list[tuple[object, object]] = []
        self._changed = asyncio.Event()

    def of(self, name: object) -> Callable[[object], None]:
        def take(answer: object) -> None:
            self.given.append((name, answer))
            self._changed.set()

        return take

    async def wait(self, count: int) -> list[tuple[object, object]]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.given) < count:
                self._changed.clear()
                await self._changed.wait()
        return list(self.given)


def test_a_read_submitted_before_start_is_parked_and_then_answered() -> None:
    async def test() -> None:
        answers = Answers()
        async with reading(filled(5)) as reads:
            reads.submit(1, ReadRange(2, 2, 999), answers.of("early"))
            await asyncio.sleep(0)
            assert answers.given == []
            reads.start()
            assert indexes((await answers.wait(1))[0][1]) == [2, 3]

    asyncio.run(test())


def test_a_read_submitted_when_a_write_is_answered_sees_that_write() -> None:
    async def test() -> None:
        store, answers = MemoryStore(), Answers()
        wal = Wal(store, loop=asyncio.get_running_loop(), clock=SystemClock())
        wal.start()
        async with reading(store) as reads:
            reads.start()
            for index in range(1, 101):

                def written(error: Exception | None, index: int = index) -> None:
                    assert error is None
                    reads.submit(1, ReadRange(index, 1, 999), answers.of(index))

                wal.submit(entry(1, index), written)
            for name, answer in await answers.wait(100):
                assert indexes(answer) == [name]
            await wal.stop()

    asyncio.run(test())


def test_adjacent_reads_become_one_store_call_and_each_gets_its_own_entries() -> None:
    async def test() -> None:
        answers = Answers()
        async with reading(filled(100)) as reads:
            for number in range(10):
                reads.submit(1, ReadRange(1 + 10 * number, 10, 999), answers.of(number))
            reads.start()
            for number, answer in await answers.wait(10):
                assert indexes(answer) == list(range(1 + 10 * number, 11 + 10 * number))  # type: ignore[operator]
            assert reads.store_calls == 1

    asyncio.run(test())


def test_many_readers_of_the_same_range_share_one_store_call() -> None:
    async def test() -> None:
        answers = Answers()
        async with reading(filled(100)) as reads:
            for number in range(64):
                reads.submit(1, ReadRange(5, 20, 9_999), answers.of(number))
            reads.start()
            for _, answer in await answers.wait(64):
                assert indexes(answer) == list(range(5, 25))
            assert reads.store_calls == 1

    asyncio.run(test())


def test_other_reads_keep_their_place_between_ranges() -> None:
    async def test() -> None:
        answers, seen = Answers(), []
        async with reading(filled(9)) as reads:
            reads.submit(1, ReadRange(1, 2, 999), answers.of("first"))
            reads.submit(1, lambda: seen.append("file") or b"bytes", answers.of("file"))
            reads.submit(1, ReadRange(3, 2, 999), answers.of("last"))
            reads.start()
            given = await answers.wait(3)
            assert [name for name, _ in given] == ["first", "file", "last"]
            assert given[1][1] == b"bytes"
            assert reads.store_calls == 2

    asyncio.run(test())


def test_a_read_that_raises_tells_its_caller_alone() -> None:
    async def test() -> None:
        def broken() -> bytes:
            raise OSError("the file is gone")

        async with reading(filled(3)) as reads:
            reads.start()
            with pytest.raises(OSError, match="the file is gone"):
                await reads.run(1, broken)
            assert indexes(await reads.read(1, ReadRange(1, 3, 99))) == [1, 2, 3]

    asyncio.run(test())


def test_an_error_reaches_only_the_reads_that_deserve_it() -> None:
    async def test() -> None:
        store, answers = filled(20), Answers()
        store.write([Compact(1, 5)], sync=True)
        async with reading(store) as reads:
            reads.submit(1, ReadRange(1, 10, 999), answers.of("gone"))
            reads.submit(1, ReadRange(11, 2, 999), answers.of("there"))
            reads.start()
            outcome = dict(await answers.wait(2))
            assert isinstance(outcome["gone"], Compacted)
            assert indexes(outcome["there"]) == [11, 12]

    asyncio.run(test())


def test_a_full_partition_refuses_reads_and_others_go_on() -> None:
    async def test() -> None:
        store, answers = SlowReads(), Answers()
        store.write([entry(0, 1), entry(1, 1)], sync=True)
        async with reading(store, threads=2, limits=QueueLimits(depth_max=3)) as reads:
            reads.start()
            for number in range(3):
                reads.submit(0, ReadRange(1, 1, 9), answers.of(number))
            with pytest.raises(Backpressure):
                reads.submit(0, ReadRange(1, 1, 9), answers.of("refused"))
            reads.submit(1, ReadRange(1, 1, 9), answers.of("other"))
            assert (await answers.wait(1))[0][0] == "other", "a slow partition delays no other"
            store.gate.set()
            assert len(await answers.wait(4)) == 4
            status = reads.status()
            assert (status.refusals, status.served, status.depth) == (1, 4, 0)

    asyncio.run(test())


def test_stop_answers_every_read_it_took_and_refuses_the_rest() -> None:
    async def test() -> None:
        answers = Answers()
        async with reading(filled(10)) as reads:
            for number in range(1_000):
                reads.submit(1, ReadRange(1 + number % 10, 1, 9), answers.of(number))
            await reads.stop()
            assert [name for name, _ in answers.given] == list(range(1_000))
            with pytest.raises(Stopped):
                reads.submit(1, ReadRange(1, 1, 9), answers.of("late"))

    asyncio.run(test())


def test_a_callback_that_raises_harms_no_other() -> None:
    async def test() -> None:
        answers = Answers()

        def explode(_: object) -> None:
            raise ZeroDivisionError

        async with reading(filled(3)) as reads:
            reads.submit(1, ReadRange(1, 1, 9), explode)
            reads.submit(1, ReadRange(2, 1, 9), answers.of("fine"))
            reads.start()
            assert indexes((await answers.wait(1))[0][1]) == [2]

    asyncio.run(test())


@pytest.mark.parametrize("wanted", [ReadRange(1, 0, 9), ReadRange(1, 1, -1)])
def test_a_read_of_nothing_is_refused(wanted: ReadRange) -> None:
    async def test() -> None:
        async with reading(filled(1)) as reads:
            with pytest.raises(Rejected, match="at least one entry"):
                reads.submit(1, wanted, lambda _: None)

    asyncio.run(test())


RANGES = st.lists(
    st.builds(ReadRange, st.integers(1, 30), st.integers(1, 12), st.integers(0, 40)), max_size=8
)


@given(RANGES, st.integers(0, 25))
def test_sharing_a_call_never_changes_an_answer(ranges: Sequence[ReadRange], count: int) -> None:
    store = filled(count) if count else MemoryStore()

    def read(wanted: ReadRange) -> list[LogEntry]:
        return store.read(
            1, wanted.first_index, max_entries=wanted.max_entries, max_bytes=wanted.max_bytes
        )

    for merged, positions in coalesce(ranges):
        found = read(merged)
        for position in positions:
            taken = cut(found, ranges[position])
            assert taken is None or taken == read(ranges[position])
