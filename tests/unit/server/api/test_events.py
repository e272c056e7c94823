"""What happened: in memory, over HTTP, and in the topic `penstock.events`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.governor import STEADY, Level
from penstock.protocol.server_events import EVENTS_KEPT, EVENTS_TOPIC, EventPage, ServerEvent
from penstock.server.api.event_book import LOG_FAILED_MS, EventBook, RungTeller
from tests.unit.server.fakes import Client, serving
from tests.waiting import until


def on(test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with serving(**options) as client:
            client.application.context.sampler.stop()
            await test(client)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def book_of(client: Client) -> EventBook:
    return client.application.context.events


def test_an_event_is_shown_and_becomes_a_record() -> None:
    async def test(client: Client) -> None:
        book, seen = book_of(client), list[ServerEvent]()
        book.on_event.append(seen.append)
        made = book.happened("redriven", "info", "3 letters are jobs again.", name="q", moved=3)
        assert seen == [made]
        found = (await client.ask("GET", "/v0/events")).json
        assert found["last_id"] == made.id
        assert found["events"][0]["facts"] == {"moved": 3}
        await until(lambda: EVENTS_TOPIC in client.engine.registry.topics)
        read = (
            await client.ask("POST", f"/v0/topics/{EVENTS_TOPIC}/diff", {"include_tags": True})
        ).json
        assert [record["$tag"] for record in read["records"]] == ["redriven"]
        assert read["records"][0]["data"] == found["events"][0]
        config = client.engine.topic(EVENTS_TOPIC).config
        assert (config.cap_records, config.durability) == (EVENTS_KEPT, "disk")

    on(test)


def test_a_start_alone_makes_no_topic_and_later_starts_go_on_counting() -> None:
    async def test(client: Client) -> None:
        await book_of(client).open()
        await asyncio.sleep(0)
        assert EVENTS_TOPIC not in client.engine.registry.topics
        book_of(client).happened("snapshot_made", "info", "x")
        await until(lambda: client.engine.registry.topics.get(EVENTS_TOPIC) is not None)
        await client.write(EVENTS_TOPIC, "not an event")
        again = EventBook(client.engine)
        await again.open()
        kinds = [(event.id, event.kind) for event in again.page().events]
        assert kinds == [(3, "started"), (2, "snapshot_made")]  # the first start was not written
        await until(lambda: client.engine.topic(EVENTS_TOPIC).count == 3)

    on(test)


def test_pages_newest_first_after_an_id_by_kind_and_limited() -> None:
    async def test(client: Client) -> None:
        book = book_of(client)
        for number in range(EVENTS_KEPT + 5):
            book.happened("redriven" if number % 2 else "part_lost", "info", f"{number}", name="n")
        assert len(book.page().events) == EVENTS_KEPT
        assert [event.text for event in book.page(limit=2).events] == ["1004", "1003"]
        assert [event.kind for event in book.page(limit=2, kind="redriven").events] == [
            "redriven"
        ] * 2
        last_id = book.last_id
        found = (await client.ask("GET", f"/v0/events?after_id={last_id - 1}")).json
        assert [event["id"] for event in found["events"]] == [last_id]
        assert len((await client.ask("GET", "/v0/events?limit=0")).json["events"]) == 1

    on(test)


def test_a_key_with_prefixes_sees_nothing_of_other_names() -> None:
    async def test(client: Client) -> None:
        book = book_of(client)
        book.happened("redriven", "info", "mine", name="app.q")
        book.happened("redriven", "info", "not mine", name="other.q")
        book.happened("refresh_failed", "bad", "a table", name="app.table")
        book.happened("rung", "slow", "the server")
        key = {"authorization": "Bearer app"}
        found = (await client.ask("GET", "/v0/events", **key)).json["events"]
        assert [event["text"] for event in found] == ["the server", "mine"]

    on(test, keys="root,app:read:app.")


def test_a_rung_is_told_when_it_is_crossed() -> None:
    async def test(client: Client) -> None:
        book, turns = book_of(client), client.engine.turns
        turns.force_pressure(0.7)
        book.look(0)
        (event,) = book.page().events
        assert (event.kind, event.level, event.facts["to"]) == ("rung", "slow", "widen")
        turns.force_pressure(0.0)
        for _ in range(RungTeller.CALM_LOOKS):
            book.look(0)
        assert [each.facts["to"] for each in book.page().events] == ["steady", "widen"]

    on(test)


@given(st.lists(st.sampled_from(list(Level)), max_size=60))
def test_rungs_are_told_up_at_once_and_down_when_they_stay_down(levels: list[Level]) -> None:
    teller, told = RungTeller(), Level.STEADY
    for place, level in enumerate(levels):
        crossed = teller.look(STEADY._replace(level=level))
        if level > told:
            assert crossed == (told, level)
        if crossed is not None:
            before, now = crossed
            assert before == told != now
            if now < before:
                calm = levels[place + 1 - RungTeller.CALM_LOOKS : place + 1]
                assert max(calm) == now
            told = now
        assert level <= told


def test_a_log_that_fails_is_told_once_a_minute() -> None:
    async def test(client: Client) -> None:
        book, counters = book_of(client), client.engine.journal.counters
        counters.failures += 1
        book.look(1_000)
        counters.failures += 1
        book.look(1_000 + LOG_FAILED_MS - 1)
        assert len(book.page(kind="log_failed").events) == 1
        book.look(1_000 + LOG_FAILED_MS)
        assert len(book.page(kind="log_failed").events) == 1, "nothing new has failed"
        counters.failures += 1
        book.look(1_000 + LOG_FAILED_MS)
        assert len(book.page(kind="log_failed").events) == 2

    on(test)


def test_a_watcher_that_ends_behind_is_told_of_and_one_that_read_is_not() -> None:
    async def test(client: Client) -> None:
        await client.write("t", 1)
        stream, _ = await client.watch(topics={"t": {"from_seq": 0}})
        await until(lambda: len(stream.events()) >= 2)
        assert stream.on_gone is not None
        stream.on_gone()
        assert book_of(client).page(kind="watcher_let_go").events == []
        slow, _ = await client.watch(room=1, topics={"t": {"from_seq": 0}})
        await until(lambda: client.engine.watchers.slow == 1)
        assert slow.on_gone is not None
        slow.on_gone()
        (event,) = book_of(client).page(kind="watcher_let_go").events
        assert (event.name, event.level) == ("t", "slow")
        assert isinstance(book_of(client).page(), EventPage)

    on(test)
