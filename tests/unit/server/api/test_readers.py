"""Who reads a topic, how far each has come, and what keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import pytest

from penstock.protocol.watchers import NAME_BYTES_MAX, WATCHERS_SHOWN_MAX
from penstock.server.api.auth import LABEL_DIGITS
from penstock.server.api.readers import partition_of_topic
from penstock.server.push import shared
from tests.unit.server.fakes import Client, FakeStream, serving
from tests.waiting import until


def on(test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with serving(**options) as client:
            await test(client)

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def readers(client: Client, topic: str, query: str = "", **headers: str) -> Any:
    answer = await client.ask("GET", f"/v0/topics/{topic}/watchers{query}", **headers)
    assert answer.status == 200, answer.body
    return answer.json


async def caught_up(stream: FakeStream, times: int = 1) -> None:
    await until(lambda: [name for name, _ in stream.events()].count("caught-up") >= times)


def test_a_watcher_that_has_everything_is_shown_with_what_is_known_of_it() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1, 2)
        began_ms = client.engine.clock.now_ms()
        stream, url = await client.watch(topics={"t": {}}, name="prices")
        await caught_up(stream)
        found = await readers(client, "t")
        [row] = found.pop("watchers")
        assert found | {"performance": None} == {
            "topic": "t", "head_seq": 2, "count": 1, "routers": 0, "behind": 0, "performance": None,
        }  # fmt: skip
        assert began_ms <= row.pop("since") <= client.engine.clock.now_ms()
        assert row == {
            "id": "sse-1", "kind": "sse", "name": "prices", "peer": "192.0.2.1", "key": None,
            "place": 2, "behind": 0, "behind_ms": 0, "state": "ok", "reason": "it has every record",
            "dest": None, "held": None,
        }  # fmt: skip
        assert url.rsplit("/", 1)[1] not in str(found) + str(row)  # it would open the stream

    on(test)


def test_a_watcher_that_does_not_read_is_slow_comes_first_and_is_in_the_verdict() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1, 2, 3)
        reading, _ = await client.watch(topics={"t": {}})
        await client.watch(room=1, topics={"t": {}}, name="stuck")
        await until(lambda: client.engine.watchers.slow == 1)
        await caught_up(reading)
        found = await readers(client, "t")
        slow, fine = found["watchers"]
        assert (slow["name"], slow["state"], slow["place"], slow["behind"]) == (
            "stuck", "slow", 0, 3,
        )  # fmt: skip
        assert slow["behind_ms"] >= 0
        assert slow["reason"] == "it does not read what it was sent"
        assert (fine["state"], found["behind"]) == ("ok", 1)
        verdict = (await client.ask("GET", "/v0/verdict")).json
        assert "watchers_stuck" in [fact["code"] for fact in verdict["facts"]]
        [waits] = (await client.ask("GET", "/v0/waiting")).json["waiting"]
        assert (waits["kind"], waits["name"], waits["reason"]) == ("watcher", "t", "not_read")
        assert waits["text"] == "watcher stuck does not read what it was sent"
        assert waits["for_ms"] >= 0

    on(test)


@pytest.mark.parametrize(("limit", "told"), [(None, 3), (2, 2), (9, 3), (0, 1), ("x", 3)])
def test_of_what_waits_as_much_as_asked_for_is_told_and_all_of_it_counted(
    limit: object, told: int
) -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1, 2, 3)
        for name in "abc":
            await client.watch(room=1, topics={"t": {}}, name=name)
        await until(lambda: client.engine.watchers.slow == 3)
        query = "" if limit is None else f"?limit={limit}"
        found = (await client.ask("GET", f"/v0/waiting{query}")).json
        assert (len(found["waiting"]), found["total"]) == (told, 3)

    on(test)


def test_without_stuck_watchers_there_is_nothing_of_them_in_verdict_and_waiting() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        stream, _ = await client.watch(topics={"t": {}})
        await caught_up(stream)
        assert (await client.ask("GET", "/v0/verdict")).json["facts"] == []
        assert (await client.ask("GET", "/v0/waiting")).json["waiting"] == []

    on(test)


@pytest.mark.parametrize("members_max", [1, 2, 50])
def test_counts_are_complete_where_the_list_is_cut(
    members_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "BATCH_MEMBERS_MAX", members_max)

    async def test(client: Client) -> None:
        await client.write("t", 1)
        streams = [(await client.watch(topics={"t": {}}))[0] for _ in range(5)]
        for stream in streams:
            await caught_up(stream)
        found = await readers(client, "t", "?limit=3")
        assert (len(found["watchers"]), found["count"], found["behind"]) == (3, 5, 0)
        assert len({row["id"] for row in found["watchers"]}) == 3
        for limit, rows in ((0, 1), (5, 5), (WATCHERS_SHOWN_MAX + 1, 5)):
            assert len((await readers(client, "t", f"?limit={limit}"))["watchers"]) == rows
        streams[0].on_gone()
        assert (await readers(client, "t"))["count"] == 4

    on(test)


def test_a_websocket_names_itself_by_header_or_when_it_subscribes() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        exchange = await client.ask(
            "GET", "/v0/ws", upgrade="websocket", x_penstock_name="caf\xc3\xa9"
        )
        socket: Any = exchange.live
        socket.say(op="subscribe", topics={"t": {}})
        await until(lambda: "caught_up" in socket.ops())
        [row] = (await readers(client, "t"))["watchers"]
        assert (row["kind"], row["name"], row["state"]) == ("websocket", "café", "ok")
        socket.say(op="subscribe", topics={"t": {}}, name="other")
        await until(lambda: socket.ops().count("subscribed") == 2)
        assert (await readers(client, "t"))["watchers"][0]["name"] == "other"

    on(test)


def test_a_name_that_is_too_long_is_refused() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        for size, status in ((NAME_BYTES_MAX, 200), (NAME_BYTES_MAX + 1, 400)):
            body = {"topics": {"t": {}}, "name": "n" * size}
            assert (await client.ask("POST", "/v0/watch", body)).status == status
            headed = await client.ask(
                "POST", "/v0/watch", {"topics": {"t": {}}}, x_penstock_name="n" * size
            )
            assert headed.status == status

    on(test)


def test_a_router_shows_how_far_it_is_and_what_holds_it() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/topics/full", {"cap_records": 1, "discard": "reject"})
        await client.ask("PUT", "/v0/topics/src", {})
        body = {"source": "src", "dest": "full"}
        assert (await client.ask("PUT", "/v0/routers/r", body)).status in (200, 201)
        await client.write("src", 1)
        await until(lambda: client.engine.topic("full").head_seq == 1)
        found = await readers(client, "src")
        [row] = found["watchers"]
        assert (row["id"], row["kind"], row["dest"]) == ("router:r", "router", "full")
        assert (row["place"], row["state"], row["reason"]) == (1, "ok", "up to date")
        await client.write("src", 2, 3)
        await until(lambda: client.engine.forwarder.stopped(1))
        found = await readers(client, "src")
        [row] = found["watchers"]
        assert (row["place"], row["behind"], row["state"]) == (1, 2, "held")
        assert row["reason"] == "topic 'full' is full and rejects more"
        assert (found["count"], found["routers"], found["behind"]) == (1, 1, 1)

    on(test)


def test_a_worker_shows_the_jobs_it_holds_and_is_never_behind() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/topics/q", {"type": "queue"})
        work = client.start("GET", "/v0/topics/q/work?node=w1&max=2", accept="text/event-stream")
        await until(lambda: client.engine.watchers.has("q"))
        [row] = (await readers(client, "q"))["watchers"]
        assert (row["kind"], row["name"], row["held"]) == ("worker", "w1", 0)
        assert (row["state"], row["reason"]) == ("ok", "it holds 0 of 2 jobs")
        await client.write("q", 1, 2, 3)
        await until(lambda: len(work.live.events()) == 2)
        found = await readers(client, "q")
        [row] = found["watchers"]
        assert (row["held"], row["state"], row["place"], row["behind"]) == (2, "held", None, 0)
        assert found["behind"] == 0

    on(test)


def test_a_key_is_told_by_its_label_and_routers_out_of_reach_are_not_shown() -> None:
    async def test(client: Client) -> None:
        root, reader = "Bearer root", "Bearer reader"
        for name in ("a.t", "b.t"):
            await client.ask("PUT", f"/v0/topics/{name}", {}, authorization=root)
        body = {"source": "a.t", "dest": "b.t"}
        await client.ask("PUT", "/v0/routers/r", body, authorization=root)
        made = await client.ask("POST", "/v0/watch", {"topics": {"a.t": {}}}, authorization=reader)
        client.start("GET", made.json["stream_url"], authorization=reader)
        found = await readers(client, "a.t", authorization=reader)
        [row] = found["watchers"]
        assert (row["key"], found["routers"]) == (sha256(b"reader").hexdigest()[:LABEL_DIGITS], 0)
        assert (await readers(client, "a.t", authorization=root))["count"] == 2
        refused = await client.ask("GET", "/v0/topics/b.t/watchers", authorization=reader)
        assert refused.code == "forbidden"
        missing = await client.ask("GET", "/v0/topics/a.none/watchers", authorization=reader)
        assert missing.code == "topic_not_found"

    on(test, keys="root,reader:read:a.")


def test_a_place_in_a_topic_that_was_made_anew_counts_all_its_records() -> None:
    async def test(client: Client) -> None:
        await client.write("t", *range(10))
        stream, _ = await client.watch(topics={"t": {}})
        await caught_up(stream)
        stream.room = 0
        await client.ask("DELETE", "/v0/topics/t")
        await client.write("t", 1, 2)
        await until(lambda: client.engine.watchers.slow == 1)
        [row] = (await readers(client, "t"))["watchers"]
        assert (row["place"], row["behind"], row["state"]) == (10, 2, "slow")

    on(test)


def test_a_topic_tells_its_partition_and_the_last_group_of_the_log() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        before = (await client.ask("GET", "/v0/topics/t/partitions")).json
        writer = client.engine.writer("t")
        assert (before["partition"], before["phase"]) == (writer.number, "serving")
        assert before["partitions"] == len(client.engine.partitions())
        assert before["topics"] == len(writer.partition.topics)
        assert (before["executor_queue"], before["log_queue"], before["waiting_bytes"]) == (0, 0, 0)
        await asyncio.gather(*(client.write("t", n) for n in range(5)))
        after = (await client.ask("GET", "/v0/topics/t/partitions")).json
        assert after["log_index"] > before["log_index"]
        assert after["last_group"]["operations"] >= 1
        assert after["last_group"]["took_ms"] >= 0
        assert after["last_group"]["ago_ms"] >= 0
        assert (await client.ask("GET", "/v0/topics/none/partitions")).status == 404

    on(test)


def test_what_waits_for_the_log_is_counted_for_its_partition_only() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        number = client.engine.writer("t").number
        other = next(
            name
            for name in map(str, range(10_000))
            if client.engine.writers.of(name).number != number
        )
        await client.write(other, 1)
        asked = [client.start("POST", "/v0/topics/t", {"records": [{"data": n}]}) for n in range(3)]
        here, elsewhere = [0], [0]
        while not all(each.status for each in asked):
            here.append(partition_of_topic(client.engine, "t").log_queue)
            elsewhere.append(partition_of_topic(client.engine, other).log_queue)
            await asyncio.sleep(0)  # each step of the loop is looked at
        assert max(here) > max(elsewhere) == 0
        await until(lambda: partition_of_topic(client.engine, "t").log_queue == 0)

    on(test)
