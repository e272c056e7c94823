"""The WAL: every way in which writes have been lost elsewhere, each a test."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from penstock.kernel.errors import PenstockError, Rejected
from penstock.kernel.system import SystemClock
from penstock.log.queues import Backpressure, QueueLimits, Stopped
from penstock.log.store import Append, LogEntry, LogStore, Operation, Sync
from penstock.log.stores import open_store
from penstock.log.stores.memory import MemoryStore
from penstock.log.stores.segment import open_segment
from penstock.log.wal import IN_FLIGHT_MAX, Wal, WalOptions
from penstock.log.write_path import (
    AVOID_NS_MIN,
    MS,
    PAIRS,
    PAIRS_MIN,
    SETTLE_NS,
    PathChooser,
)
from penstock.testing.clock import ManualClock
from tests.unit.log.entries import DEADLINE_S, entry


class Flown:
    """A write of a `FlyingStore`; it lands when the test says so, or at once."""

    def __init__(self, store: FlyingStore, group: Sequence[Operation]) -> None:
        self.store = store
        self.group = group
        self.landed = False
        self.done_fd = store.done_fd

    def land(self) -> None:
        self.landed = True
        os.eventfd_write(self.done_fd, 1)

    def is_done(self) -> bool:
        return self.landed

    def finish(self) -> Mapping[int, Exception]:
        assert self.store.air[0] is self, "finished in the order they began"
        self.store.air.pop(0)
        failed = self.store.fail(self.group)
        good = [op for op in self.group if op.partition not in failed]
        return {**failed, **MemoryStore.write(self.store, good, sync=True)}


class FlyingStore(MemoryStore):
    """Writes in memory as a disk does that writes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.done_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.air: list[Flown] = []
        self.at_once = True
        self.begins: Callable[[Sequence[Operation]], bool] = lambda _: True
        self.fail: Callable[[Sequence[Operation]], Mapping[int, Exception]] = lambda _: {}
        self.groups: list[list[int]] = []
        self.calls: list[tuple[str, int]] = []
        self.most = 0

    def begin(self, group: Sequence[Operation], *, sync: bool) -> Flown | None:  # type: ignore[override]
        if not sync or not self.begins(group):
            return None
        flying = {op.partition for each in self.air for op in each.group}
        assert flying.isdisjoint({op.partition for op in group}), "a partition is in two groups"
        self.groups.append([op.partition for op in group])
        flown = Flown(self, group)
        self.air.append(flown)
        self.most = max(self.most, len(self.air))
        if self.at_once:
            flown.land()
        return flown

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        assert not self.air, "a call while a write is in the air"
        self.groups.append([op.partition for op in group])
        self.calls.append((threading.current_thread().name, len(group)))
        failed = self.fail(group)
        good = [op for op in group if op.partition not in failed]
        return {**failed, **super().write(good, sync=sync)}


class Answers:
    """Collects completions on the loop, and waits for a number of them."""

    def __init__(self) -> None:
        self.given: list[tuple[object, Exception | None]] = []
        self._changed = asyncio.Event()

    def of(self, name: object) -> Callable[[Exception | None], None]:
        def take(error: Exception | None) -> None:
            self.given.append((name, error))
            self._changed.set()

        return take

    async def wait(self, count: int) -> list[tuple[object, Exception | None]]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.given) < count:
                self._changed.clear()
                await self._changed.wait()
        return list(self.given)


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def run(request: pytest.FixtureRequest) -> Callable[..., None]:
    def run(test: Callable[[], object]) -> None:
        if request.param == "asyncio":
            asyncio.run(test())  # type: ignore[arg-type]
        else:
            uvloop.run(test())  # type: ignore[arg-type]

    return run


Run = Callable[[Callable[[], object]], None]


def wal_on(store: LogStore) -> Wal:
    return Wal(store, loop=asyncio.get_running_loop(), clock=SystemClock())


@asynccontextmanager
async def started(
    store: FlyingStore, clock: ManualClock | None = None, **options: object
) -> AsyncIterator[Wal]:
    loop = asyncio.get_running_loop()
    limits = WalOptions(**options)  # type: ignore[arg-type]
    wal = Wal(store, limits, loop=loop, clock=clock or SystemClock(), chooser=PathChooser(0))
    wal.start()
    yield wal
    store.at_once = True
    for flown in store.air:
        flown.land()
    await asyncio.wait_for(wal.stop(), DEADLINE_S)
    os.close(store.done_fd)


def writer(
    wal: Wal, partition: int, last: int, over: Callable[[Exception | None], None]
) -> Callable[[Exception | None], None]:
    """A completion that writes the partition's next entry, up to a last one."""
    index = 0

    def again(error: Exception | None) -> None:
        nonlocal index
        index += 1
        if error is not None or index > last:
            over(error)
        else:
            wal.submit(entry(partition, index), again)

    return again


async def turns(count: int = 5) -> None:
    """Let the loop do what it has to do."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["segment", "segment of old", "memory", "sqlite", "rocksdb"])
def test_writers_that_go_on_from_their_answers_all_come_to_the_end(
    kind: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "segment of old":  # on a machine without asynchronous IO
        kind = "segment"
        monkeypatch.setattr("platform.machine", lambda: "pdp11")

    async def test() -> None:
        store = open_store(kind, tmp_path)
        wal, answers = wal_on(store), Answers()
        wal.start()
        for partition in range(64):
            writer(wal, partition, 50, answers.of(partition))(None)
        assert {error for _, error in await answers.wait(64)} == {None}
        await wal.stop()
        assert all(store.bounds(partition).last_index == 50 for partition in range(64))
        status = wal.status()
        assert (status.served, status.depth, status.queued) == (3_200, 0, 0)
        store.close()

    run(test)


def test_a_write_that_is_answered_is_there_after_a_kill(tmp_path: Path, run: Run) -> None:
    """Two are in the air most of the time, so blocks begin at pages; see the sim for more."""

    async def test() -> None:
        store = open_segment(tmp_path, segment_bytes=1 << 20)
        wal, answers = wal_on(store), Answers()
        wal.start()
        for partition in range(96):
            writer(wal, partition, 40, answers.of(partition))(None)
        await answers.wait(96)
        await wal.stop()
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in tmp_path.glob("*.segment"):
            (copy / path.name).write_bytes(path.read_bytes())
        found = open_segment(copy)
        assert all(found.bounds(partition).last_index == 40 for partition in range(96))
        found.close()
        store.close()

    run(test)


def test_as_many_are_in_the_air_as_may_and_the_next_is_ready(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store, ManualClock()) as wal:
            for index in range(2 * PAIRS):  # the trial of both paths is over
                wal.submit(entry(998, index + 1), answers.of(index))
                await answers.wait(index + 1)
            answers, store.groups, store.at_once = Answers(), [], False
            wal.submit(entry(999, 1), answers.of("first"))
            await turns()
            for partition in range(100):
                wal.submit(entry(partition, 1), answers.of(partition))
            assert [len(group) for group in store.groups] == [1, 32]
            assert store.most == IN_FLIGHT_MAX
            status = wal.status()
            assert (status.depth, status.queued) == (101, 36), "32 more are ready"
            store.air[0].land()
            assert [name for name, _ in await answers.wait(1)] == ["first"]
            assert [len(group) for group in store.groups] == [1, 32, 32]
            store.at_once = True
            store.air[0].land()
            store.air[1].land()
            await answers.wait(101)
            assert sum(len(group) for group in store.groups) == 101

    run(test)


def test_a_lone_write_goes_at_once_and_what_comes_meanwhile_goes_together(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store) as wal:
            wal.submit(entry(1, 1), answers.of(1))
            await turns()
            assert store.groups == [[1]]
            for partition in (2, 3, 4):
                wal.submit(entry(partition, 1), answers.of(partition))
                await turns()
            assert store.groups == [[1]], "it is worth to wait for the one in the air"
            store.air[0].land()
            await answers.wait(1)
            async with asyncio.timeout(DEADLINE_S):
                while len(store.groups) < 2:  # its turn on trial may be the thread's
                    await asyncio.sleep(0)
            assert store.groups == [[1], [2, 3, 4]]

    run(test)


def test_answers_come_in_the_order_of_the_writes_whichever_lands_first(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store) as wal:
            for partition in range(64):
                wal.submit(entry(partition, 1), answers.of(partition))
            assert [len(group) for group in store.groups] == [32, 32]
            store.air[1].land()
            await turns()
            assert answers.given == [], "the first is still in the air"
            store.air[0].land()
            assert [name for name, _ in await answers.wait(64)] == list(range(64))

    run(test)


def test_a_partition_in_the_air_is_in_no_other_group(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store, batch_max=3, group_partitions_max=2) as wal:
            for index in range(1, 101):
                for partition in range(6):
                    wal.submit(entry(partition, index), answers.of((partition, index)))
                if index % 10 == 0:
                    await turns()
            given = await answers.wait(600)
            for partition in range(6):
                mine = [name[1] for name, _ in given if name[0] == partition]  # type: ignore[index]
                assert mine == list(range(1, 101))

    run(test)


def test_130_ready_partitions_make_groups_of_64_64_and_2(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        wal = wal_on(store)
        store.at_once = False
        for partition in range(130):
            wal.submit(entry(partition, 1), answers.of(partition))
        assert store.groups == [], "not started"
        wal.start()
        store.at_once = True
        for flown in store.air:
            flown.land()
        await answers.wait(130)
        assert [len(group) for group in store.groups] == [64, 64, 2]
        await wal.stop()
        os.close(store.done_fd)

    run(test)


def test_a_hot_partition_does_not_delay_another_beyond_the_next_group(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store) as wal:
            wal.submit(entry(999, 1), answers.of("held"))
            await turns()
            for index in range(1, 4_001):
                wal.submit(entry(1, index), answers.of(("hot", index)))
            wal.submit(entry(2, 1), answers.of("cold"))
            store.at_once = True
            for flown in store.air:
                flown.land()
            await answers.wait(4_002)
            cold = next(n for n, group in enumerate(store.groups) if 2 in group)
            assert cold <= 2, "the one that was held, what was ready, and then the cold one"

    run(test)


def test_200_partitions_with_two_writes_each_complete_in_groups_of_one(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store, batch_max=1, group_partitions_max=1) as wal:
            for partition in range(200):
                for index in (1, 2):
                    wal.submit(entry(partition, index), answers.of(partition))
            assert len(await answers.wait(400)) == 400
            assert {len(group) for group in store.groups} == {1}

    run(test)


def test_what_cannot_begin_is_called_when_nothing_else_is_in_the_air(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store) as wal:
            wal.submit(entry(999, 1), answers.of("first"))
            await turns()
            store.begins = lambda group: len(group) < 32
            for partition in range(32):
                wal.submit(entry(partition, 1), answers.of(partition))
            await turns()
            assert store.calls == []
            store.air[0].land()
            await answers.wait(33)
            ((thread, count),) = store.calls
            assert (thread.startswith("wal"), count) == (True, 32)

    run(test)


def test_writes_without_a_sync_are_calls(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store) as wal:
            wal.submit(entry(1, 1), answers.of(1), sync=False)
            await answers.wait(1)
            assert [count for _, count in store.calls] == [1]

    run(test)


@pytest.mark.parametrize("flies", [True, False])
def test_a_store_error_fails_exactly_its_group_and_the_next_succeeds(flies: bool, run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.begins = lambda _: flies

        def broken(group: Sequence[Operation]) -> Mapping[int, Exception]:
            if len(group) == 3:
                raise OSError("broken")
            return {}

        store.fail = broken
        async with started(store) as wal:
            for partition in range(3):
                wal.submit(entry(partition, 1), answers.of(partition))
            assert [type(error) for _, error in await answers.wait(3)] == [OSError] * 3
            wal.submit(entry(0, 1), answers.of("again"))
            assert (await answers.wait(4))[-1] == ("again", None)

    run(test)


def test_a_begin_that_raises_is_left_to_the_call(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()

        def broken(_: Sequence[Operation]) -> bool:
            raise OSError("broken")

        store.begins = broken
        async with started(store) as wal:
            wal.submit(entry(1, 1), answers.of(1))
            assert await answers.wait(1) == [(1, None)]
            assert [count for _, count in store.calls] == [1]

    run(test)


def test_partitions_that_fail_in_a_group_are_told_and_no_others(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        wrong = Rejected("wrong")
        store.fail = lambda _: {2: wrong}
        async with started(store) as wal:
            for partition in range(4):
                wal.submit(entry(partition, 1), answers.of(partition))
            assert await answers.wait(4) == [(0, None), (1, None), (2, wrong), (3, None)]

    run(test)


def test_an_answer_that_raises_harms_no_other(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()

        def raises(_: Exception | None) -> None:
            raise ValueError("mine")

        async with started(store) as wal:
            wal.submit(entry(1, 1), answers.of(1))
            wal.submit(entry(2, 1), raises)
            wal.submit(entry(3, 1), answers.of(3))
            assert await answers.wait(2) == [(1, None), (3, None)]
        assert "a completion callback raised" in caplog.text

    run(test)


def test_an_eventfd_that_is_readable_too_early_does_no_harm(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store) as wal:
            wal.submit(entry(1, 1), answers.of(1))
            await turns()
            os.eventfd_write(store.done_fd, 1)
            await turns()
            assert answers.given == []
            store.air[0].land()
            assert await answers.wait(1) == [(1, None)]
            os.eventfd_write(store.done_fd, 1)
            await turns()

    run(test)


def test_depths_have_limits_that_what_finishes_work_may_pass(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store, limits=QueueLimits(depth_max=3, total_max=5)) as wal:
            for index in (1, 2, 3):
                wal.submit(entry(1, index), answers.of(index))
                await turns()
            assert wal.depth_of(1) == 3, "one in the air, two in line"
            with pytest.raises(Backpressure, match=r"partition 1 has 3 operations queued, of 3"):
                wal.submit(entry(1, 4), answers.of("refused"))
            for partition in (2, 3):
                wal.submit(entry(partition, 1), answers.of(partition))
            with pytest.raises(Backpressure, match=r"all partitions together .* of 5"):
                wal.submit(entry(4, 1), answers.of("refused"))
            wal.submit(entry(1, 4), answers.of("finishing"), finishing=True)
            assert wal.status().refusals == 2
            store.at_once = True
            store.air[0].land()
            assert len(await answers.wait(6)) == 6
            assert store.bounds(1).last_index == 4
            wal.submit(entry(1, 5), answers.of("free again"))
            await answers.wait(7)

    run(test)


def test_stop_writes_all_that_was_taken_and_refuses_the_rest(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        wal = wal_on(store)
        for index in range(1, 4_097):
            wal.submit(entry(1, index), answers.of(index))
        stops = [asyncio.ensure_future(wal.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Stopped):
            wal.submit(entry(2, 1), answers.of("refused"))
        await asyncio.wait_for(asyncio.gather(*stops), DEADLINE_S)
        assert [name for name, _ in answers.given] == list(range(1, 4_097))
        assert store.bounds(1).last_index == 4_096
        assert store.partitions() == [1]
        assert not wal.status().running
        os.close(store.done_fd)

    run(test)


def test_a_commit_window_collects_what_is_queued_but_never_holds_a_lone_write(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store) as wal:
            wal.window.commit_ms = 60_000.0
            wal.submit(entry(1, 1), answers.of("lone"))
            await answers.wait(1)
            for partition in (2, 3):
                wal.submit(entry(partition, 1), answers.of(partition))
            await turns()
            assert store.groups == [[1]], "held"
            wal.submit(entry(4, 1), answers.of(4))
        assert len(answers.given) == 4, "the end does not wait for a window"
        assert store.groups == [[1], [2, 3, 4]]

    run(test)


def test_a_commit_window_comes_to_an_end(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store) as wal:
            wal.window.commit_ms = 20.0
            for partition in (1, 2):
                wal.submit(entry(partition, 1), answers.of(partition))
            await answers.wait(2)
            for partition in (1, 2):
                wal.submit(entry(partition, 2), answers.of(partition))
            await answers.wait(4)

    run(test)


def test_a_group_of_very_many_bytes_is_written_in_parts(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store, group_bytes_max=100) as wal:
            for partition in range(6):
                wal.submit(entry(partition, 1, b"x" * 40), answers.of(partition))
            assert {error for _, error in await answers.wait(6)} == {None}
            assert [count for _, count in store.calls] == [2, 2, 2]

    run(test)


def test_garbage_harms_neither_who_submits_after_it_nor_the_others_of_its_group(
    tmp_path: Path, run: Run
) -> None:
    async def test() -> None:
        store, answers = open_segment(tmp_path), Answers()
        wal = wal_on(store)
        wal.submit(Append(99, (LogEntry(1, 1, None),)), answers.of("garbage"))  # type: ignore[arg-type]
        for partition in range(40):
            wal.submit(entry(partition, 1), answers.of(partition))
        wal.start()
        given = dict(await answers.wait(41))
        assert isinstance(given.pop("garbage"), Rejected)
        assert set(given.values()) == {None}
        await wal.stop()
        assert all(store.bounds(partition).last_index == 1 for partition in range(40))
        store.close()

    run(test)


def manual_wal(store: FlyingStore, clock: ManualClock, *, busy_ns: Callable[[], int]) -> Wal:
    loop = asyncio.get_running_loop()
    return Wal(store, loop=loop, clock=clock, busy_ns=busy_ns, chooser=PathChooser(0))


def test_the_first_groups_of_a_log_go_to_the_thread(run: Run) -> None:
    """A process that just started is slow in everything: a trial would only delay its writes."""

    async def test() -> None:
        store, answers, clock = FlyingStore(), Answers(), ManualClock()
        loop = asyncio.get_running_loop()
        wal = Wal(store, loop=loop, clock=clock, busy_ns=lambda: 0)
        wal.start()
        for count in range(1, 4):
            wal.submit(entry(1, count), answers.of(count))
            await answers.wait(count)
            clock.advance(SETTLE_NS // MS // 4)
        assert len(store.calls) == 3
        clock.advance(SETTLE_NS // MS)
        wal.submit(entry(1, 4), answers.of(4))
        await answers.wait(4)
        assert len(store.calls) == 3, "then it tries the other path"
        await asyncio.wait_for(wal.stop(), DEADLINE_S)
        os.close(store.done_fd)

    run(test)


def test_late_flights_are_found_although_the_loop_is_busy(run: Run) -> None:
    """A loop that serves a hundred watchers for 2 ms sees every completion 2 ms late.

    Then a flight takes 5 ms and a call, which needs 1 ms, takes 3 ms: by the clock not even twice
    as long.
    """

    async def test() -> None:
        store, answers, clock = FlyingStore(), Answers(), ManualClock()
        store.at_once = False
        busy_ms = 0

        def serve_watchers() -> None:
            nonlocal busy_ms
            busy_ms += 2
            clock.advance(2)

        def call(_: object) -> dict[int, Exception]:
            clock.advance(1)
            serve_watchers()
            return {}

        store.fail = call
        wal = manual_wal(store, clock, busy_ns=lambda: busy_ms * MS)
        wal.start()
        for count in range(1, 2 * PAIRS + 1):
            wal.submit(entry(1, count), answers.of(count))
            await turns()
            for flown in store.air:
                clock.advance(3)
                serve_watchers()
                flown.land()
            await answers.wait(count)
        assert wal.written_by() == "thread"
        await asyncio.wait_for(wal.stop(), DEADLINE_S)
        os.close(store.done_fd)

    run(test)


def test_flights_that_are_late_give_way_to_calls_and_come_back(run: Run) -> None:
    """As where somebody else never leaves the processor that the disk interrupts."""

    async def test() -> None:
        store, answers, clock = FlyingStore(), Answers(), ManualClock()
        store.at_once = False
        store.fail = lambda _: clock.advance(1) or {}
        wal, count = manual_wal(store, clock, busy_ns=lambda: 0), 0
        wal.start()

        async def write(took_ms: int) -> str:
            nonlocal count
            count += 1
            before = len(store.calls)
            wal.submit(entry(1, count), answers.of(count))
            await turns()
            for flown in store.air:
                clock.advance(took_ms)
                flown.land()
            await answers.wait(count)
            return "called" if len(store.calls) > before else "flown"

        assert wal.written_by() == "thread", "none was written yet"
        trial = [await write(5) for _ in range(2 * PAIRS_MIN)]
        assert trial == ["flown", "called"] * PAIRS_MIN
        assert [await write(5) for _ in range(9)] == ["called"] * 9
        assert wal.written_by() == "thread"
        clock.advance(2 * AVOID_NS_MIN // MS)
        trial = [await write(0) for _ in range(2 * PAIRS)]
        assert trial == ["flown", "called"] * PAIRS
        assert [await write(0) for _ in range(9)] == ["flown"] * 9
        assert wal.written_by() == "disk"
        await asyncio.wait_for(wal.stop(), DEADLINE_S)
        assert store.bounds(1).last_index == count
        os.close(store.done_fd)

    run(test)


def test_one_sync_covers_a_group_and_is_left_out_if_no_write_asked_for_it(run: Run) -> None:
    async def test() -> None:
        store, answers = MemoryStore(), Answers()
        wal = wal_on(store)
        wal.submit(entry(1, 1), answers.of(1), sync=False)
        wal.submit(entry(2, 1), answers.of(2), sync=True)
        wal.start()
        await answers.wait(2)
        assert (wal.counters.batches, wal.counters.fsyncs, store.status().syncs) == (1, 1, 1)
        wal.submit(entry(1, 2), answers.of(3), sync=False)
        await answers.wait(3)
        assert (wal.counters.batches, wal.counters.fsyncs, store.status().syncs) == (2, 1, 1)
        assert wal.counters.frames == 3
        await wal.stop()

    run(test)


def test_a_sync_alone_makes_earlier_writes_durable(tmp_path: Path, run: Run) -> None:
    async def test() -> None:
        store, answers = open_segment(tmp_path), Answers()
        wal = wal_on(store)
        wal.start()
        wal.submit(entry(1, 1), answers.of("append"), sync=False)
        await answers.wait(1)
        syncs = store.status().syncs
        wal.submit(Sync(1), answers.of("sync"))
        assert (await answers.wait(2))[-1] == ("sync", None)
        assert store.status().syncs == syncs + 1
        await wal.stop()
        store.close()

    run(test)


def test_a_group_cut_into_parts_keeps_the_order_and_writes_one_that_is_too_large_alone(
    run: Run,
) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store, group_bytes_max=1_000) as wal:
            for index in range(1, 9):
                wal.submit(entry(1, index, b"x" * 400), answers.of(index))
            wal.submit(entry(2, 1, b"y" * 5_000), answers.of("large"))
            given = await answers.wait(9)
            assert [count for _, count in store.calls] == [2, 2, 2, 2, 1]
            assert [name for name, _ in given] == [*range(1, 9), "large"]
            assert (wal.counters.batches, wal.counters.frames) == (5, 9)

    run(test)


def test_a_write_submitted_from_a_completion_is_taken_at_the_limit(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        async with started(store, limits=QueueLimits(depth_max=1)) as wal:
            writer(wal, 1, 50, answers.of("end"))(None)
            assert await answers.wait(1) == [("end", None)]
            assert store.bounds(1).last_index == 50

    run(test)


def test_a_refused_write_never_appears_in_the_log_and_harms_no_other(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        refused = 0
        async with started(store, limits=QueueLimits(depth_max=3)) as wal:
            for number in range(6):
                try:
                    wal.submit(entry(1, min(number, 3) + 1, b"%d" % number), answers.of(number))
                except Backpressure:
                    refused += 1
            assert [name for name, _ in await answers.wait(3)] == [0, 1, 2]
        assert refused == 3
        found = store.read(1, 1, max_entries=9, max_bytes=99)
        assert [each.payload for each in found] == [b"0", b"1", b"2"]

    run(test)


def test_the_status_tells_what_waits(run: Run) -> None:
    async def test() -> None:
        store, answers = FlyingStore(), Answers()
        store.at_once = False
        async with started(store, limits=QueueLimits(depth_max=2)) as wal:
            wal.submit(entry(9, 1), answers.of("first"))
            await turns()
            for index in (1, 2):
                wal.submit(entry(1, index), answers.of(index))
            with pytest.raises(Backpressure):
                wal.submit(entry(1, 3), answers.of(3))
            status = wal.status()
            assert (status.running, status.queued, status.depth) == (True, 2, 3)
            assert (status.refusals, wal.depth_of(1)) == (1, 2)

    run(test)


def test_sizes_below_one_are_refused() -> None:
    for field in ("group_partitions_max", "batch_max", "group_bytes_max"):
        with pytest.raises(PenstockError, match="at least 1"):
            WalOptions(**{field: 0})
