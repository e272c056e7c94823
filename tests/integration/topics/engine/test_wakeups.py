"""No wake-up is missed: whoever begins to wait at any instant has the next record at once."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.testing import seeded, seeds
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from tests.integration.topics.engines import engine_on, write

POLL_MS = 30_000
RUNS_OF_A_SEED = 1_000


@pytest.mark.parametrize("seed", seeds(6))
def test_a_long_poll_that_begins_at_any_instant_gets_the_next_record(seed: int) -> None:
    """`PENSTOCK_RUNS=1000` makes a million races of this."""

    async def main(random: Random) -> None:
        async with engine_on(partitions=2) as engine:
            await engine.put_topic("t", {"durability": random.choice(["fsync", "disk"])})
            await engine.routers.put(RouterConfig("r", "t", "copy"))
            for number in range(RUNS_OF_A_SEED):
                await race(engine, random, number)

    with seeded(seed) as random:
        asyncio.run(main(random))


async def race(engine: Engine, random: Random, seen: int) -> None:
    """One write and one poll, each begun after a few turns of the loop, in any order."""
    topic = random.choice(["t", "copy"])

    async def poll() -> int:
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        diff = await engine.diff(topic, ReadRequest(from_seq=seen, wait_ms=POLL_MS))
        assert diff.records, "the poll ended by its time, not by the record"
        assert diff.caught_up == (diff.next_from_seq == diff.head_seq)
        return diff.records[0].seq

    async def append() -> None:
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        await write(engine, "t", seen)

    found, _ = await asyncio.wait_for(asyncio.gather(poll(), append()), POLL_MS / 1e3 - 1)
    assert found == seen + 1


@pytest.mark.parametrize("seed", seeds(4))
def test_watchers_that_come_and_go_see_every_record_in_order(seed: int) -> None:
    async def main(random: Random) -> None:
        async with engine_on(partitions=2) as engine:
            await engine.put_topic("t", {})
            total = 300

            async def watch() -> None:
                cursor = 0
                while cursor < total:
                    wait_ms = random.choice([0, 1, POLL_MS])
                    request = ReadRequest(cursor, limit=random.randrange(1, 40), wait_ms=wait_ms)
                    diff = await engine.diff("t", request)
                    assert [slot.seq for slot in diff.records] == list(
                        range(cursor + 1, diff.next_from_seq + 1)
                    )
                    cursor = diff.next_from_seq
                    if random.random() < 0.3:
                        await asyncio.sleep(0)

            async def append() -> None:
                for number in range(total):
                    await write(engine, "t", number)
                    if random.random() < 0.2:
                        await asyncio.sleep(0)

            work = [watch() for _ in range(8)]
            await asyncio.wait_for(asyncio.gather(append(), *work), 60)

    with seeded(seed) as random:
        asyncio.run(main(random))
