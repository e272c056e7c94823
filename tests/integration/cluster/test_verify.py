"""`penstock cluster verify` on real processes, and an old directory that becomes three nodes."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.processes import Process, Processes, all_linked, cluster, command
from tests.integration.cluster.test_snapshots import SMALL, boundary_passed
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make

FIXTURE = Path(__file__).parents[1] / "topics/persist/fixtures/version_1.tar.xz"
"""A directory that a node alone wrote, two versions of entries ago."""


def verified(node: Process, *, fails: bool = False) -> list[dict[str, Any]]:
    """What the command says of each partition."""
    if fails:
        assert "not all members" in command("cluster", "verify", "--url", node.url, fails=True)
        partitions = range(len(node.view()["partitions"]))
        return [
            node.call("POST", "/v0/cluster/verify", {"partition": number}).body
            for number in partitions
        ]
    lines = command("cluster", "verify", "--json", "--url", node.url).splitlines()
    return [json.loads(line) for line in lines]


def states(found: list[dict[str, Any]]) -> set[str]:
    return {member["state"] for each in found for member in each["members"]}


def test_members_are_equal_and_one_that_is_away_is_said(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1, environ=SMALL) as made:
        first = made["a"]
        boundary_passed(first, "many", [], 0)  # some records are cold, in files of each node's own
        for name in ("t", "u", "v"):
            made["b"].write(name, *range(100), key=name)
        jobs = {"type": "queue", "dead_letter": "dead"}
        assert first.call("PUT", "/v0/topics/jobs", jobs).status in (200, 201)
        first.write("jobs", 1, 2, 3)
        claim = {"node": "worker", "max": 2}
        assert made["c"].call("POST", "/v0/topics/jobs/claim", claim).status == 200
        first.call("PUT", "/v0/topics/fleeting", {"durability": "ephemeral"})
        first.write("fleeting", 1, 2)
        for node in made.others():
            found = verified(node)
            assert states(found) == {"equal"}
            assert sum(each["topics"] for each in found) >= 5
            assert [name for each in found for name in each["not_compared"]] == ["fleeting"]
        with writing(made["c"]) as written:
            for _ in range(3):
                assert states(verified(first)) == {"equal"}
        assert written[0] > 0
        made["b"].kill()
        found = verified(first, fails=True)
        assert all(each["equal"] and not each["complete"] for each in found)
        away = [m["name"] for each in found for m in each["members"] if m["state"] == "away"]
        assert away == ["b"]
        made["b"].start()
        wait_until(lambda: made.leader_of(0) is not None, "a leader")
        wait_until(
            lambda: all_linked(made) and all(node.leaders()[0] for node in made.others()),
            "the links in both directions, and every node to know the leader",
        )
        assert states(verified(first)) == {"equal"}


@contextmanager
def writing(node: Process) -> Iterator[list[int]]:
    """Write through a node until the block ends; how many writes were answered."""
    is_over, written = threading.Event(), [0]

    def write() -> None:
        while not is_over.is_set():
            assert node.write("busy", written[0]).status in (200, 201)
            written[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        is_over.set()
        writer.join()


def test_a_node_alone_has_nothing_to_compare(tmp_path: Path) -> None:
    made = Processes(tmp_path, partitions=1)
    try:
        node = made.found("a")
        (found,) = verified(node)
        assert found["members"] == [
            {"name": "a", "state": "equal", "problem": None, "differing": 0, "differs_in": []}
        ]
        assert node.call("POST", "/v0/cluster/verify", {"partition": 9}).status == 400
    finally:
        made.close()


def test_an_old_directory_becomes_three_nodes_and_one_again(tmp_path: Path) -> None:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    made = Processes(tmp_path, partitions=2)
    try:
        first = made.nodes["a"] = Process(tmp_path, "a")
        (tmp_path / "old" / "data").rename(first.directory)
        command("cluster", "init", "a", first.peer, "--data-dir", str(first.directory))
        first.start()
        before = content(first)
        assert sum(map(len, before.values())) > 100
        made.add("b", first)
        made.add("c", first)
        found = verified(first)
        assert states(found) == {"equal"}
        assert sum(each["records"] for each in found) >= sum(map(len, before.values())) / 2
        assert content(made["c"]) == before
        for name in "bc":
            made.wait_settled(first)
            command("cluster", "remove", name, "--url", first.url)
            made.wait_settled(first)
            made[name].kill()
        assert content(first) == before
        assert states(verified(first)) == {"equal"}
    finally:
        made.close()


def content(node: Process) -> dict[str, list[Any]]:
    """Every record of the topics that lose none by age."""
    names = [each["topic"] for each in node.call("GET", "/v0/topics?limit=1000").body["topics"]]
    found = {}
    for name in names:
        topic = node.call("GET", f"/v0/topics/{name}").body
        if not topic["config"].get("ttl_ms") and topic["config"]["durability"] != "ephemeral":
            found[name] = node.values(name)
    return found
