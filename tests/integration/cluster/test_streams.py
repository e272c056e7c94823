"""Streams on any node: what only the leader can serve is found there by the client itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from penstock import Client
from penstock.client.blocking.watch import Watch
from penstock.protocol.events import Records, WatchEvent
from tests.integration.cluster.processes import Process, Processes, cluster, command
from tests.integration.cluster.test_cluster import wait_for_values
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with cluster(tmp_path_factory.mktemp("three"), "a", "b", "c", partitions=1) as made:
        yield made


def followers_first(made: Processes) -> tuple[list[Process], Process, str]:
    """The nodes that follow, the one that leads, and all their addresses in this order."""
    leader = made.leader_of(0)
    others = made.others(leader.name)
    return others, leader, ",".join(node.url for node in (*others, leader))


def test_a_worker_works_through_any_node_and_goes_where_the_leader_goes(three: Processes) -> None:
    (follower, _), leader, urls = followers_first(three)
    leader.call("PUT", "/v0/topics/jobs", {"type": "queue", "leases_durable": True})
    for number in range(3):
        leader.write("jobs", number)
    refused = follower.call("GET", "/v0/topics/jobs/work?node=w", headers=EVENTS)
    assert refused.status == 421
    assert refused.headers["x-penstock-leader"] == leader.url
    assert refused.body["error"]["detail"]["leader"] == leader.url
    with Client(urls) as client, client.work("jobs", "worker", count=1) as work:
        with work.next_job(30) as job:
            assert job.data == 0
        command("cluster", "transfer", follower.name, "--url", leader.url)
        wait_until(lambda: follower.leaders() == [follower.name], "the leader to move")
        done = []
        while len(done) < 2:
            with work.next_job(30) as job:
                done.append(job.data)
        assert done == [1, 2]


EVENTS = {"accept": "text/event-stream"}


def test_a_watch_of_what_only_the_leader_has_is_found_and_followed(three: Processes) -> None:
    (follower, _), leader, urls = followers_first(three)
    leader.call("PUT", "/v0/topics/fleeting", {"durability": "ephemeral"})
    wait_until(
        lambda: follower.call("GET", "/v0/topics/fleeting").status == 200, "the topic everywhere"
    )
    refused = follower.call("POST", "/v0/watch", {"topics": {"fleeting": {}}})
    assert (refused.status, refused.headers["x-penstock-leader"]) == (421, leader.url)
    with Client(urls) as client, client.watch("fleeting") as watch:
        follower.write("fleeting", 1)
        assert data_of(next(iter(watch))) == [1]
        command("cluster", "transfer", follower.name, "--url", leader.url)
        wait_until(lambda: follower.leaders() == [follower.name], "the leader to move")
        wait_until(lambda: written_and_seen(leader, watch), "a record of the new leader")


def written_and_seen(node: Process, watch: Watch) -> bool:
    node.write("fleeting", 2)
    return 2 in data_of(watch.next_event(5))


def data_of(event: WatchEvent | None) -> list[Any]:
    return [record.data for record in event.records] if isinstance(event, Records) else []


def test_a_websocket_on_any_node_takes_writes_and_refusals(three: Processes) -> None:
    (follower, _), leader, _ = followers_first(three)
    leader.call("PUT", "/v0/topics/small", {"cap_records": 1, "discard": "reject"})

    found = []
    with connect(f"ws://127.0.0.1:{follower.port}/v0/ws") as peer:
        for topic in ("socketed", "small", "small"):
            message = {"op": "publish", "request_id": topic, "topic": topic,
                       "records": [{"data": 1}], "create": True}  # fmt: skip
            peer.send(json.dumps(message))
            found.append(json.loads(peer.recv(timeout=30)))
    first, second, third = found
    assert (first["op"], first["seqs"], first["created"]) == ("ack", [1], True)
    assert second["op"] == "ack"
    assert (third["op"], third["code"]) == ("error", "topic_full")
    for node in three.others():
        wait_for_values(node, "socketed", [1])
