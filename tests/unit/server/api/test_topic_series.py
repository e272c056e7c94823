"""How busy a topic was: which topics are followed, what is counted, and the route that shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from penstock.kernel.units import MIB
from penstock.protocol import history
from penstock.server.api import topic_series
from penstock.server.api.topic_series import BUSY_MS, LOOKED_MS, TopicSeries
from penstock.testing import ManualClock
from tests.unit.server.fakes import Client, serving
from tests.waiting import until

LIMIT = 2


def on(test: Callable[[Client, TopicSeries], Awaitable[None]], **options: object) -> None:
    """A server whose clock stands still until it is advanced."""

    async def scenario() -> None:
        async with serving(**options) as client:
            client.application.context.sampler.stop()
            await test(client, client.application.context.topic_series)

    asyncio.run(asyncio.wait_for(scenario(), 30))


def now_ms(client: Client) -> int:
    return client.application.context.clock.now_ms()


def clock_of(client: Client) -> ManualClock:
    clock = client.application.context.clock
    assert isinstance(clock, ManualClock)
    return clock


def of(series: TopicSeries, name: str) -> dict[str, list[float | None]]:
    return series.history(name, "1s", 0).columns


def test_a_busy_topic_has_a_history_before_it_is_looked_at() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("t", 1)
        at_ms = now_ms(client)
        series.sample(at_ms)
        await client.write("t", 2, 3, 4)
        series.sample(at_ms + 2_000)
        found = series.history("t", "1s", 0)
        assert found.t == [at_ms + 2_000]
        assert found.columns == {"in": [1.5], "out": [0.0], "push_p99_ms": [None]}

    on(test)


def test_a_topic_at_rest_is_followed_from_the_first_look() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        clock = clock_of(client)
        await client.write("t", 1)
        clock.advance(2 * BUSY_MS)
        series.sample(now_ms(client))
        assert series.size_bytes == 0
        assert of(series, "t") == {"in": [], "out": [], "push_p99_ms": []}
        series.sample(now_ms(client) + 1_000)
        assert of(series, "t") == {"in": [0.0], "out": [0.0], "push_p99_ms": [None]}

    on(test, clock=ManualClock(now_ms=time.time_ns() // 1_000_000))


def test_how_late_pushes_are_is_told_of_each_topic_by_itself() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        clock = clock_of(client)
        await client.write("quick", 1)
        await client.write("slow", 1)
        quick, _ = await client.watch(topics={"quick": {}})
        slow, _ = await client.watch(topics={"slow": {}})
        await until(lambda: all(stream.events() for stream in (quick, slow)))
        for name in ("quick", "slow"):
            of(series, name)
        clock.advance(1_000)
        slow.room = 0
        await client.write("quick", 2)
        await client.write("slow", 2)
        await until(lambda: b'"data":2' in quick.text)
        clock.advance(400)
        slow.read(None)
        await until(lambda: b'"data":2' in slow.text)
        series.sample(now_ms(client))
        [quick_ms], [slow_ms] = (of(series, name)["push_p99_ms"] for name in ("quick", "slow"))
        assert quick_ms == 0
        assert slow_ms == pytest.approx(400, rel=0.07)
        clock.advance(1_000)
        series.sample(now_ms(client))
        assert of(series, "slow")["push_p99_ms"][1:] == [None], "nothing was pushed"

    on(test, engine_clock=ManualClock(now_ms=time.time_ns() // 1_000_000))


def test_what_was_written_before_a_watcher_came_was_not_late_for_it() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("t", 1)
        of(series, "t")
        clock_of(client).advance(5_000)
        stream, _ = await client.watch(topics={"t": {"from_seq": 0}})
        await until(lambda: b'"data":1' in stream.text)
        series.sample(now_ms(client))
        assert of(series, "t") == {"in": [0.0], "out": [0.2], "push_p99_ms": [None]}

    on(test, engine_clock=ManualClock(now_ms=time.time_ns() // 1_000_000))


def test_pushes_are_measured_only_while_a_topic_is_looked_at() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("t", 1)
        topic = client.engine.topic("t")
        series.sample(now_ms(client))
        assert topic.push_ms is None, "it is followed because it is busy"
        of(series, "t")
        assert topic.push_ms is not None
        clock_of(client).advance(LOOKED_MS + 1_000)
        series.sample(now_ms(client))
        assert topic.push_ms is None

    on(test, engine_clock=ManualClock(now_ms=time.time_ns() // 1_000_000))


def test_of_a_queue_the_jobs_are_counted_by_state() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("jobs", 1, 2, 3, config={"type": "queue"})
        of(series, "jobs")
        await client.ask("POST", "/v0/topics/jobs/claim", {"node": "n", "max": 2})
        series.sample(now_ms(client) + 1_000)
        found = of(series, "jobs")
        assert (found["ready"], found["leased"]) == ([1.0], [2.0])

    on(test)


def test_a_topic_that_was_removed_or_made_again_begins_anew() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("t", 1)
        of(series, "t")
        series.sample(now_ms(client) + 1_000)
        await client.ask("DELETE", "/v0/topics/t")
        await client.write("t", 1)
        assert of(series, "t") == {"in": [], "out": [], "push_p99_ms": []}
        await client.ask("DELETE", "/v0/topics/t")
        series.sample(now_ms(client) + 2_000)
        assert series.size_bytes == 0

    on(test)


def test_a_look_takes_the_place_of_what_nobody_looks_at_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_series, "TOPICS_FOLLOWED", LIMIT)

    async def test(client: Client, series: TopicSeries) -> None:
        clock = clock_of(client)
        for name in ("a", "b", "c"):
            await client.write(name, 1)
        series.sample(now_ms(client))
        full_bytes, shown = series.size_bytes, {"in", "out", "push_p99_ms"}
        assert set(of(series, "c")) == shown, "in place of one that is busy"
        assert set(of(series, "b")) == shown
        assert of(series, "a") == {}, "both are looked at"
        assert series.size_bytes == full_bytes
        clock.advance(LOOKED_MS)
        assert set(of(series, "a")) == shown

    on(test, clock=ManualClock(now_ms=time.time_ns() // 1_000_000))


def test_a_busy_topic_takes_the_place_of_one_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_series, "TOPICS_FOLLOWED", 1)

    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("a", 1)
        written_ms = client.engine.topic("a").last_write_ms or 0
        series.sample(written_ms)
        await until(lambda: client.engine.clock.now_ms() > written_ms)
        await client.write("b", 1)
        at_rest_ms = written_ms + BUSY_MS
        series.sample(at_rest_ms)
        series.sample(at_rest_ms + 1_000)
        assert series.history("b", "1s", 0).t == [at_rest_ms + 1_000]

    on(test)


def test_of_very_many_topics_a_few_are_followed_in_little_memory() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        for number in range(history.TOPICS_FOLLOWED + 8):
            await client.write(f"t{number}", 1)
        series.sample(now_ms(client))
        assert 0 < series.size_bytes <= 5 * MIB

    on(test)


def test_the_route_tells_columns_and_only_of_topics_that_are_there() -> None:
    async def test(client: Client, series: TopicSeries) -> None:
        await client.write("t", 1)
        path = "/v0/topics/t/history"
        assert (await client.ask("GET", path)).json["t"] == []
        series.sample(now_ms(client) + 1_000)
        found = (await client.ask("GET", path)).json
        assert (found["step"], len(found["t"]), len(found["in"])) == ("1s", 1, 1)
        later = (await client.ask("GET", f"{path}?since={found['t'][0]}")).json
        assert later["t"] == []
        by_minute = (await client.ask("GET", f"{path}?step=1m")).json
        assert set(by_minute) >= {"in", "in_min", "in_max", "out"}
        assert (await client.ask("GET", "/v0/topics/none/history")).status == 404
        assert (await client.ask("GET", f"{path}?step=5s")).status == 400

    on(test)
