"""The server's own topics are written by its parts: a key must name them, or be an operator's."""

from __future__ import annotations

import pytest

from tests.unit.server.fakes import Client, FakeSocket, run, serving

PART = "penstock.parts.ingest.a"
KEYS = (
    "root,w:read+write+delete,near:write:p,part:read+write:meters.|penstock.parts.,op:admin+write"
)
RECORD = {"records": [{"data": 1}]}
MAY = {"root": True, "op": True, "part": True, "w": False, "near": False}


async def write(client: Client, key: str, name: str = PART) -> int | None:
    headers = {"authorization": f"Bearer {key}"}
    return (await client.ask("POST", f"/v0/topics/{name}", RECORD, **headers)).status


@pytest.mark.parametrize(("key", "may"), MAY.items())
def test_a_key_that_does_not_name_them_writes_none_of_the_servers_own_topics(key, may):
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            headers = {"authorization": f"Bearer {key}"}
            answer = await client.ask("POST", f"/v0/topics/{PART}", RECORD, **headers)
            assert answer.status == (201 if may else 403), answer.body
            assert (PART in client.engine.registry.topics) is may
            if not may:
                assert (
                    "the prefix 'penstock.' or the scope admin" in answer.json["error"]["message"]
                )

    run(test)


@pytest.mark.parametrize(("key", "may"), MAY.items())
def test_nor_as_one_of_many_writes_nor_over_a_websocket(key, may):
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            headers = {"authorization": f"Bearer {key}"}
            many = {"writes": [{"topic": PART, **RECORD}]}
            answer = await client.ask("POST", "/v0/write", many, **headers)
            assert answer.status == (201 if may else 403), answer.body
            opened = await client.ask("GET", "/v0/ws", upgrade="websocket", **headers)
            if isinstance(opened.live, FakeSocket):
                opened.live.say(op="publish", topic=PART, request_id="1", **RECORD)
                found = client.engine.registry.topics.get(PART)
                assert (found is not None) is may

    run(test)


def test_records_of_them_are_deleted_by_no_other_key_either():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            assert await write(client, "part") == 201
            headers = {"authorization": "Bearer w"}
            path = f"/v0/topics/{PART}"
            body = {"before_seq": 2}
            assert (await client.ask("POST", f"{path}/delete", body, **headers)).status == 403
            assert (await client.ask("DELETE", path, **headers)).status == 403
            assert (await client.ask("POST", f"{path}/diff", {}, **headers)).status == 200
            assert client.engine.topic(PART).count == 1

    run(test)


def test_a_part_writes_its_other_topics_and_a_server_without_keys_takes_all_reports():
    async def test() -> None:
        async with serving(keys=KEYS) as client:
            assert await write(client, "part", "meters.raw") == 201
            assert await write(client, "part", "penstock.commands.ingest.a") == 403  # not named
        async with serving() as client:
            assert (await client.ask("POST", f"/v0/topics/{PART}", RECORD)).status == 201

    run(test)
