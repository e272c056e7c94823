"""A queue as people look at it: jobs by state, workers, dead letters."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from penstock.protocol.queues import (
    LEASES_SHOWN_MAX,
    LETTERS_LOOKED_MAX,
    LETTERS_SHOWN_MAX,
    REASON_BYTES_MAX,
)
from penstock.topics.core.versions import WrittenVersion
from tests.unit.server.fakes import Client, FakeExchange, run, serving
from tests.waiting import until


async def make(client: Client, name: str = "q", jobs: int = 0, **config: Any) -> None:
    made = await client.ask("PUT", f"/v0/topics/{name}", {"type": "queue", **config})
    assert made.status == 201, made.body
    if jobs:
        await client.write(name, *range(jobs))


async def look(client: Client, name: str = "q", **headers: str) -> dict[str, Any]:
    answer = await client.ask("GET", f"/v0/queues/{name}", **headers)
    assert answer.status == 200, answer.body
    return answer.json


async def claim(client: Client, node: str, count: int = 1, **fields: Any) -> list[int]:
    body = {"node": node, "max": count, **fields}
    answer: FakeExchange = await client.ask("POST", "/v0/topics/q/claim", body)
    return [job["$seq"] for job in answer.json["claimed"]]


async def settle(client: Client, verb: str, node: str, seqs: list[int], **fields: Any) -> None:
    body = {"node": node, "seqs": seqs, **fields}
    assert (await client.ask("POST", f"/v0/topics/q/{verb}", body)).status == 200


def test_a_queue_tells_its_jobs_by_state_and_who_holds_them():
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=10)
            assert await claim(client, "a", 3, lease_ms=60_000) == [1, 2, 3]
            assert await claim(client, "b", 2, lease_ms=30_000) == [4, 5]
            await settle(client, "nack", "a", [1], delay_ms=50_000)
            await settle(client, "ack", "a", [2])
            found = await look(client)
            states = ("ready", "leased", "delayed", "dead", "dead_total")
            assert [found[state] for state in states] == [5, 3, 1, 0, 0]
            held = [(lease["node"], lease["seq"], lease["deliveries"]) for lease in found["leases"]]
            assert held == [("b", 4, 1), ("b", 5, 1), ("a", 3, 1)]  # what ends first
            workers = [(worker["node"], worker["leases"]) for worker in found["workers"]]
            assert workers == [("b", 2), ("a", 1)]
            assert found["workers"][0]["next_deadline"] == found["leases"][0]["deadline"]
            assert 0 < found["next_delayed_ms"] <= 50_000
            assert found["oldest_ready_ms"] >= 0
            assert found["in_per_s"] > 0

    run(test)


def test_an_empty_queue_has_nothing_that_waits():
    async def test() -> None:
        async with serving() as client:
            await make(client)
            found = await look(client)
            assert (found["ready"], found["leased"], found["delayed"]) == (0, 0, 0)
            assert found["oldest_ready_ms"] is found["next_delayed_ms"] is None
            assert found["workers"] == found["leases"] == found["letters"] == []
            assert found["dead_letter"] is None
            assert found["finished_per_s"] == 0

    run(test)


def test_finished_jobs_count_in_a_rate():
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=100)
            assert (await look(client))["finished_per_s"] == 0
            await settle(client, "ack", "n", await claim(client, "n", 100))
            queue = client.engine.writer("q").partition.queue("q")
            queue.finished_rate._looked_ms -= 1_000
            assert (await look(client))["finished_per_s"] > 0

    run(test)


@pytest.mark.parametrize("dead_letter", [f"dead{n}" for n in range(4)])  # of several partitions
def test_dead_letters_are_told_newest_first_with_where_they_come_from(dead_letter):
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=3, dead_letter=dead_letter, max_deliveries=1)
            await client.write(dead_letter, "not a letter", "another")
            await client.ask(
                "POST",
                f"/v0/topics/{dead_letter}",
                {"records": [{"data": 1, "meta": {"$dead_letter_from": "other"}}]},
            )
            await settle(client, "nack", "n", await claim(client, "n", 3))
            assert await claim(client, "n") == []
            found = await look(client)
            assert (found["dead"], found["dead_total"]) == (3, 3)
            letters = [(each["src_seq"], each["deliveries"]) for each in found["letters"]]
            assert letters == [(3, 1), (2, 1), (1, 1)]
            assert [each["seq"] for each in found["letters"]] == [6, 5, 4]
            assert (found["dead_letter"], found["max_deliveries"]) == (dead_letter, 1)

    run(test)


@pytest.mark.parametrize("count", [LETTERS_SHOWN_MAX, LETTERS_SHOWN_MAX + 1])
def test_few_letters_are_shown_and_more_are_counted(count):
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=count, dead_letter="dead", max_deliveries=1)
            seqs = await claim(client, "n", count)
            while len(seqs) < count:
                seqs += await claim(client, "n", count)
            await settle(client, "nack", "n", seqs)
            await claim(client, "n")
            found = await look(client)
            assert found["dead"] == count
            assert len(found["letters"]) == LETTERS_SHOWN_MAX

    run(test)


def test_letters_behind_the_newest_records_are_not_looked_for():
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=1, dead_letter="dead", max_deliveries=1)
            await settle(client, "nack", "n", await claim(client, "n"))
            await claim(client, "n")
            await client.write("dead", *range(LETTERS_LOOKED_MAX - 1))
            assert (await look(client))["dead"] == 1
            await client.write("dead", "one more")
            found = await look(client)
            assert (found["dead"], found["dead_total"]) == (0, 1)

    run(test)


@pytest.mark.parametrize("count", [LEASES_SHOWN_MAX, LEASES_SHOWN_MAX + 1])
def test_few_leases_are_shown_and_all_are_counted(count):
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=count)
            seqs = await claim(client, "n", count)
            while len(seqs) < count:
                seqs += await claim(client, "n", count)
            found = await look(client)
            assert found["leased"] == found["workers"][0]["leases"] == count
            assert len(found["leases"]) == LEASES_SHOWN_MAX

    run(test)


def test_a_look_changes_nothing_and_leases_nothing():
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=3, dead_letter="dead", max_deliveries=1)
            await settle(client, "nack", "n", await claim(client, "n", 3))
            await claim(client, "n")
            before = client.engine.writer("q").partition.queue("q").state()
            dead = client.engine.topic("dead")
            read = dead.out_records, client.engine.recency.last_ms("dead")
            await look(client)
            assert client.engine.writer("q").partition.queue("q").state() == before
            assert (dead.out_records, client.engine.recency.last_ms("dead")) == read

    run(test)


def test_what_is_no_queue_is_refused_and_a_key_sees_its_own_letters_only():
    async def test() -> None:
        async with serving(keys="root,reader:read:q") as client:
            root = {"authorization": "Bearer root"}
            config = {"type": "queue", "dead_letter": "x", "max_deliveries": 1}
            await client.engine.put_topic("q", config)
            await client.engine.put_topic("log", {})
            assert (await client.ask("GET", "/v0/queues/log", **root)).code == "not_a_queue"
            assert (await client.ask("GET", "/v0/queues/none", **root)).status == 404
            body = {"records": [{"data": 1, "meta": {"$dead_letter_from": "q"}}]}
            await client.ask("POST", "/v0/topics/x", body, **root)
            reader = {"authorization": "Bearer reader"}
            assert (await look(client, **root))["dead"] == 1
            found = await look(client, **reader)
            assert (found["dead"], found["letters"]) == (0, [])
            assert (await client.ask("GET", "/v0/queues/log", **reader)).status == 403

    run(test)


async def die(client: Client, reason: str = "why", **headers: str) -> None:
    """Let the next job of `q` die for a reason."""
    ask = partial(client.ask, "POST", **headers)
    await ask("/v0/topics/q", {"records": [{"data": 1}]})
    claimed = (await ask("/v0/topics/q/claim", {"node": "n"})).json["claimed"]
    seqs = [job["$seq"] for job in claimed]
    assert len(seqs) == 1
    nacked = await ask("/v0/topics/q/nack", {"node": "n", "seqs": seqs, "reason": reason})
    assert nacked.status == 200, nacked.body
    assert (await ask("/v0/topics/q/claim", {"node": "n"})).json["claimed"] == []


def test_letters_are_told_with_their_reasons_most_first():
    async def test() -> None:
        async with serving() as client:
            await make(client, dead_letter="dead", max_deliveries=1)
            for reason in ("late", "", "broken", "late"):
                await die(client, reason)
            found = await look(client)
            told = [letter["reason"] for letter in found["letters"]]
            assert told == ["late", "broken", None, "late"]
            reasons = {each["reason"]: each["count"] for each in found["reasons"]}
            assert reasons == {"late": 2, "broken": 1, None: 1}
            assert found["reasons"][0]["reason"] == "late"

    run(test)


@pytest.mark.parametrize(("version", "reason"), [(3, "the worker's stream ended"), (2, None)])
def test_a_worker_whose_stream_ended_is_a_reason_if_entries_can_say_it(version, reason):
    async def test() -> None:
        async with serving() as client:
            limits = {"dead_letter": "dead", "max_deliveries": 1, "leases_durable": True}
            await make(client, jobs=1, **limits)
            client.engine.registry.written = WrittenVersion(version)
            stream = client.start("GET", "/v0/topics/q/work?node=n").live
            await until(lambda: len(stream.events()) == 1)
            stream.on_gone()
            queue = client.engine.writer("q").partition.queue("q")
            await until(lambda: client.application.context.caps.streams == 0)
            await until(lambda: not queue.in_flight)
            assert await claim(client, "n") == []
            assert (await look(client))["letters"][0]["reason"] == reason

    run(test)


def test_letters_go_back_by_seq_by_reason_or_all_and_say_so():
    async def test() -> None:
        async with serving() as client:
            await make(client, dead_letter="dead", max_deliveries=1)
            for reason in ("late", "", "broken", "late"):
                await die(client, reason)
            moved = await client.ask("POST", "/v0/queues/q/redrive", {"seqs": [1, 9]})
            told = {key: moved.json[key] for key in ("queue", "to", "moved", "skipped", "more")}
            assert told == {"queue": "q", "to": "q", "moved": 1, "skipped": [9], "more": False}
            moved = await client.ask("POST", "/v0/queues/q/redrive", {"reason": "late"})
            assert moved.json["moved"] == 1
            gone = await client.ask("POST", "/v0/queues/q/discard", {"reason": ""})
            assert (gone.json["discarded"], gone.json["skipped"]) == (1, [])
            moved = await client.ask("POST", "/v0/queues/q/redrive", {"all": True, "to": "q"})
            assert moved.json["moved"] == 1
            found = await look(client)
            assert (found["ready"], found["dead"], found["letters"]) == (3, 0, [])

    run(test)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"all": False},
        {"seqs": [1], "all": True},
        {"seqs": [1], "reason": "x"},
        {"seqs": [-1]},
        {"seqs": list(range(1, 1_002))},
        {"reason": "x" * (REASON_BYTES_MAX + 1)},
        {"all": True, "from": "q"},
    ],
)
@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_a_choice_of_letters_that_is_none_is_refused(verb, body):
    async def test() -> None:
        async with serving() as client:
            await make(client, dead_letter="dead", max_deliveries=1)
            await die(client)
            assert (await client.ask("POST", f"/v0/queues/q/{verb}", body)).status == 400
            assert (await look(client))["dead"] == 1

    run(test)


def test_a_reason_has_a_limit():
    async def test() -> None:
        async with serving() as client:
            await make(client, jobs=1)
            await claim(client, "n")
            body = {"node": "n", "seqs": [1], "reason": "x" * (REASON_BYTES_MAX + 1)}
            answer = await client.ask("POST", "/v0/topics/q/nack", body)
            assert (answer.status, answer.code) == (400, "invalid_request")
            assert (await look(client))["leased"] == 1

    run(test)


def test_a_key_moves_letters_only_between_topics_that_it_reaches():
    async def test() -> None:
        keys = "root,one:read+write+delete:q,both:read+write:q|dead,reader:read,writer:write"
        async with serving(keys=keys) as client:
            await client.engine.put_topic("other", {})
            config = {"type": "queue", "dead_letter": "dead", "max_deliveries": 1}
            await client.engine.put_topic("q", config)
            await die(client, authorization="Bearer root")

            async def ask(key: str, verb: str = "redrive", **body: Any) -> int:
                headers = {"authorization": f"Bearer {key}"}
                body = {"seqs": [1], **body}
                return (await client.ask("POST", f"/v0/queues/q/{verb}", body, **headers)).status

            assert await ask("one") == await ask("reader") == 403
            assert await ask("one", "discard") == await ask("writer", "discard") == 403
            assert await ask("both", to="other") == 403
            assert await ask("both") == 200

    run(test)
