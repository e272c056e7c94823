"""Snapshots of a running node: what comes back after them, and after any end of either process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel.errors import Corrupt
from penstock.log.executor import Phase
from penstock.protocol.errors import PartitionFailed
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.views import scheduler_view
from penstock.topics.persist.data_dir import verify_snapshot
from penstock.topics.persist.snapshotter import CompactionFailed
from tests.integration.topics.node import PARTITIONS, drained, node, on_a_loop, write
from tests.waiting import until


async def fill(engine: Engine, first: int = 0) -> None:
    """Something of everything."""
    if "q" not in engine.registry.topics:
        queue = {"type": "queue", "leases_durable": True}
        await engine.put_topic("q", queue)
        await engine.put_topic("capped", {"cap_records": 7})
        await engine.put_topic("e", {"durability": "ephemeral"})
        await engine.routers.put(RouterConfig("r", "a", "copies"))
    for number in range(first, first + 30):
        await write(engine, "a", number)
        await write(engine, "capped", number)
        await write(engine, "e", number)
        await write(engine, "q", number, idempotency_key=f'"k{number}"')
    await engine.delete("a", match=Predicate("t3", prefix=False))
    claims = await engine.queues.claim("q", ClaimRequest("n", 4, 60_000))
    await engine.queues.ack("q", Settle("n", (claims.jobs[0].lease.seq,)))
    await engine.forwarder.drain("copies")


def seen(engine: Engine) -> dict[str, Any]:
    """All that replay must bring back."""
    states = [writer.partition.state() for writer in engine.writers]
    topics = {
        topic.name: topic._replace(now_ms=0, reserved_seq=0)
        for state in states
        for topic in state.topics
        if topic.name != "e"
    }
    queues = {name: queue for state in states for name, queue in state.queues}
    return {"topics": topics, "queues": queues, "routers": list(engine.registry.routers)}


@pytest.mark.parametrize("store", ["segment", "sqlite", "rocksdb"])
@on_a_loop
async def test_what_was_compacted_comes_back_with_what_came_later(
    tmp_path: Path, store: str
) -> None:
    async with node(tmp_path, store=store) as engine:
        await fill(engine)
        assert await engine.compact() == PARTITIONS
        await fill(engine, 30)
        expected = seen(engine)
        copies = await drained(engine, "copies")
    async with node(tmp_path, store=store) as engine:
        assert seen(engine) == expected
        assert await drained(engine, "copies") == copies
        assert len(engine.recovery.indexes) == PARTITIONS
        again = await write(engine, "q", 1, idempotency_key='"k1"')
        assert again.deduped
        assert again.first_seq == 2


@on_a_loop
async def test_two_snapshots_are_kept_and_the_log_since_the_older(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        assert engine.snapshots is not None
        older = dict.fromkeys(range(PARTITIONS), 0)
        for round_number in range(4):
            await fill(engine, 30 * round_number)
            await engine.compact()
            for number in range(PARTITIONS):
                bounds = engine.journal.bounds(number)
                assert bounds.boundary_index == older[number]
                indexes = [each.index for each in engine.snapshots.found(number)]
                assert indexes == [bounds.last_index, older[number]][: 1 + (round_number > 0)]
                older[number] = bounds.last_index
        expected = seen(engine)
        assert await engine.compact() == 0
    async with node(tmp_path) as engine:
        assert seen(engine) == expected
        assert engine.recovery.log_bytes == 0


@on_a_loop
async def test_a_log_that_grew_is_compacted_unasked(tmp_path: Path) -> None:
    async with node(tmp_path, compact_bytes_min=10_000) as engine:
        assert engine.snapshotter is not None
        while engine.snapshotter.log_bytes < 10_000:
            await write(engine, "a", 0, 100)
        await until(lambda: engine.snapshotter.view()["done_total"] == 1)
        assert engine.snapshotter.view()["error"] is None
        assert engine.snapshotter.log_bytes < 10_000


@on_a_loop
async def test_a_busy_loop_lets_the_log_grow_four_times_as_much(tmp_path: Path) -> None:
    async with node(tmp_path, compact_bytes_min=10_000) as engine:
        compaction = engine.snapshotter
        compaction.stop()  # only this test looks whether it is due
        while compaction.log_bytes < 15_000:
            await fill(engine)
        compaction.set_busy(0.9)
        assert compaction.view()["due_bytes"] == 40_000
        assert not compaction.is_due
        compaction.set_busy(0.5)
        assert compaction.view()["due_bytes"] == 10_000
        assert compaction.is_due
        while compaction.log_bytes <= 40_000:
            await fill(engine)
        compaction.set_busy(0.9)
        assert compaction.is_due


@on_a_loop
async def test_at_an_orderly_end_a_snapshot_is_taken_if_it_is_worth_it(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        await write(engine, "a", 0, 10)
    async with node(tmp_path) as engine:
        assert engine.recovery.log_bytes > 0
        assert not engine.recovery.indexes
        for number in range(5):
            await write(engine, "a", 10_000 * number, 10_000)
    async with node(tmp_path) as engine:
        assert engine.recovery.log_bytes == 0
        assert engine.registry.topics["a"].count == 50_010


@on_a_loop
async def test_writes_and_reads_go_on_while_a_snapshot_is_made(tmp_path: Path) -> None:
    async with node(tmp_path) as engine:
        await write(engine, "a", 0, 1_000)
        task = asyncio.ensure_future(engine.compact())
        number = 1_000
        while not task.done():
            await write(engine, "a", number)
            number += 1
        await task
        assert await drained(engine, "a", limit=1_000) == list(range(number))
    async with node(tmp_path) as engine:
        assert await drained(engine, "a", limit=1_000) == list(range(number))


@on_a_loop
async def test_a_snapshot_worker_that_dies_changes_nothing_and_is_seen(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await fill(engine)
        task = asyncio.ensure_future(engine.compact())
        compaction = engine.snapshotter
        assert compaction is not None
        await until(lambda: compaction._process is not None)
        compaction._process.kill()
        with pytest.raises(CompactionFailed):
            await task
        view = scheduler_view(engine)["compaction"]
        assert view["failures"] == 1
        assert "snapshot worker" in view["error"]
        assert await engine.compact() > 0
        assert scheduler_view(engine)["compaction"]["error"] is None


@on_a_loop
async def test_who_stops_a_compaction_that_waits_for_its_first_sync_is_heard(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await fill(engine)
        task = asyncio.ensure_future(engine.compact())
        await asyncio.sleep(0)
        assert engine.snapshotter is not None
        assert engine.snapshotter._process is None, "it must not have come further than the sync"
        engine.snapshotter.stop()
        with pytest.raises(CompactionFailed, match="the node is shutting down"):
            await task


@pytest.mark.parametrize("harm", ["spoil", "cut", "empty", "delete"])
@on_a_loop
async def test_a_damaged_snapshot_is_told_and_the_one_before_and_the_log_used(
    tmp_path: Path, harm: str
) -> None:
    async with node(tmp_path, end_well=False) as engine:
        for first in (0, 30, 60):
            await fill(engine, first)
            await engine.compact()
        await fill(engine, 90)
        expected = seen(engine)
        assert engine.snapshots is not None
        newest = engine.snapshots.found(0)[0].path
    HARMS[harm](newest)
    async with node(tmp_path, end_well=False) as engine:
        assert seen(engine) == expected
        told = [] if harm == "delete" else [str(newest)]
        assert engine.recovery.damaged_snapshots == told
        assert scheduler_view(engine)["storage"]["damaged_snapshots"] == len(told)
        assert engine.snapshotter is not None
        if told:  # a new one is made at once: two whole ones again
            await until(lambda: engine.snapshotter.view()["done_total"] == 1)
            await engine.snapshotter.lock.acquire()
            whole = [each.path for each in engine.snapshots.found(0)]
            assert len(whole) == 2
            assert newest not in whole
            for path in whole:
                verify_snapshot(path)
            engine.snapshotter.lock.release()
        expected = seen(engine)
    async with node(tmp_path) as engine:
        assert seen(engine) == expected
        assert engine.recovery.damaged_snapshots == []


@on_a_loop
async def test_a_partition_stops_alone_when_both_its_snapshots_are_damaged(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        for first in (0, 30):
            await fill(engine, first)
            await engine.compact()
        assert engine.snapshots is not None
        paths = [each.path for each in engine.snapshots.found(0)]
    for path in paths:
        spoil(path)
    for _ in range(2):  # and nothing that a salvage could use is removed meanwhile
        async with node(tmp_path) as engine:
            failed = [each for each in engine.partitions() if each.phase is Phase.FAILED]
            assert [each.partition for each in failed] == [0]
            assert all(path.name in str(failed[0].reason) for path in paths)
            assert engine.registry.topics, "the others serve"
            for writer in engine.writers:
                assert not writer.is_out_of_service or not writer.partition.topics
            await engine.compact()
            with pytest.raises(PartitionFailed, match="partition 0 is out of service"):
                await engine.backup(tmp_path / "backup")
    assert all(path.exists() for path in paths)


@on_a_loop
async def test_a_log_that_ends_before_a_snapshot_of_it_stops_the_node(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        await fill(engine)
        await engine.compact()
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(Corrupt, match="the end of the log of partition 0 is lost"):
        async with node(tmp_path):
            raise AssertionError("it must not open")


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


HARMS: dict[str, Callable[[Path], object]] = {
    "spoil": spoil,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "delete": Path.unlink,
}


@on_a_loop
async def test_leases_that_need_not_survive_any_more_are_over_after_a_restart(
    tmp_path: Path,
) -> None:
    for compacts in (False, True):
        directory = tmp_path / str(compacts)
        async with node(directory, end_well=False) as engine:
            await engine.put_topic("q", {"type": "queue", "leases_durable": True})
            await write(engine, "q", 0, 3)
            await engine.queues.claim("q", ClaimRequest("n", 3, 600_000))
            await engine.put_topic("q", {"leases_durable": False})
            await engine.queues.nack("q", Settle("n", (1,)), 0)
            if compacts:
                await engine.compact()
        async with node(directory) as engine:
            claims = await engine.queues.claim("q", ClaimRequest("m", 9))
            assert [job.lease.seq for job in claims.jobs] == [1, 2, 3]
