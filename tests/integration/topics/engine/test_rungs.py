"""The ladder of pressure, rung by rung: what changes, and that nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.protocol.errors import Saturated
from penstock.topics.core.batch import parse_write
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.router import RouterConfig
from penstock.topics.engine.engine import Engine
from penstock.topics.engine.views import scheduler_view
from tests.integration.topics.engines import body, data, engine_on, records, write
from tests.integration.topics.gated import GatedStore
from tests.waiting import until

TOPICS = {"low": {"priority": -5}, "plain": {}, "high": {"priority": 900}}
PRESSURES = {"steady": 0.0, "coalesce": 0.3, "widen": 0.5, "defer": 0.9}


class Watcher:
    """Follows a topic from its cursor and keeps what it gets, push by push."""

    def __init__(self, engine: Engine, topic: str) -> None:
        self.engine, self.topic = engine, topic
        self.cursor = 0
        self.got: list[bytes] = []
        self.pushes = 0
        engine.watchers.listen(topic, self.push)

    def push(self, _topic: str) -> None:
        diff = self.engine.read(self.topic, ReadRequest(self.cursor, limit=1000))
        assert [slot.seq for slot in diff.records] == list(
            range(self.cursor + 1, diff.next_from_seq + 1)
        )
        self.cursor = diff.next_from_seq
        self.got += records(diff)
        self.pushes += bool(diff.records)


def under(pressure: float, script: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with engine_on(partitions=2, **options) as engine:
            for name, config in TOPICS.items():
                await engine.put_topic(name, config)
            await engine.routers.put(RouterConfig("r", "plain", "copy"))
            for _ in range(3):  # deferral begins with the third hot sample
                engine.turns.force_pressure(pressure)
            return await script(engine)

    return asyncio.run(main())


async def load(engine: Engine) -> dict[str, Watcher]:
    watchers = {name: Watcher(engine, name) for name in [*TOPICS, "copy"]}
    for number in range(30):
        await asyncio.gather(*(write(engine, name, number) for name in TOPICS))
    return watchers


@pytest.mark.parametrize("rung", PRESSURES)
def test_each_rung_delivers_the_same_records_in_the_same_order(rung: str) -> None:
    async def script(engine: Engine) -> None:
        assert engine.turns.rung.level.name.lower() == rung
        watchers = await load(engine)
        expected = [b"%d" % number for number in range(30)]
        for name in [*TOPICS, "copy"]:
            assert await data(engine, name) == expected, "whatever is pushed, all is pollable"
        engine.turns.force_pressure(None)
        for watcher in watchers.values():
            await until(lambda watcher=watcher: watcher.cursor == 30)  # type: ignore[misc]
            assert watcher.got == expected

    under(PRESSURES[rung], script)


def test_coalescing_carries_more_in_a_push() -> None:
    async def script(engine: Engine) -> int:
        watchers = await load(engine)
        await until(lambda: watchers["high"].cursor == 30)
        return watchers["high"].pushes

    assert under(0.7, script) < under(0.0, script)


def test_widening_sets_the_commit_window_of_the_log() -> None:
    async def script(engine: Engine) -> float:
        return float(scheduler_view(engine)["commit_window_ms"])

    assert under(0.0, script) == 0.5
    assert under(0.7, script) > 0.5


def test_a_topic_of_negative_priority_is_paused_and_says_why_and_is_pushed_later() -> None:
    async def script(engine: Engine) -> None:
        watchers = await load(engine)
        await until(lambda: all(watchers[name].cursor == 30 for name in ("plain", "high", "copy")))
        assert watchers["low"].cursor == 0
        shown = scheduler_view(engine, "low")
        assert shown["deferring"]
        assert shown["bands"][0]["paused"]
        assert "deferred" in shown["topic"]["reason"]
        assert shown["topic"]["standing"] == "waiting"
        assert len(await data(engine, "low")) == 30
        engine.turns.force_pressure(0.7)  # hysteresis: not released above 0.6
        assert engine.turns.rung.deferring
        await asyncio.sleep(0.05)
        assert watchers["low"].cursor == 0
        engine.turns.force_pressure(0.5)
        await until(lambda: watchers["low"].cursor == 30)

    under(0.9, script)


def test_a_log_that_takes_too_long_refuses_a_write_unless_it_says_otherwise() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1, log_wait_ms_max=150) as engine:
            await engine.put_topic("t", {})
            store.shut()
            filling = asyncio.create_task(write(engine, "t", "x" * 1_000))
            await until(lambda: engine.turns.rung.refusing)
            with pytest.raises(Saturated) as refused:
                await write(engine, "t", 1)
            wait_ms = refused.value.detail["retry_after_ms"]
            assert wait_ms > 150
            assert set(refused.value.detail) == {"retry_after_ms"}
            assert scheduler_view(engine)["drain_ms"] >= 150
            insisting = engine.append("t", parse_write(body(2, disable_backpressure=True)))
            taken = asyncio.create_task(insisting)
            await until(lambda: engine.writer("t").waiting_bytes > 1_100)
            store.open()
            assert (await filling).first_seq == 1
            assert (await taken).first_seq == 2
            await until(lambda: not engine.turns.rung.refusing)
            assert (await write(engine, "t", 3)).first_seq == 3
            assert len(await data(engine, "t")) == 3

    asyncio.run(main())


def test_without_a_limit_in_time_no_write_is_refused_for_it() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1, log_wait_ms_max=0) as engine:
            await engine.put_topic("t", {})
            store.shut()
            first = asyncio.create_task(write(engine, "t", 1))
            await until(lambda: scheduler_view(engine)["drain_ms"] > 200)
            second = asyncio.create_task(write(engine, "t", 2))
            await until(lambda: engine.writer("t").partition.topics["t"].next_seq == 3)
            store.open()
            assert [(await first).first_seq, (await second).first_seq] == [1, 2]

    asyncio.run(main())


def test_the_limit_in_bytes_names_itself_and_is_not_lifted_by_disable_backpressure() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1, waiting_bytes_max=20_000) as engine:
            await engine.put_topic("t", {})
            store.shut()
            outcomes: list[Any] = []
            large = parse_write(body("x" * 15_000))
            engine.write("t", large, outcomes.append)
            engine.write("t", large, outcomes.append)
            assert not outcomes, "both fit: it is what waits already that is looked at"
            insisting = parse_write(body(1, disable_backpressure=True))
            engine.write("t", insisting, outcomes.append)
            (refused,) = outcomes
            assert isinstance(refused, Saturated)
            assert refused.detail["limit"] == "max_waiting_bytes"
            assert refused.detail["retry_after_ms"] >= 1
            assert "disable_backpressure does not lift" in refused.message
            store.open()
            await until(lambda: len(outcomes) == 3)
            assert engine.waiting_bytes == engine.writer("t").waiting_bytes == 0

    asyncio.run(main())


def test_a_log_that_fails_leaves_nothing_that_is_counted_as_waiting() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1) as engine:
            await engine.put_topic("t", {})
            store.shut()
            outcomes: list[Any] = []
            engine.write("t", parse_write(body("x" * 1_000)), outcomes.append)
            await until(lambda: engine.writer("t").waiting_bytes > 1_000)
            engine.write("t", parse_write(body("x" * 1_000)), outcomes.append)
            store.failures.append(OSError("the disk is gone"))
            store.open()
            await until(lambda: len(outcomes) == 2)
            assert all(isinstance(outcome, Exception) for outcome in outcomes)
            assert engine.waiting_bytes == engine.writer("t").waiting_bytes == 0

    asyncio.run(main())


def test_writes_behind_an_exclusive_command_count_as_waiting_until_they_run() -> None:
    async def main() -> None:
        store = GatedStore()
        async with engine_on(store, partitions=1, waiting_bytes_max=10_000) as engine:
            await engine.put_topic("t", {})
            writer = engine.writer("t")
            store.shut()
            making = asyncio.create_task(engine.put_topic("other", {}))
            await until(lambda: writer.waiting_bytes > 0)
            outcomes: list[Any] = []
            large = parse_write(body("x" * 1_000))
            for _ in range(20):
                engine.write("t", large, outcomes.append)
            insisting = parse_write(body(1, disable_backpressure=True))
            engine.write("t", insisting, outcomes.append)  # of the pressure, not of the memory
            refused = outcomes.copy()
            store.open()
            await making
            await until(lambda: len(outcomes) == 21)
            assert len(refused) == 11
            assert all(isinstance(outcome, Saturated) for outcome in refused)
            assert [outcome.first_seq for outcome in outcomes[11:]] == [*range(1, 11)]
            assert writer.waiting_bytes == 0

    asyncio.run(main())


def test_real_load_raises_the_pressure_and_its_end_lowers_it() -> None:
    """A watcher that is slow to serve makes topics wait; nothing of theirs is lost meanwhile."""

    async def main() -> None:
        async with engine_on(partitions=2) as engine:
            watchers = []
            for number in range(40):
                name = f"t{number}"
                await engine.put_topic(name, {})
                watchers.append(Watcher(engine, name))
                engine.watchers.listen(name, lambda _topic: burn(0.002))
            highest = 0.0
            sent = 0
            while highest <= 0.2 and sent < 400:
                await asyncio.gather(*(write(engine, f"t{n}", sent) for n in range(40)))
                sent += 1
                highest = max(highest, engine.turns.rung.pressure)
            assert highest > 0.2
            await until(lambda: all(watcher.cursor == sent for watcher in watchers))
            await until(lambda: engine.turns.rung.pressure < 0.2)
            expected = [b"%d" % number for number in range(sent)]
            assert all(watcher.got == expected for watcher in watchers)

    asyncio.run(main())


def burn(span_s: float) -> None:
    """Keep the loop busy, as a watcher with much to encode would."""
    until_s = asyncio.get_running_loop().time() + span_s
    while asyncio.get_running_loop().time() < until_s:
        pass
