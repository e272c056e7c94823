"""A limit on the records that memory holds: kept while writing, and nobody notices but memory."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from penstock.kernel.units import KIB
from penstock.protocol.errors import Throttled
from penstock.topics.core.batch import parse_write
from penstock.topics.core.leases import ClaimRequest
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.views import scheduler_view
from penstock.topics.persist import spill
from tests.integration.topics.node import SMALL, drained, node, on_a_loop, write
from tests.waiting import until

LIMIT = 64 * KIB


def counted(engine: Engine) -> int:
    """What the topics have in memory, one by one."""
    return sum(topic.row.hot_bytes for topic in engine.registry.topics.values())


@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
@on_a_loop
async def test_memory_holds_no_more_than_its_limit_while_topics_grow(
    tmp_path: Path, durability: str
) -> None:
    async with node(tmp_path, hot_bytes_max=LIMIT, end_well=False) as engine:
        for name in ("t", "u"):
            await engine.put_topic(name, {"durability": durability})
        most = 0
        for first in range(0, 10_000, 50):
            await write(engine, "t", first, 50)
            await write(engine, "u", first)
            most = max(most, engine.registry.hot_bytes)
        assert most <= engine.registry.refuse_bytes
        await until(lambda: engine.registry.hot_bytes <= LIMIT)
        assert engine.registry.hot_bytes == counted(engine)
        view = scheduler_view(engine)["storage"]
        assert view["hot_bytes_limit"] == LIMIT
        assert view["spilled_bytes"] > LIMIT
        assert await drained(engine, "t") == list(range(10_000))
        assert await drained(engine, "t", 9_321, limit=70) == list(range(9_321, 10_000))
        assert await drained(engine, "u") == list(range(0, 10_000, 50))
        assert not (tmp_path / "spill").exists() or not list((tmp_path / "spill").iterdir())


@on_a_loop
async def test_what_was_spilled_is_deleted_routed_claimed_and_sealed_like_any_other(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, hot_bytes_max=LIMIT, seal=SMALL, end_well=False) as engine:
        await engine.put_topic("q", {"type": "queue"})
        await engine.routers.put(RouterConfig("r", "t", "copies"))
        for first in range(0, 3_000, 50):
            await write(engine, "t", first, 50)
            await write(engine, "q", first, 50)
        await until(lambda: engine.registry.hot_bytes <= LIMIT)
        await until(lambda: engine.registry.topics["copies"].head_seq == 3_000)
        await engine.delete("t", match=Predicate("t7", prefix=False))
        wanted = [number for number in range(3_000) if number % 10 != 7]
        assert await drained(engine, "t") == wanted
        assert await drained(engine, "copies") == list(range(3_000))
        claims = await engine.queues.claim("q", ClaimRequest("n", 5))
        assert [int(bytes(job.slot.record.data)) for job in claims.jobs] == [0, 1, 2, 3, 4]
        await engine.compact()  # lasting files take the place of what was spilled
        blocks = engine.registry.topics["t"].row.cold.blocks
        assert not any(block.spill for block in blocks if block.last_seq <= 2_900)
        assert await drained(engine, "t") == wanted
        await write(engine, "t", 3_000)
        await engine.compact()
    async with node(tmp_path, hot_bytes_max=LIMIT, seal=SMALL) as engine:
        assert await drained(engine, "t") == [*wanted, 3_000]
        assert engine.registry.hot_bytes == counted(engine)


@on_a_loop
async def test_the_limit_holds_at_a_start_too(tmp_path: Path) -> None:
    async with node(tmp_path, end_well=False) as engine:
        for first in range(0, 20_000, 500):
            await write(engine, f"t{first % 3}", first, 500)
        assert engine.registry.hot_bytes > 10 * LIMIT
        expected = {name: await drained(engine, name) for name in engine.registry.topics}
    async with node(tmp_path, hot_bytes_max=LIMIT, end_well=False) as engine:
        assert engine.registry.hot_bytes <= LIMIT
        for name, numbers in expected.items():
            assert await drained(engine, name) == numbers


@on_a_loop
async def test_snapshots_keep_no_more_hot_than_memory_does(tmp_path: Path) -> None:
    async with node(tmp_path, hot_bytes_max=LIMIT, partitions=1) as engine:
        for first in range(300):
            body = b'{"records":[{"data":"%b"}]}' % (b"%04d" % first + b"x" * 3_000)
            await engine.append("t", parse_write(body))
        await engine.compact()
        assert engine.snapshots is not None
        (snapshot,) = engine.snapshots.all()
        assert snapshot.path.stat().st_size < LIMIT + 300 * KIB
        page = await engine.diff("t", ReadRequest())
        assert bytes(page.records[0].record.data).startswith(b'"0000xxx')


async def write_on(engine: Engine) -> None:
    """Write until that is refused."""
    for first in range(0, 1_000_000, 50):
        await write(engine, "t", first, 50)


@on_a_loop
async def test_writes_are_refused_while_the_disk_takes_nothing_and_go_on_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: spill.SpillFile, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill, "PASS_BYTES", 16 * KIB)
    monkeypatch.setattr(spill, "_RETRY_S", 0.01)
    async with node(tmp_path, hot_bytes_max=LIMIT) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(spill.SpillFile, "append", full)
            with pytest.raises(Throttled) as refused:
                await asyncio.wait_for(write_on(engine), 60)
            assert refused.value.detail == {"limit": "max_hot_bytes", "max": LIMIT}
            head = engine.registry.topics["t"].head_seq
        await until(lambda: engine.registry.hot_bytes <= LIMIT)  # by itself
        assert (await write(engine, "t", head)).last_seq == head + 1
        assert await drained(engine, "t") == list(range(head + 1))
