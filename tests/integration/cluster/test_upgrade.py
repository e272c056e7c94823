"""Releases that read different versions of entries: upgraded under load, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.client import Client
from penstock.protocol.errors import UpgradePending
from tests.integration.cluster.faults import Faults
from tests.integration.cluster.load import Writer, check_records, make_topics, settings
from tests.integration.cluster.processes import Process, Processes, cluster, command
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make

OLDER = [str(Path(__file__).with_name("older_entries.py"))]
NEWER = [str(Path(__file__).with_name("newer_entries.py"))]
CURRENT = ["-m", "penstock"]


def test_nodes_upgraded_under_load_write_the_newer_version_once_all_of_them_read_it(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=2, program=OLDER) as made:
        topics = [topic_in(made, partition, "t") for partition in (0, 1)]
        queue = topic_in(made, 1, "jobs")
        die(made, queue, dead=topic_in(made, 1, "dead"))
        writers = writers_to(made, topics)
        faults = Faults(made, Random(7), writers)
        for name, older in (("a", ("b", "c")), ("b", ("c",)), ("c", ())):
            assert made[name].stop() == 0
            made[name].start()  # the older release reads everything so far
            faults.wait_healthy()
            wait_entries(made, active=2)
            change_release(made[name], CURRENT)
            faults.wait_healthy()
            if older:
                wait_entries(made, active=2, newest=3, held_by=list(older))
                assert refused(made, queue) == list(older)
                said = " and ".join(older)
                words = f"entries are written in version 2, not 3, until {said} can read it"
                assert any(words in each for each in problems(made[name]))
        wait_entries(made, active=3, newest=3, held_by=[])
        with Client(settings(made.urls)) as client:
            assert client.redrive(queue, everything=True).moved == 1
        for writer in writers:
            writer.end()
        print(f"{check_records(made, writers)} records: 0 lost, 0 twice, in order")
        status = json.loads(command("cluster", "status", "--json", "--url", made["a"].url))
        assert status["entries"] == {"active": 3, "newest": 3, "held_by": []}
        assert status["problems"] == []
        command("cluster", "verify", "--url", made["a"].url)
        check_kept_apart(made, "b")


def check_kept_apart(made: Processes, name: str) -> None:
    """A node that goes back to the older release is let in by none, and is let in again later."""
    node, other = made[name], made.others(name)[0]
    change_release(node, OLDER, wait=False)
    why = f"{other.name} writes entries of version 3 and {name} reads them up to version 2"
    wait_until(lambda: why in problem_of(other, name), lambda: f"{other.name} to say why")
    wait_until(lambda: why in problem_of(node, other.name), lambda: f"{name} to say why")
    make_topics(made, ["later"])
    change_release(node, CURRENT)
    wait_until(lambda: not problem_of(other, name), f"{name} to be let in again")


def test_a_node_that_could_write_more_joins_and_writes_what_the_others_read(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=1) as made:
        newer = made.others(made.leader_of(0).name)[0]
        others = [each.name for each in made.others(newer.name)]
        change_release(newer, NEWER)
        wait_entries(made, active=3, newest=4, held_by=others)
        command("cluster", "transfer", newer.name, "--url", newer.url)
        wait_until(lambda: newer.leaders() == [newer.name], "the newer node to lead")
        assert newer.write("t", 1).status == 201
        for node in made.others():
            wait_until(lambda node=node: node.values("t") == [1], f"the record on {node.name}")  # type: ignore[misc]
        change_release(newer, CURRENT)  # nothing was written yet that it could not read
        wait_entries(made, active=3, newest=3, held_by=[])


def topic_in(made: Processes, partition: int, prefix: str) -> str:
    names = (f"{prefix}{number}" for number in range(100))
    return next(name for name in names if made.partition_of(name) == partition)


def writers_to(made: Processes, topics: list[str]) -> list[Writer]:
    make_topics(made, topics)
    writers = [
        Writer(made.urls, topic, f"{topic}-{number}", batch=5, first=number, pause_s=0.02)
        for topic in topics
        for number in range(2)
    ]
    for writer in writers:
        writer.start()
    return writers


def die(made: Processes, queue: str, *, dead: str) -> None:
    """Make a queue with a dead letter, by the commands that the older release has as well."""
    make_topics(made, [queue], type="queue", dead_letter=dead, max_deliveries=1)
    with Client(settings(made.urls)) as client:
        client.write(queue, ["job"])
        job = client.claim(queue, "worker").claimed[0]
        with pytest.raises(UpgradePending):
            client.nack(queue, "worker", [job], reason="it is said in version 3 only")
        assert client.nack(queue, "worker", [job]).nacked == 1
        assert not client.claim(queue, "worker").claimed
        assert client.get_topic(dead).count == 1


def refused(made: Processes, queue: str) -> list[str]:
    """Redrive letters, which is refused; the members that are named."""
    with Client(settings(made.urls)) as client:
        with pytest.raises(UpgradePending) as error:
            client.redrive(queue, everything=True)
        assert client.get_queue(queue).queue == queue
    members: list[str] = error.value.detail["members"]
    return members


def change_release(node: Process, program: list[str], *, wait: bool = True) -> None:
    assert node.stop() == 0, node.said()
    node.program = program
    node.start(wait=wait)


def wait_entries(made: Processes, **expected: Any) -> None:
    """Wait until all nodes say so."""

    def said() -> list[Any]:
        return [node.view()["entries"] for node in made.others()]

    wait_until(
        lambda: all(each | expected == each for each in said()), lambda: f"{expected}: {said()}"
    )


def problems(node: Process) -> list[str]:
    found: list[str] = node.call("GET", "/v0/cluster/checks").body["problems"]
    return found


def problem_of(node: Process, name: str) -> str:
    with suppress(OSError, HTTPException):
        members = node.view()["members"]
        found = next(each for each in members if each["name"] == name)
        return str(found.get("problem") or "")
    return ""
