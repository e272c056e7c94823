"""Records that files hold: read, watched, routed, claimed and removed like those in memory."""

from __future__ import annotations

import asyncio
from array import array
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.kernel.errors import Corrupt, Rejected
from penstock.log.reads import ReadScheduler
from penstock.log.stores.memory import MemoryStore
from penstock.testing import ManualClock
from penstock.topics.core.cold_row import ColdBlock, SlotRun
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.registry import partition_of
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.topic_views import show_topic
from penstock.topics.engine.views import scheduler_view
from penstock.topics.engine.watch import PageShape
from penstock.topics.persist.cold import ColdCache
from penstock.topics.persist.segments import SealOptions
from tests.integration.topics.node import (
    PARTITIONS,
    SMALL,
    drained,
    node,
    on_a_loop,
    write,
)
from tests.waiting import until


async def make_cold(engine: Engine, topic: str, count: int = 100) -> None:
    """Write numbers, and move all but the last ten to files."""
    await write(engine, topic, 0, count)
    await engine.compact()
    assert engine.registry.topics[topic].row.cold_count == count - 10


@on_a_loop
async def test_a_reader_gets_cold_and_hot_records_alike(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL, end_well=False) as engine:
        await make_cold(engine, "t")
        assert await drained(engine, "t") == list(range(100))
        assert await drained(engine, "t", 33, limit=7) == list(range(33, 100))
        tagged = await drained(engine, "t", tag=Predicate("t4", prefix=False))
        assert tagged == list(range(4, 100, 10))
    async with node(tmp_path, seal=SMALL) as engine:
        assert engine.registry.topics["t"].row.cold_count == 90
        page = await engine.diff("t", ReadRequest(15, limit=10))
        assert [slot.seq for slot in page.records] == list(range(16, 26))
        assert page.cold_segments_read == 2
        again = await engine.diff("t", ReadRequest(15, limit=10))
        assert again == page._replace(cold_segments_read=0)
        assert (await engine.diff("t", ReadRequest(95))).cold_segments_read == 0
        assert await drained(engine, "t") == list(range(100))


@on_a_loop
async def test_a_read_that_needs_very_many_blocks_is_cut_short_and_goes_on(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await make_cold(engine, "t", 400)
        nobody = Predicate("nobody", prefix=False)
        page = await engine.diff("t", ReadRequest(tag=nobody))
        assert 0 < page.next_from_seq < 390
        assert not page.records
        assert await drained(engine, "t", tag=Predicate("t7", prefix=False)) == list(
            range(7, 400, 10)
        )


@on_a_loop
async def test_what_is_loaded_stays_within_its_limit(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL, cold_cache_bytes=1) as engine:
        await make_cold(engine, "t", 400)
        assert await drained(engine, "t") == list(range(400))
        blocks = engine.registry.topics["t"].row.cold.blocks
        assert sum(block.records is not None for block in blocks) <= 8
        assert not any(block.pins for block in blocks)
        engine.cold.forget()
        assert engine.cold.kept_bytes == 0
        assert await drained(engine, "t") == list(range(400))


@on_a_loop
async def test_a_watcher_that_is_far_behind_is_woken_when_its_records_are_there(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await make_cold(engine, "t")
        topic = engine.registry.topics["t"]
        got: list[int] = []
        waits = 0

        def push(_name: str) -> None:
            nonlocal waits
            while True:
                cursor = got[-1] + 1 if got else 0
                shape = PageShape.of(ReadRequest(limit=30))
                page = engine.watchers.page(topic, cursor, None, shape, engine.clock.now_ms())
                if page.waits:
                    waits += 1
                    assert not page.diff.caught_up
                    return
                got.extend(int(bytes(slot.record.data)) for slot in page.diff.records)
                if page.diff.caught_up:
                    return

        engine.watchers.listen("t", push)
        push("t")
        await until(lambda: len(got) == 100)
        assert got == list(range(100))
        assert waits >= 9


@on_a_loop
async def test_a_router_that_is_far_behind_copies_cold_records(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await engine.put_topic("d", {"cap_records": 1, "discard": "reject"})
        await engine.routers.put(RouterConfig("r", "s", "d"))
        await make_cold(engine, "s")
        assert await drained(engine, "d") == [0]
        await engine.put_topic("d", {"cap_records": 0, "discard": "old"})
        engine.turns.mark("s")
        await until(lambda: engine.registry.topics["d"].count == 100)
        assert await drained(engine, "d") == list(range(100))


@on_a_loop
async def test_cold_jobs_are_claimed_finished_and_buried(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        queue = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
        await engine.put_topic("q", queue)
        await make_cold(engine, "q")
        claims = await engine.queues.claim("q", ClaimRequest("n", 25))
        assert [int(bytes(job.slot.record.data)) for job in claims.jobs] == list(range(25))
        seqs = tuple(job.lease.seq for job in claims.jobs)
        await engine.queues.ack("q", Settle("n", seqs[:20]))
        await engine.queues.nack("q", Settle("n", seqs[20:]), 0)
        engine.cold.forget()
        again = await engine.queues.claim("q", ClaimRequest("n", 3))
        assert [int(bytes(job.slot.record.data)) for job in again.jobs] == [25, 26, 27]
        assert await drained(engine, "dead") == [20, 21, 22, 23, 24]
        assert again.counts.ready == 72
    async with node(tmp_path, seal=SMALL) as engine:
        claims = await engine.queues.claim("q", ClaimRequest("n", 1000))
        assert [int(bytes(job.slot.record.data)) for job in claims.jobs] == list(range(25, 100))


@on_a_loop
async def test_cold_records_are_deleted_and_lost_like_any_other(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await make_cold(engine, "t")
        deletion = await engine.delete("t", match=Predicate("t3", prefix=False))
        assert (deletion.deleted, deletion.count) == (10, 90)
        deletion = await engine.delete("t", before_seq=31)
        assert (deletion.deleted, deletion.earliest_seq) == (27, 31)
        expected = [number for number in range(30, 100) if number % 10 != 3]
        assert await drained(engine, "t") == expected
        await engine.put_topic("t", {"cap_records": 50})
        view = await show_topic(engine, "t")
        assert (view.earliest_seq, view.count) == (51, 45)
        tombstone = (await engine.diff("t", ReadRequest(0))).tombstone
        assert tombstone is not None
        assert (tombstone.gap_to, tombstone.reason) == (50, "cap")
        expected = expected[-45:]
        assert await drained(engine, "t") == expected
        await engine.compact()
        assert await drained(engine, "t") == expected
    async with node(tmp_path, seal=SMALL) as engine:
        assert await drained(engine, "t") == expected


@on_a_loop
async def test_jobs_that_cannot_be_read_hold_up_no_other(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL, end_well=False) as engine:
        await engine.put_topic("q", {"type": "queue"})
        await make_cold(engine, "q")
        assert engine.cold_files is not None
        files = {block.file for block in engine.registry.topics["q"].row.cold.blocks}
        (engine.cold_files.path / min(files)).unlink()
        claims = await engine.queues.claim("q", ClaimRequest("n", 1000))
        assert [int(bytes(job.slot.record.data)) for job in claims.jobs] == list(range(10, 100))
        await engine.queues.ack("q", Settle("n", tuple(job.lease.seq for job in claims.jobs)))
        assert (await engine.queues.claim("q", ClaimRequest("n", 9))).jobs == []
        view = await show_topic(engine, "q")
        assert view.count == 10, "they are kept"


def beside(topic: str) -> str:
    """The name of another topic in the same partition."""
    names = (f"beside-{number}" for number in range(100))
    wanted = partition_of(topic, PARTITIONS)
    return next(name for name in names if partition_of(name, PARTITIONS) == wanted)


@on_a_loop
async def test_segments_go_when_nobody_needs_them(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await make_cold(engine, "t")
        await make_cold(engine, "u")
        files = engine.cold_files
        assert files is not None
        assert len(files.names()) == 18
        await engine.delete("t", before_seq=45)
        await engine.compact()
        assert len(files.names()) == 18, "the snapshot before this one names them"
        await write(engine, "t", 100)
        await engine.compact()
        assert len(files.names()) == 14
        await engine.put_topic(beside("t"), {})
        await engine.routers.drop_topic("t")
        await engine.compact()
        assert len(files.names()) == 14
        await write(engine, beside("t"), 0)
        await engine.compact()
        assert len(files.names()) == 9
        assert await drained(engine, "u") == list(range(100))
    (tmp_path / "cold" / "00000-00000000000000000099-7-0.segment").write_bytes(b"left over")
    (tmp_path / "cold" / "00000-00000000000000000099-7-1.segment.making").write_bytes(b"half")
    async with node(tmp_path, seal=SMALL):
        assert len(list((tmp_path / "cold").iterdir())) == 9


@on_a_loop
async def test_a_cold_directory_belongs_to_one_data_directory(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with node(tmp_path / "one", seal=SMALL, cold_dir=shared) as engine:
        await make_cold(engine, "t")
    with pytest.raises(Rejected, match=r"the cold directory .* belongs to"):
        async with node(tmp_path / "two", seal=SMALL, cold_dir=shared):
            raise AssertionError("it must not open")
    async with node(tmp_path / "one", seal=SMALL, cold_dir=shared) as engine:
        assert await drained(engine, "t") == list(range(100))


@on_a_loop
async def test_records_that_only_memory_has_stay_there(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await engine.put_topic("e", {"durability": "ephemeral"})
        await write(engine, "e", 0, 100)
        await write(engine, "t", 0, 1)
        await engine.compact()
        assert engine.registry.topics["e"].row.cold_count == 0
        assert await drained(engine, "e") == list(range(100))


@on_a_loop
async def test_records_that_only_memory_has_stay_there_when_later_ones_are_logged(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await write(engine, "t", 0, 20)
        await engine.put_topic("t", {"durability": "ephemeral"})
        await write(engine, "t", 20, 40)
        await engine.put_topic("t", {"durability": "disk"})
        await write(engine, "t", 60, 100)
        await engine.compact()
        assert await drained(engine, "t") == list(range(160))
        await write(engine, "t", 160, 100)
        await engine.compact()
        assert await drained(engine, "t") == list(range(260))
    async with node(tmp_path, seal=SMALL) as engine:
        assert await drained(engine, "t") == [*range(20), *range(60, 260)]
        await write(engine, "t", 260, 100)
        await engine.compact()
        assert engine.registry.topics["t"].row.cold_count == 350
        assert await drained(engine, "t") == [*range(20), *range(60, 360)]


@on_a_loop
async def test_a_damaged_segment_is_told_to_its_readers_and_harms_no_other(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await make_cold(engine, "t")
        files = engine.cold_files
        assert files is not None
        path = files.path / files.names()[0]
        whole = path.read_bytes()
        data = bytearray(whole)
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(Corrupt, match=r"expected .* bytes with checksum"):
            await drained(engine, "t")
        page = partial(engine.watchers.page, engine.topic("t"), 0, None, PageShape(), 0)
        with pytest.raises(Corrupt, match=r"expected .* bytes with checksum"):
            page()  # it was tried just now
        path.write_bytes(whole)

        def is_there() -> bool:
            with suppress(Corrupt):
                return not page().waits
            return False

        await until(is_there)
        path.write_bytes(data)
        engine.cold.forget()
        assert await drained(engine, "t", 10) == list(range(10, 100))
        assert (await write(engine, "t", 100)).last_seq == 101


@on_a_loop
async def test_old_records_are_sealed_before_their_segment_is_full(tmp_path: Path) -> None:
    options = SealOptions(segment_records_max=1_000, hot_segments=0, segment_age_ms_max=50)
    clock = ManualClock(now_ms=1_000)
    async with node(tmp_path, seal=options, clock=clock) as engine:
        await write(engine, "t", 0, 30)
        await engine.compact()
        assert engine.registry.topics["t"].row.cold_count == 0
        clock.advance(51)
        await write(engine, "t", 30, 1)
        await engine.compact()
        assert engine.registry.topics["t"].row.cold_count == 31
        assert await drained(engine, "t") == list(range(31))


@on_a_loop
async def test_jobs_are_buried_with_a_letter_though_that_is_asked_for_while_they_are_loaded(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await engine.put_topic("q", {"type": "queue"})
        await make_cold(engine, "q", 40)
        claimed = await engine.queues.claim("q", ClaimRequest("n", 40))
        seqs = tuple(job.lease.seq for job in claimed.jobs)
        await engine.queues.nack("q", Settle("n", seqs), 0)
        engine.cold.forget()
        claiming = asyncio.create_task(engine.queues.claim("q", ClaimRequest("n", 1)))
        await asyncio.sleep(0)
        await engine.put_topic("q", {"max_deliveries": 1, "dead_letter": "dead"})
        jobs = (await claiming).jobs
        letters = engine.topic("dead").count if "dead" in engine.registry.topics else 0
        assert (len(jobs), engine.topic("q").count + letters) in {(0, 40), (1, 40)}


@on_a_loop
async def test_a_watcher_of_few_tags_comes_through_more_blocks_than_memory_keeps(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, seal=SMALL, cold_cache_bytes=1) as engine:
        await make_cold(engine, "t", 400)
        topic = engine.registry.topics["t"]
        shape = PageShape.of(ReadRequest(tag=Predicate("t7", prefix=False)))
        got: list[int] = []
        cursor = 0

        def push(_name: str) -> None:
            nonlocal cursor
            while cursor < topic.head_seq:
                page = engine.watchers.page(topic, cursor, None, shape, engine.clock.now_ms())
                if page.waits:
                    return
                got.extend(int(bytes(slot.record.data)) for slot in page.diff.records)
                cursor = page.diff.next_from_seq

        engine.watchers.listen("t", push)
        loads = engine.cold.loads
        push("t")
        await until(lambda: cursor == topic.head_seq)
        assert got == list(range(7, 400, 10))
        assert engine.cold.loads - loads < 2 * 39, "hardly a block twice"


@on_a_loop
async def test_a_router_comes_through_more_blocks_than_memory_keeps(tmp_path: Path) -> None:
    async with node(tmp_path, seal=SMALL, cold_cache_bytes=1) as engine:
        await engine.put_topic("d", {"cap_records": 1, "discard": "reject"})
        await engine.routers.put(RouterConfig("r", "s", "d"))
        await make_cold(engine, "s", 400)
        await engine.put_topic("d", {"cap_records": 0, "discard": "old"})
        await until(lambda: engine.registry.topics["d"].count == 400)
        assert await drained(engine, "d") == list(range(400))


class OneRecordEach:
    """Files whose blocks have one record each."""

    def read(self, block: ColdBlock) -> SlotRun:
        return SlotRun(block.first_seq, array("q", [0]), array("Q", [1]), [None])


def cache_of_ten() -> tuple[ColdCache, list[ColdBlock]]:
    """A cache that keeps ten blocks, and twelve of them."""
    loop = asyncio.get_running_loop()
    reads = ReadScheduler(MemoryStore(), loop=loop)
    reads.start()
    cache = ColdCache(OneRecordEach(), reads, bytes_max=100, loop=loop)  # type: ignore[arg-type]
    return cache, [ColdBlock("f", seq, 10, first_seq=seq, last_seq=seq) for seq in range(12)]


@on_a_loop
async def test_a_block_that_was_just_loaded_stays_though_all_others_are_in_use() -> None:
    cache, (*kept, late, later) = cache_of_ten()
    for block in kept:
        await cache.load(block)
    for block in (late, later):  # `late` is not used before `later` is there too
        for other in kept:
            other.touched = True
        await cache.load(block)
    assert (late.records, later.records) == ([None], [None])
    assert cache.kept_bytes == 100


@on_a_loop
async def test_a_block_that_was_just_loaded_stays_though_all_others_are_held() -> None:
    cache, (*kept, late, _) = cache_of_ten()
    with cache.hold() as hold:
        for block in kept:
            await hold.load(block)
        await cache.load(late)
        assert late.records == [None]


@on_a_loop
async def test_whatever_keeps_records_from_being_read_is_not_tried_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, seal=SMALL) as engine:
        await make_cold(engine, "t")
        tries: list[object] = []

        def fail(block: object) -> None:
            tries.append(block)
            raise ValueError("nobody thought of this")

        monkeypatch.setattr(engine.cold_files, "read", fail)
        told: list[Exception] = []

        def push(_name: str) -> None:
            try:
                engine.watchers.page(engine.topic("t"), 0, None, PageShape(), 0)
            except ValueError as error:
                told.append(error)

        engine.watchers.listen("t", push)
        push("t")
        await until(lambda: bool(told))
        for _ in range(100):
            push("t")
            await asyncio.sleep(0)
        assert len(tries) == 1
        assert len(told) >= 100
        engine.watchers.leave("t", push)


@on_a_loop
async def test_a_source_that_cannot_be_read_leaves_its_destination_usable_and_the_end_clean(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, seal=SMALL, boot_id="one") as engine:
        await engine.put_topic("dest", {"cap_records": 5, "discard": "reject"})
        await engine.routers.put(RouterConfig("r", "source", "dest"))
        await write(engine, "other", 0, 3)
        await write(engine, "source", 0, 100)
        assert await drained(engine, "dest") == [0, 1, 2, 3, 4]
        await engine.compact()
        engine.cold.forget()
        kept = {path: path.read_bytes() for path in (tmp_path / "cold").glob("*.segment")}
        for path in kept:
            path.write_bytes(b"garbage")
        await engine.put_topic("dest", {"cap_records": 500})
        assert await drained(engine, "dest") == [0, 1, 2, 3, 4]
        assert (await show_topic(engine, "dest")).count == 5
        assert (await engine.routers.show("r")).forwarded_total == 5
        [router] = scheduler_view(engine, "source")["topic"]["routers"]
        assert router["reason"].startswith("its next records cannot be read: ")
        await engine.delete("dest", before_seq=2)
    async with node(tmp_path, seal=SMALL, boot_id="two") as engine:
        assert engine.topic("other").head_seq == 3, "the machine was restarted after a clean end"
        for path, data in kept.items():
            path.write_bytes(data)
        await until(lambda: engine.topic("dest").head_seq == 100)
        assert await drained(engine, "dest") == list(range(1, 100))
