"""Topics with their rates, their readers and what their push waits for; in several orders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.protocol.answers import TopicPage, TopicState
from penstock.protocol.limits import PAGE_SIZE_MAX
from penstock.topics.engine import topic_views
from penstock.topics.engine.topic_views import TopicLists, TopicQuery, rates_of, show_topic
from tests.unit.server.fakes import Client, serving
from tests.waiting import until


def on(test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with serving(**options) as client:
            await test(client)

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def names(client: Client, query: str = "", **headers: str) -> list[str]:
    answer = await client.ask("GET", "/v0/topics" + query, **headers)
    assert answer.status == 200, answer.body
    return [row["topic"] for row in answer.json["topics"]]


def test_a_topic_tells_what_flows_and_who_watches() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1, 2, 3)
        stream, _ = await client.watch(topics={"t": {"from_seq": 0}})
        await until(lambda: len(stream.events()) >= 2)
        found = (await client.ask("GET", "/v0/topics/t")).json
        assert found["in_per_s"] > 0
        assert (found["type"], found["durability"], found["watchers"]) == ("log", "disk", 1)
        assert found["watchers_behind"] == 0
        assert found["band"] == "B3"  # it was touched just now: 500
        assert found["reason"].startswith("nothing to push")
        assert found["ready"] is found["in_flight"] is None
        assert "queue" not in found
        await client.write("t", 4)
        await until(lambda: len(stream.events()) >= 4)
        assert (await client.ask("GET", "/v0/topics/t")).json["out_per_s"] > 0
        assert (await client.ask("GET", "/v0/topics")).json["topics"][0]["in_per_s"] > 0

    on(test)


def test_a_watcher_that_does_not_read_is_behind_and_the_reason_says_so() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        await client.watch(room=1, topics={"t": {"from_seq": 0}})
        await until(lambda: client.engine.watchers.slow == 1)
        found = (await client.ask("GET", "/v0/topics/t")).json
        assert found["watchers_behind"] == 1
        assert found["reason"] == "watchers that do not read what they were sent: 1"
        await client.write("u", 1)
        await client.write("a", 1)
        assert await names(client, "?sort=behind") == ["t", "a", "u"]

    on(test)


def test_a_queue_counts_its_jobs_and_a_claim_is_output() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
        await client.write("q", 1, 2)
        await client.ask("GET", "/v0/topics/q")
        await client.ask("POST", "/v0/topics/q/claim", {"node": "w", "max": 1})
        found = (await client.ask("GET", "/v0/topics/q")).json
        assert (found["ready"], found["in_flight"]) == (1, 1)
        assert found["queue"] == {"ready": 1, "in_flight": 1, "dead_lettered": 0}
        assert client.engine.topic("q").out_records == 1

    on(test)


def test_what_is_read_counts_as_output_by_json_and_by_arrow() -> None:
    async def test(client: Client) -> None:
        await client.write("t", *range(10))
        await client.ask("POST", "/v0/topics/t/diff", {"limit": 4})
        assert client.engine.topic("t").out_records == 4
        accept = "application/vnd.apache.arrow.stream"
        await client.ask("POST", "/v0/topics/t/diff", {}, accept=accept)
        assert client.engine.topic("t").out_records == 14

    on(test)


def test_orders_by_rate_and_bytes_and_idle_topics_behind_by_name() -> None:
    async def test(client: Client) -> None:
        await client.write("c", 1)
        await client.write("b", "x" * 1_000)
        await client.write("a", *range(50))
        await client.ask("PUT", "/v0/topics/z", {})
        await client.ask("PUT", "/v0/topics/y", {})
        assert await names(client, "?sort=rate&page_size=1") == ["a"]
        assert await names(client, "?sort=bytes") == ["b", "a", "c", "y", "z"]
        assert await names(client, "?sort=bytes&prefix=c") == ["c"]
        assert await names(client) == ["a", "b", "c", "y", "z"]

    on(test)


def test_only_topics_of_a_type_and_more_of_them_on_the_next_page() -> None:
    async def test(client: Client) -> None:
        for number in range(4):
            await client.ask("PUT", f"/v0/topics/q{number}", {"type": "queue"})
            await client.write(f"t{number}", 1)
        assert await names(client, "?type=queue") == ["q0", "q1", "q2", "q3"]
        assert await names(client, "?type=space") == []
        first = (await client.ask("GET", "/v0/topics?type=log&page_size=3")).json
        rest = await names(client, f"?type=log&cursor={first['next_cursor']}")
        assert rest == ["t3"]
        assert (await client.ask("GET", "/v0/topics?sort=size")).status == 400
        assert (await client.ask("GET", "/v0/topics?type=file")).status == 400

    on(test)


def test_the_servers_own_topics_are_shown_only_to_who_names_them() -> None:
    async def test(client: Client) -> None:
        await client.write("penstock.events", 1)
        await client.write("p", 1)
        assert await names(client) == ["p"]
        assert await names(client, "?prefix=pen") == []
        assert await names(client, "?prefix=penstock.") == ["penstock.events"]
        for sort in ("rate", "bytes"):
            assert await names(client, f"?sort={sort}") == ["p"]

    on(test)


def test_the_servers_own_topics_count_in_no_total() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        await client.write("penstock.parts.a.b", 1, 2)
        found = (await client.ask("GET", "/v0/metrics", accept="application/json")).json
        assert (found["topics"], found["records_live"], found["bytes_live"]) == (1, 1, 1)
        assert (found["topics_disk"], found["topics_ephemeral"]) == (1, 0)
        assert (await client.ask("GET", "/v0/ready")).json["topics"] == 1
        shown = (await client.ask("GET", "/v0/metrics?topics=true")).body
        assert b"penstock.parts" not in shown
        shown = (await client.ask("GET", "/v0/metrics?topics=true&prefix=penstock.")).body
        assert b'topic="penstock.parts.a.b"' in shown

    on(test)


def test_a_key_with_prefixes_sees_its_own_in_every_order() -> None:
    async def test(client: Client) -> None:
        root, app = "Bearer root", "Bearer app"
        for name in ("app.a", "other"):
            body = {"records": [{"data": 1}]}
            await client.ask("POST", f"/v0/topics/{name}", body, authorization=root)
        for sort in ("name", "rate", "bytes", "behind"):
            assert await names(client, f"?sort={sort}", authorization=root) == ["app.a", "other"]
            assert await names(client, f"?sort={sort}", authorization=app) == ["app.a"]

    on(test, keys="root,app:read:app.")


def test_a_page_over_very_many_names_is_found_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_views, "NAMES_A_SLICE", 3)

    async def test(client: Client) -> None:
        for number in range(20):
            await client.write(f"t{number:02}", 1)
        await client.ask("PUT", "/v0/topics/t99", {"type": "queue"})
        assert await names(client, "?type=queue") == ["t99"]
        assert len(await names(client)) == 21
        assert len(await names(client, "?sort=behind")) == 21

    on(test)


def test_an_order_is_kept_for_a_while_and_its_numbers_are_fresh() -> None:
    async def test(client: Client) -> None:
        lists, engine = TopicLists(client.engine), client.engine
        await client.write("a", 1)
        query = TopicQuery(sort="bytes", page_size=PAGE_SIZE_MAX)
        assert [row.topic for row in (await lists.page(query))[0]] == ["a"]
        await client.write("b", "long" * 99)
        await client.write("a", 2)
        (row,), _ = await lists.page(query)  # the order of before, for at least a second
        assert (row.topic, row.count) == ("a", 2)
        await engine.routers.drop_topic("a")
        assert (await lists.page(query))[0] == []

    on(test)


def test_a_topic_that_rests_gets_no_rates_when_all_are_ordered() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/topics/t", {})
        await TopicLists(client.engine).page(TopicQuery(sort="rate", page_size=1, prefix="t"))
        topic = client.engine.topic("t")
        assert rates_of(topic, client.engine.clock.now_ms()) == (0.0, 0.0)

    on(test)


def test_one_function_gives_what_the_route_answers() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        state = await show_topic(client.engine, "t", touch=False)
        assert isinstance(state, TopicState)
        shown = (await client.ask("GET", "/v0/topics/t?touch=false")).json
        assert (shown["bytes"], shown["epoch"]) == (state.size_bytes, state.epoch)
        assert TopicPage(topics=[]).next_cursor is None

    on(test)
