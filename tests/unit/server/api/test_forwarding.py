"""Requests on a node that does not lead: passed on once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import ANY

import pytest

from penstock.protocol.errors import NoLeader
from penstock.raft.ready import NotLeader
from penstock.server.api.app import WRITE_ROUTE
from penstock.server.api.forwarding import Cluster, Forwarding, PassedExchange
from penstock.server.http.message import Answer, Request
from penstock.topics.core.registry import partition_of
from penstock.topics.engine.engine import Engine
from tests.unit.server.fakes import Client, serving
from tests.waiting import until

HERE = -1
"""A leader that is this node, and serves."""


class Elsewhere:
    """A cluster in which another member leads everything."""

    own = 1

    def __init__(self, leader: int) -> None:
        self.led_by = leader
        self.passed: list[int] = []
        self.partitions: list[int] = []
        self.requests: list[Request] = []
        self.answer = Answer(200, b"{}")

    def leader(self, _partition: int) -> int:
        return self.led_by

    def serves(self, _partition: int) -> bool:
        return self.led_by == HERE

    def url_of(self, member: int) -> str:
        return f"http://node-{member}" if member else ""

    async def forward(self, member: int, partition: int, request: Request, _peer: str) -> Answer:
        self.passed.append(member)
        self.partitions.append(partition)
        self.requests.append(request)
        return self.answer


def asked(leader: int, *, passed_on: bool) -> tuple[Answer, Elsewhere]:
    """A write on such a node, of a client or of a peer that passed it on."""

    async def scenario() -> tuple[Answer, Elsewhere]:
        async with serving() as client:
            cluster = Elsewhere(leader)
            forwarding = Forwarding(
                cast(Engine, client.application.context.engine), cast(Cluster, cluster)
            )
            request = Request("POST", "/v0/topics/t", "", {}, b"{}")
            exchange: Any = PassedExchange(request, "127.0.0.1")
            if not passed_on:
                exchange = type("Exchange", (), {"request": request, "peer": "127.0.0.1"})()
            found = forwarding.before(exchange, WRITE_ROUTE, "t")
            assert found is not None
            again = forwarding.after(PassedExchange(request, ""), NotLeader("", leader=2), "t")
            assert again is None
            return await found, cluster

    return asyncio.run(scenario())


def test_a_write_is_passed_on_to_the_leader() -> None:
    answer, cluster = asked(2, passed_on=False)
    assert cluster.passed == [2]
    assert (b"x-penstock-leader", b"http://node-2") in answer.headers


@pytest.mark.parametrize(("name", "partition"), [("t", partition_of("t", 6)), ("", 4)])
def test_what_a_handler_finds_to_be_led_elsewhere_is_passed_on_with_its_partition(
    name: str, partition: int
) -> None:
    """So that the call ends when the leadership of that partition moves."""

    async def scenario() -> None:
        async with serving() as client:
            engine = cast(Engine, client.application.context.engine)
            cluster = Elsewhere(2)
            forwarding = Forwarding(engine, cast(Cluster, cluster))
            forwarding._partitions = 6
            request = Request("POST", "/v0/topics/t", "", {}, b"{}")
            exchange: Any = type("Exchange", (), {"request": request, "peer": ""})()
            found = forwarding.after(exchange, NotLeader("", leader=2, partition=4), name)
            assert found is not None
            await found
            assert cluster.partitions == [partition]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("leader", "passed_on"),
    [(0, False), (1, False), (2, True)],
    ids=["no leader is known", "it is this node, not yet ready", "passed on before"],
)
def test_a_write_without_a_leader_in_reach_is_refused_for_certain(
    leader: int, passed_on: bool
) -> None:
    with pytest.raises(NoLeader) as refused:
        asked(leader, passed_on=passed_on)
    assert refused.value.status == 503
    assert "nothing was changed" in refused.value.message


@asynccontextmanager
async def following(leader: int = 2) -> AsyncIterator[tuple[Client, Elsewhere]]:
    """A node with a queue, a log and a topic whose records are with its leader alone."""
    async with serving() as client:
        for name, config in (
            ("jobs", {"type": "queue"}), ("log", {}), ("fleeting", {"durability": "ephemeral"}),
        ):  # fmt: skip
            assert (await client.ask("PUT", f"/v0/topics/{name}", config)).status == 201
        cluster = Elsewhere(leader)
        forwarding = Forwarding(client.engine, cast(Cluster, cluster))
        client.application.context.forwarding = client.application._forwarding = forwarding
        yield client, cluster


EVENTS = {"accept": "text/event-stream"}


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/v0/topics/jobs/work?node=w", None),
        ("POST", "/v0/watch", {"topics": {"fleeting": {}}}),
    ],
    ids=["work", "records that only the leader has"],
)
def test_what_only_the_leader_can_serve_is_refused_with_its_address(
    method: str, target: str, body: Any
) -> None:
    async def scenario() -> None:
        async with following() as (client, cluster):
            headers = {} if body else EVENTS
            refused = await client.ask(method, target, body, **headers)
            assert (refused.status, refused.code) == (421, "not_leader")
            assert refused.headers[b"x-penstock-leader"] == b"http://node-2"
            assert refused.json["error"]["detail"]["leader"] == "http://node-2"
            cluster.led_by = 0
            refused = await client.ask(method, target, body, **headers)
            assert (refused.status, refused.code) == (503, "no_leader")
            assert refused.json["error"]["detail"]["retry_after_ms"] == NoLeader.AGAIN_MS < 1_000
            assert refused.headers[b"retry-after"] == b"1"

    asyncio.run(scenario())


def test_a_watch_of_logged_records_is_served_by_any_node() -> None:
    async def scenario() -> None:
        async with following() as (client, _):
            await client.watch(topics={"log": {}})

    asyncio.run(scenario())


def test_when_the_leader_moves_watches_that_need_it_end_and_others_go_on() -> None:
    async def scenario() -> None:
        async with following(HERE) as (client, cluster):
            fleeting, url = await client.watch(topics={"fleeting": {}})
            log, _ = await client.watch(topics={"log": {}})
            socket = await client.socket()
            socket.say(op="subscribe", request_id=1, topics={"fleeting": {}})
            await until(lambda: "subscribed" in socket.ops())
            cluster.led_by = 2
            partition = partition_of("fleeting", client.engine.options.partitions)
            client.application._on_leader(partition, 2, 7)
            assert fleeting.events()[-1] == ("error", {"code": "not_leader", "message": ANY})
            assert (fleeting.closed, log.closed) == (True, False)
            assert socket.messages[-1]["code"] == "not_leader"
            assert socket.closed
            again = await client.ask("GET", url, **EVENTS)
            assert (again.status, again.code) == (421, "not_leader")

    asyncio.run(scenario())


def test_a_stream_of_work_ends_when_the_leader_moves() -> None:
    async def scenario() -> None:
        async with following(HERE) as (client, cluster):
            stream = client.start("GET", "/v0/topics/jobs/work?node=w", **EVENTS).live
            assert stream is not None
            cluster.led_by = 2
            client.engine.writer("jobs").follow(NotLeader("another one leads", leader=2))
            await until(lambda: stream.closed)
            ((name, told),) = stream.events()
            assert (name, told["code"]) == ("error", "not_leader")

    asyncio.run(scenario())


def test_a_write_over_a_websocket_is_passed_on_with_its_key() -> None:
    async def scenario() -> None:
        async with following() as (client, cluster):
            cluster.answer = Answer(201, b'{"topic":"log","seqs":[1],"head_seq":1}')
            exchange = await client.ask(
                "GET", "/v0/ws", upgrade="websocket", authorization="Bearer secret"
            )
            socket = cast(Any, exchange.live)
            records = [{"data": 1}]
            socket.say(op="publish", request_id="a", topic="log", records=records)
            await until(lambda: socket.messages)
            assert socket.messages == [
                {"op": "ack", "request_id": "a", "topic": "log", "seqs": [1], "head_seq": 1}
            ]
            (request,) = cluster.requests
            assert (request.method, request.path) == ("POST", "/v0/topics/log")
            assert request.headers["authorization"] == "Bearer secret"
            assert json.loads(request.body)["records"] == records
            cluster.answer = Answer(409, b'{"error":{"code":"topic_full","message":"no room"}}')
            socket.say(op="publish", request_id="b", topic="log", records=records)
            await until(lambda: len(socket.messages) == 2)
            assert socket.messages[1]["code"] == "topic_full"
            cluster.led_by = 0
            socket.say(op="publish", request_id="c", topic="log", records=records)
            await until(lambda: len(socket.messages) == 3)
            assert socket.messages[2]["code"] == "no_leader"

    asyncio.run(scenario())
