"""A writer alone, with a log whose answers come when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.kernel.errors import Unavailable
from penstock.kernel.system import SystemClock
from penstock.log.executor import PartitionExecutor, WorkKind
from penstock.log.journal import LogBacklog
from penstock.log.store import DiskFull, NotContiguous, ReadOnly, SyncFailed
from penstock.log.stores.memory import MemoryStore
from penstock.log.wal import Wal
from penstock.protocol.errors import PartitionFailed
from penstock.topics.core.batch import Batch, WriteRequest, parse_write
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Appended, FeedMark
from penstock.topics.core.leases import ClaimRequest
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.engine.writers import (
    ENTRY_BYTES,
    UNSYNCED_SEQS_MAX,
    Audience,
    LogFailed,
    LogFull,
    LogUncertain,
    PartitionWriter,
)
from tests.integration.topics.engines import DEADLINE_S, body
from tests.waiting import until


class HeldJournal:
    """A log that keeps its answers back."""

    def __init__(self) -> None:
        loop, clock = asyncio.get_running_loop(), SystemClock()
        self.wal = Wal(MemoryStore(), loop=loop, clock=clock)
        executor = PartitionExecutor(0, call_soon=loop.call_soon, now_ns=clock.monotonic_ns)
        executor.start()
        executor.restored()
        self.executors = [executor]
        self.sync_round = 0
        self.synced: list[bool] = []
        self.answers: list[Callable[[Exception | None], None]] = []
        self.payloads: list[bytes] = []
        self.refusal: Exception | None = None
        self.room = 1_000_000
        self.backlog = LogBacklog()
        self.failures: list[tuple[int, Exception]] = []

    def failed(self, partition: int, error: Exception) -> None:
        self.failures.append((partition, error))

    def append(self, _number: int, payload: bytes, done: Any, *, sync: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        if not self.room:
            raise Unavailable("no room")
        self.room -= 1
        self.payloads.append(payload)
        self.synced.append(sync)
        self.answers.append(done)


def writer_on(journal: HeldJournal) -> PartitionWriter:
    audience = Audience(lambda _entries: None, lambda _topic: None, (), ())
    loop = asyncio.get_running_loop()
    return PartitionWriter(0, Partition(), journal, loop=loop, audience=audience)  # type: ignore[arg-type]


async def logged(writer: PartitionWriter, journal: HeldJournal, change: DecidedChange) -> None:
    waiting = asyncio.create_task(writer.commit(change, sync=True))
    await until(lambda: bool(journal.answers))
    journal.answers.pop()(None)
    await waiting


def test_who_waits_for_an_idle_lane_is_woken_by_changes_that_need_no_log() -> None:
    """A claim in memory is staged while a write is on its way, and the write is answered first."""

    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        partition = writer.partition
        await logged(writer, journal, partition.decide_config("q", {"type": "queue"}, 1))
        write = partition.decide_write("q", parse_write(body(1, 2)), 2)
        assert isinstance(write, DecidedChange)
        await logged(writer, journal, write)
        write = partition.decide_write("q", parse_write(body(3)), 3)
        assert isinstance(write, DecidedChange)
        writing = asyncio.create_task(writer.commit(write, sync=True))
        await until(lambda: bool(journal.answers))
        claim = partition.decide_claim("q", [ClaimRequest("n")], 4, 0)
        claiming = asyncio.create_task(writer.commit(claim, sync=False))
        holding = asyncio.create_task(writer.hold())
        await asyncio.sleep(0)
        journal.answers.pop()(None)
        assert not writer.is_idle, "the claim waits for its turn"
        await writing
        await asyncio.wait_for(asyncio.gather(claiming, holding), DEADLINE_S)
        assert writer.is_idle
        writer.release()

    asyncio.run(main())


def test_what_the_log_does_not_take_fails_alone_after_all_that_it_took_before() -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        partition = writer.partition
        await logged(writer, journal, partition.decide_config("t", {}, 1))
        told: list[tuple[int, bool]] = []

        def write(number: int) -> None:
            change = partition.decide_write("t", parse_write(body(number)), 2)
            assert isinstance(change, DecidedChange)
            writer.submit(
                change, lambda got: told.append((number, isinstance(got, Exception))), sync=True
            )
            writer.flush()

        write(1)
        journal.refusal = Unavailable("it is stopping")
        write(2)
        journal.refusal = None
        write(3)  # decided on the one before, so it must not be in the log either
        assert (told, len(journal.answers)) == ([], 1)
        journal.answers.pop()(None)
        assert told == [(1, False), (2, True), (3, True)]
        assert (partition.topic("t").head_seq, writer.is_idle) == (1, True)
        write(4)
        journal.answers.pop()(None)
        assert (told[-1], partition.topic("t").head_seq) == ((4, False), 2)

    asyncio.run(main())


def large(count: int) -> WriteRequest:
    """Records of 0.7 MiB."""
    return parse_write(b'{"records":[' + b",".join([b'{"data":"%s"}' % LETTERS] * count) + b"]}")


LETTERS = b"x" * (7 * ENTRY_BYTES // 40)


async def flushed(writer: PartitionWriter) -> None:
    """Hand what is staged to the log; on a busy machine the executor does it in a later turn."""
    writer.flush()
    await until(lambda: not writer._pending)


@pytest.mark.parametrize("is_fast", [True, False], ids=["append", "change"])
def test_many_writes_of_one_turn_are_entries_of_bounded_size_in_order(is_fast: bool) -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        partition = writer.partition
        await logged(writer, journal, partition.decide_config("t", {}, 1))
        del journal.payloads[:], journal.synced[:]
        told: list[int] = []
        for number in range(20):
            if is_fast:
                done = partial(lambda n, _got: told.append(n), number)
                writer.submit_append(partition.topic("t"), large(1).batch, 2, done)
            else:
                change = partition.decide_write("t", large(1), 2)
                assert isinstance(change, DecidedChange)
                writer.submit(change, partial(lambda n, _got: told.append(n), number), sync=True)
        await flushed(writer)
        assert [len(decode_entries(each)) for each in journal.payloads] == [5, 5, 5, 5]
        assert max(map(len, journal.payloads)) <= ENTRY_BYTES
        assert len(set(journal.synced)) == 1
        waiting = writer.waiting_bytes
        for place, answer in enumerate(journal.answers):
            answer(None)
            assert told == list(range(5 * place + 5))
        assert waiting == sum(map(len, journal.payloads))
        assert (writer.waiting_bytes, writer.is_idle) == (0, True)
        assert partition.topic("t").head_seq == 20

    asyncio.run(main())


def test_a_write_larger_than_an_entry_should_be_is_one_entry_all_the_same() -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        partition = writer.partition
        await logged(writer, journal, partition.decide_config("t", {}, 1))
        del journal.payloads[:]
        for count in (1, 20, 1):
            writer.submit_append(partition.topic("t"), large(count).batch, 2, lambda _got: None)
        await flushed(writer)
        entries = [each for payload in journal.payloads for each in decode_entries(payload)]
        assert [each.batch.count for each in entries if isinstance(each, Appended)] == [1, 20, 1]
        assert len(journal.payloads) == 3

    asyncio.run(main())


def test_when_the_log_takes_a_part_of_a_turn_the_rest_fails_and_nothing_else() -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        partition = writer.partition
        await logged(writer, journal, partition.decide_config("t", {}, 1))
        told: list[bool] = []
        journal.room = 2
        for _ in range(20):
            writer.submit_append(
                partition.topic("t"),
                large(1).batch,
                2,
                lambda got: told.append(isinstance(got, Exception)),
            )
        await flushed(writer)
        journal.room = 100
        assert (told, len(journal.answers)) == ([], 2)
        for answer in list(journal.answers):
            answer(None)
        assert told == [False] * 10 + [True] * 10
        assert (partition.topic("t").head_seq, writer.is_idle, writer.waiting_bytes) == (
            10,
            True,
            0,
        )
        writer.submit_append(partition.topic("t"), large(1).batch, 2, lambda _got: None)
        await flushed(writer)
        journal.answers[-1](None)
        assert partition.topic("t").head_seq == 11

    asyncio.run(main())


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (DiskFull("no space"), NotContiguous("a gap"), [LogFull, LogFull]),
        (SyncFailed("may be"), ReadOnly("no more"), [LogUncertain, LogFailed]),
        (SyncFailed("may be"), SyncFailed("may be"), [LogUncertain, LogUncertain]),
        (ZeroDivisionError("a bug"), NotContiguous("a gap"), [LogUncertain, LogFailed]),
        (DiskFull("no space"), None, [LogFull, LogUncertain]),
    ],
    ids=["refused", "first unknown", "both unknown", "unexpected", "written behind a gap"],
)
def test_each_entry_in_flight_is_told_whether_it_surely_was_not_written(
    first: Exception, second: Exception | None, expected: list[type[Exception]]
) -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        partition = writer.partition
        await logged(writer, journal, partition.decide_config("t", {}, 1))
        told: list[Any] = []

        def write(*, flush: bool) -> None:
            change = partition.decide_write("t", parse_write(body(1)), 2)
            assert isinstance(change, DecidedChange)
            writer.submit(change, told.append, sync=True)
            if flush:
                writer.flush()

        write(flush=True)
        write(flush=True)
        write(flush=False)  # never submitted
        journal.answers[0](first)
        journal.answers[1](second)
        unsent = LogFull if isinstance(first, DiskFull) else LogFailed
        assert [type(each) for each in told] == [*expected, unsent]
        assert partition.topic("t").head_seq == 0, "none of them is visible"
        assert writer.refusal is None, "the next is tried again"

    asyncio.run(main())


def test_what_was_never_given_to_the_log_was_surely_not_written() -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        await logged(writer, journal, writer.partition.decide_config("t", {}, 1))
        journal.refusal = ZeroDivisionError("a bug before it was submitted")
        change = writer.partition.decide_write("t", parse_write(body(1)), 2)
        assert isinstance(change, DecidedChange)
        with pytest.raises(LogFailed, match="a bug before"):
            await writer.commit(change, sync=True)

    asyncio.run(main())


def test_a_hole_that_takes_too_many_seqs_is_synced_though_it_brings_no_record() -> None:
    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        await logged(writer, journal, writer.partition.decide_config("t", {}, 1))
        for source_seq, trimmed in ((10, 10), (5_000, UNSYNCED_SEQS_MAX // 2)):
            feed = FeedMark("r", 1, source_seq, trimmed)
            first_seq = writer.partition.topic("t").next_seq + trimmed
            fed = writer.partition.change_of(Appended("t", first_seq, 2, Batch.of([]), feed=feed))
            assert not writer.is_synced(fed), "it is the sum that is too much"
            feeding = asyncio.create_task(writer.commit(fed, sync=False))
            await until(lambda: bool(journal.answers))
            journal.answers.pop()(None)
            await feeding
        assert journal.synced[1:] == [False, True]

    asyncio.run(main())


def test_a_partition_that_fails_answers_every_waiter_and_takes_nothing_more() -> None:
    """What was in the log's hands may be durable; what was staged behind it is not."""

    async def main() -> None:
        journal = HeldJournal()
        writer = writer_on(journal)
        await logged(writer, journal, writer.partition.decide_config("t", {}, 1))

        def write() -> asyncio.Task[list[Any]]:
            change = writer.partition.decide_write("t", parse_write(body(1)), 2)
            assert isinstance(change, DecidedChange)
            return asyncio.create_task(writer.commit(change, sync=True))

        flying = write()
        await until(lambda: bool(journal.answers))
        idle = asyncio.create_task(writer.until_idle())
        staged = write()
        await asyncio.sleep(0)

        def broken() -> None:
            raise ZeroDivisionError("a bug")

        writer.executor.submit(WorkKind.REPLICATION, broken)
        outcomes = await asyncio.gather(flying, staged, idle, return_exceptions=True)
        assert [type(each) for each in outcomes] == [LogUncertain, PartitionFailed, PartitionFailed]
        journal.answers.pop()(None)  # the log's answer comes late, and changes nothing
        assert (writer.waiting_bytes, writer.is_idle) == (0, True)
        for refused in (writer.hold(), writer.settled()):
            with pytest.raises(PartitionFailed, match="a bug"):
                await refused
        with pytest.raises(PartitionFailed, match="partition 0 is out of service: a bug"):
            await writer.commit(DecidedChange((), ()), sync=True)

    asyncio.run(main())
