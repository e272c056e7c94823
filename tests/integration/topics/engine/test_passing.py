"""Time passes where nothing is written: when it matters, and not otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.kernel.system import SystemClock
from penstock.protocol.errors import Throttled
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.codec import decode_entries
from penstock.topics.core.entries import Passed
from penstock.topics.core.leases import ClaimRequest
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.record_row import HOT_SLOT_BYTES
from penstock.topics.engine.engine import NOTICE_MS, Engine
from penstock.topics.engine.options import EngineOptions
from penstock.topics.engine.passing import LEAVING_BYTES_MIN
from tests.integration.topics.engines import write
from tests.integration.topics.gated import GatedStore
from tests.integration.topics.node import on_a_loop

TTL_MS = 60_000


class MovedClock(SystemClock):
    """The clock of the system, ahead by as much as a test wants."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@asynccontextmanager
async def quiet_engine(**options: Any) -> AsyncIterator[tuple[Engine, MovedClock]]:
    """An engine that looks for what is due only when the test says so."""
    clock = MovedClock()
    engine = Engine(GatedStore(), EngineOptions(partitions=1, **options), clock=clock)
    await engine.open()
    engine.passing.stop()
    try:
        yield engine, clock
    finally:
        await engine.close()


async def passed(engine: Engine) -> int:
    """How many entries were proposed by one look."""
    before = engine.journal.committed(0)
    engine.passing.look()
    await engine.writer("t").settled()
    payloads = [entry.payload for entry in engine.journal.entries(0, before + 1, before + 9)]
    found = [entry for payload in payloads for entry in decode_entries(payload)]
    assert all(isinstance(entry, Passed) for entry in found)
    return len(found)


@pytest.mark.parametrize("missing_bytes", [0, 1])
@on_a_loop
async def test_a_mebibyte_of_old_records_leaves_though_no_one_looks(missing_bytes: int) -> None:
    async with quiet_engine() as (engine, clock):
        await engine.put_topic("t", {"ttl_ms": TTL_MS})
        size_bytes = LEAVING_BYTES_MIN // 2 - HOT_SLOT_BYTES
        await write(engine, "t", "x" * (size_bytes - 2))
        await write(engine, "t", "x" * (size_bytes - 2 - missing_bytes))
        assert await passed(engine) == 0, "nothing is too old"
        clock.ahead_ms = TTL_MS + 1_000
        assert await passed(engine) == (0 if missing_bytes else 1)
        assert engine.topic("t").count == (2 if missing_bytes else 0)
        assert await passed(engine) == 0, "nothing is left that is due"


@on_a_loop
async def test_a_record_leaves_soon_after_its_topic_was_read() -> None:
    async with quiet_engine() as (engine, clock):
        await engine.put_topic("t", {"ttl_ms": TTL_MS})
        await write(engine, "t", 1)
        clock.ahead_ms = TTL_MS + 1_000
        assert await passed(engine) == 0, "it was never read"
        assert (await engine.diff("t", ReadRequest())).records == []
        assert engine.topic("t").count == 1, "a read changes nothing"
        clock.ahead_ms += NOTICE_MS
        assert await passed(engine) == 0, "that was a while ago"
        await engine.diff("t", ReadRequest())
        assert await passed(engine) == 1
        assert (engine.topic("t").count, engine.topic("t").floors.expired) == (0, 1)


@on_a_loop
async def test_a_lease_that_has_ended_is_returned_where_jobs_are_watched() -> None:
    async with quiet_engine() as (engine, clock):
        await engine.put_topic("t", {"type": "queue", "leases_durable": True})
        await write(engine, "t", 1)
        await engine.queues.claim("t", ClaimRequest("n", 1, 60_000))
        clock.ahead_ms = 61_000
        assert await passed(engine) == 0
        engine.watchers.listen("t", lambda _topic: None)
        assert await passed(engine) == 1
        assert engine.writer("t").partition.queues["t"].in_flight == 0
        assert await passed(engine) == 0


@on_a_loop
async def test_a_full_node_has_room_again_when_old_records_have_left() -> None:
    async with quiet_engine(limits=TopicLimits(total_bytes_max=10)) as (engine, clock):
        await engine.put_topic("t", {"ttl_ms": TTL_MS})
        await write(engine, "t", 12345678)
        clock.ahead_ms = TTL_MS + 1_000
        assert await passed(engine) == 0
        with pytest.raises(Throttled):
            await write(engine, "other", 12345678)
        assert await passed(engine) == 1
        await write(engine, "other", 12345678)


@on_a_loop
async def test_nothing_is_proposed_while_an_exclusive_command_runs() -> None:
    async with quiet_engine() as (engine, clock):
        await engine.put_topic("t", {"ttl_ms": TTL_MS})
        await write(engine, "t", 1)
        clock.ahead_ms = TTL_MS + 1_000
        await engine.diff("t", ReadRequest())
        async with engine.writer("t").exclusive():
            engine.passing.look()
            assert engine.writer("t").is_idle
        assert await passed(engine) == 1
