from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.server.live.peek import (
    BYTES_PER_S,
    FLOOD,
    NEWEST,
    RECORD_BYTES_MAX,
    RECORDS_PER_S,
    SCAN_MAX,
    Allowance,
    Peek,
)
from penstock.topics.core.predicate import parse_predicate
from tests.unit.server.fakes import Client, run, serving


async def write(client: Client, *tags: str | None, data: Any = 0) -> None:
    records = [{"data": data} | ({"tag": tag} if tag else {}) for tag in tags]
    made = await client.ask("POST", "/v0/topics/t", {"records": records})
    assert made.status in (200, 201)


def peek_at(client: Client, tag: str | None = None) -> Peek:
    wanted = parse_predicate(tag) if tag else None
    return Peek(client.engine, "t", wanted, 0)


def told(members: bytes | None) -> Any:
    return None if members is None else json.loads(b"{%b}" % members)


def test_an_allowance_is_saved_up_for_one_second_only():
    allowance = Allowance(0)
    allowance.spend(RECORDS_PER_S, BYTES_PER_S)
    assert allowance.records(0) == 0
    assert allowance.records(250) == RECORDS_PER_S // 4
    assert allowance.bytes == BYTES_PER_S / 4
    assert allowance.records(60_000) == RECORDS_PER_S
    assert allowance.records(0) == RECORDS_PER_S, "a clock that goes back takes nothing away"


def test_only_so_many_records_a_second_are_shown_and_the_newest_of_them():
    async def test() -> None:
        async with serving() as client:
            await write(client, None)
            peek = peek_at(client)
            await write(client, *[None] * 100)
            first = told(peek.look(0))
            assert [r["$seq"] for r in first["records"]] == list(range(82, 102))
            assert first["skipped"] == 80
            await write(client, *[None] * 100)
            assert peek.look(0) is None, "its allowance is spent"
            later = told(peek.look(500))
            assert (later["from_seq"], later["to_seq"]) == (101, 201)
            assert [r["$seq"] for r in later["records"]] == list(range(192, 202))

    run(test)


def test_a_flood_is_looked_at_less_often_and_every_record_is_accounted_for():
    async def test() -> None:
        async with serving() as client:
            await write(client, None)
            peek, looks = peek_at(client), []
            for now_ms in range(0, 2_250, 250):
                await write(client, *[None] * (FLOOD + 1))
                looks.append(told(peek.look(now_ms)))
            assert [look is not None for look in looks] == [True, False, False] * 3
            seen = [look for look in looks if look is not None]
            assert [len(look["records"]) for look in seen] == [20, 15, 15]
            assert sum(len(look["records"]) + look["skipped"] for look in seen) == 7 * (FLOOD + 1)
            assert [look["from_seq"] for look in seen[1:]] == [look["to_seq"] for look in seen[:-1]]

    run(test)


def test_only_so_many_bytes_a_second_are_shown():
    async def test() -> None:
        async with serving() as client:
            await write(client, None)
            peek = peek_at(client)
            await write(client, *[None] * 20, data="x" * (RECORD_BYTES_MAX - 100))
            shown = told(peek.look(0))
            assert 15 <= len(shown["records"]) <= 17
            assert len(shown["records"]) + shown["skipped"] == 20
            assert len(json.dumps(shown)) < BYTES_PER_S + RECORD_BYTES_MAX

    run(test)


@pytest.mark.parametrize(
    ("size", "is_cut"), [(RECORD_BYTES_MAX - 2, False), (RECORD_BYTES_MAX, True)]
)
def test_a_large_record_is_shown_without_its_data(size, is_cut):
    async def test() -> None:
        async with serving() as client:
            await write(client, None)
            peek = peek_at(client)
            await write(client, "big", data="x" * size)
            [record] = told(peek.look(0))["records"]
            assert record["$tag"] == "big"
            assert ("cut" in record, "data" in record) == (is_cut, not is_cut)

    run(test)


def test_a_filter_shows_what_matches_and_counts_what_it_did_not_look_at():
    async def test() -> None:
        async with serving() as client:
            await write(client, "a")
            peek = peek_at(client, "a*")
            await write(client, "b", "ab", "b")
            first = told(peek.look(0))
            assert [r["$tag"] for r in first["records"]] == ["ab"]
            assert first["skipped"] == 0, "what does not match is not skipped"
            await write(client, "b", "b")
            assert peek.look(1_000) is None
            await write(client, *["b"] * (SCAN_MAX + 7))
            late = told(peek.look(2_000))
            assert (late["from_seq"], late["skipped"], late["records"]) == (4, 7, [])

    run(test)


def test_a_topic_made_anew_is_followed_from_its_beginning():
    async def test() -> None:
        async with serving() as client:
            await write(client, None, None, None)
            peek = peek_at(client)
            await client.ask("DELETE", "/v0/topics/t")
            assert peek.look(0) is None
            await write(client, None)
            assert [r["$seq"] for r in told(peek.look(0))["records"]] == [1]

    run(test)


def test_a_topic_that_is_not_there_yet_is_followed_once_it_is():
    async def test() -> None:
        async with serving() as client:
            peek = peek_at(client)
            assert told(peek.newest(0))["records"] == []
            await write(client, None)
            assert told(peek.look(0))["to_seq"] == 1

    run(test)


def test_the_newest_records_end_where_the_next_look_begins():
    async def test() -> None:
        async with serving() as client:
            await write(client, *[None] * 50)
            peek = peek_at(client)
            await write(client, None)
            newest = told(peek.newest(0))
            assert [r["$seq"] for r in newest["records"]] == list(range(51 - NEWEST, 51))
            assert told(peek.look(0))["from_seq"] == newest["to_seq"] == 50

    run(test)


def test_looking_on_is_no_use_of_a_topic():
    async def test() -> None:
        async with serving() as client:
            await write(client, None)
            before = client.engine.recency.last_ms("t")
            peek = peek_at(client)
            peek.newest(0)
            await write(client, None)
            used = client.engine.recency.last_ms("t")
            peek.look(0)
            assert client.engine.recency.last_ms("t") == used
            assert before is None or used is None or used >= before

    run(test)
