"""The list of spaces: what is in each, in pages, and only those in a key's reach."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from penstock.topics.engine import spaces
from penstock.topics.engine.spaces import SpaceList
from penstock.topics.engine.topic_views import everything
from tests.unit.server.fakes import Client, serving


def on(test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def scenario() -> None:
        async with serving(**options) as client:
            await test(client)

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def commit(client: Client, space: str, number: int, *writes: Any, **headers: str) -> Any:
    body = {"session": "s", "local_seq": number, "writes": writes}
    answer = await client.ask("POST", f"/v0/spaces/{space}/commits", body, **headers)
    assert answer.status == 200, answer.body
    return answer.json


async def listed(client: Client, query: str = "", **headers: str) -> Any:
    answer = await client.ask("GET", "/v0/spaces" + query, **headers)
    assert answer.status == 200, answer.body
    return answer.json


def finished(listing: Coroutine[Any, Any, SpaceList]) -> SpaceList:
    try:
        while True:
            listing.send(None)
    except StopIteration as end:
        return end.value


def put(entity: str) -> Any:
    return {"entity": entity, "set": {"n": 1}}


def delete(entity: str) -> Any:
    return {"entity": entity, "delete": True}


def test_a_space_tells_its_living_entities_its_seq_and_its_last_commit() -> None:
    async def test(client: Client) -> None:
        await commit(client, "s", 1, put("a"), put("b"), put("c"))
        last = await commit(client, "s", 2, delete("a"), delete("b"), put("c"))
        await client.write("t", 1)
        found = await listed(client)
        row = {"space": "s", "entities": 1, "seq": 2, "last_commit": last["ts"]}
        assert (found["spaces"], found["count"]) == ([row], 1)
        assert "next_cursor" not in found
        await commit(client, "s", 3, put("a"))
        assert (await listed(client))["spaces"][0]["entities"] == 2

    on(test)


def test_a_space_without_a_commit_is_listed_and_a_deleted_one_is_not() -> None:
    async def test(client: Client) -> None:
        await client.ask("PUT", "/v0/topics/new", {"type": "space"})
        await commit(client, "old", 1, put("a"))
        await client.ask("DELETE", "/v0/topics/old")
        row = {"space": "new", "entities": 0, "seq": 0, "last_commit": None}
        assert (await listed(client))["spaces"] == [row]

    on(test)


@pytest.mark.parametrize("slice_of", [1, 3, 256])
def test_pages_follow_each_other_by_name(slice_of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "_BREATH", slice_of)

    async def test(client: Client) -> None:
        for name in ("a.4", "a.1", "b.1", "a.3", "a.2"):
            await commit(client, name, 1, put("e"))
        pages, query = [], "?prefix=a.&page_size=2"
        while query:
            page = await listed(client, query)
            pages.append([row["space"] for row in page["spaces"]])
            assert page["count"] == 4
            cursor = page.get("next_cursor")
            query = cursor and f"?prefix=a.&page_size=2&cursor={cursor}"
        assert pages == [["a.1", "a.2"], ["a.3", "a.4"]]
        assert (await client.ask("GET", "/v0/spaces?cursor=x")).code == "invalid_request"

    on(test)


def test_a_space_that_goes_while_the_list_is_made_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spaces, "_BREATH", 1)

    async def test(client: Client) -> None:
        for name in ("a", "b", "c"):
            await commit(client, name, 1, put("e"))
        listing = client.engine.spaces.spaces(spaces.PageRequest(), everything)
        listing.send(None)  # the first slice is looked at
        for name in ("a", "b", "c"):
            await client.ask("DELETE", f"/v0/topics/{name}")
        assert finished(listing) == ([], 0, False)

    on(test)


def test_a_key_held_to_prefixes_sees_and_counts_its_own_spaces_only() -> None:
    async def test(client: Client) -> None:
        root = "Bearer root"
        for name in ("a.s", "b.s"):
            await commit(client, name, 1, put("e"), authorization=root)
        found = await listed(client, authorization="Bearer reader")
        assert ([row["space"] for row in found["spaces"]], found["count"]) == (["a.s"], 1)
        assert (await listed(client, authorization=root))["count"] == 2

    on(test, keys="root,reader:read:a.")


def test_the_newest_commits_of_an_entity_come_with_the_document_before_them() -> None:
    async def test(client: Client) -> None:
        await commit(client, "s", 1, {"entity": "a", "set": {"n": 0, "kept": True}})
        for number in range(2, 8):
            await commit(client, "s", number, {"entity": "a", "patch": {"n": number}}, put("b"))
        path = "/v0/spaces/s/entities/a/history"
        found = (await client.ask("GET", f"{path}?last=3")).json
        assert [row["seq"] for row in found["commits"]] == [5, 6, 7]
        assert (found["base"], found["next"]) == ({"n": 4, "kept": True}, None)
        everything_ = (await client.ask("GET", f"{path}?last=1000")).json
        assert (len(everything_["commits"]), everything_["base"]) == (7, None)
        oldest = (await client.ask("GET", f"{path}?limit=3")).json
        assert [row["seq"] for row in oldest["commits"]] == [1, 2, 3]
        assert "base" not in oldest
        assert (await client.ask("GET", f"{path}?last=0")).status == 400

    on(test)


def test_a_document_whose_commits_are_gone_is_not_made_up() -> None:
    async def test(client: Client) -> None:
        await commit(client, "s", 1, {"entity": "a", "set": {"n": 0}})
        for number in range(2, 6):
            await commit(client, "s", number, {"entity": "a", "patch": {"n": number}})
        await client.engine.put_topic("s", {"cap_records": 2})
        found = (await client.ask("GET", "/v0/spaces/s/entities/a/history?last=40")).json
        assert [row["seq"] for row in found["commits"]] == [4, 5]
        assert (found["complete"], "base" in found) == (False, False)

    on(test)
