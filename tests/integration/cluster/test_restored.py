"""A backup of a cluster is restored: it is a node alone, and a cluster can be made of it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster.processes import Process, Processes, cluster, command
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # clusters of processes take ten seconds to make
TOPICS = [f"t{number}" for number in range(9)]  # on every partition


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a cluster of three nodes."""
    place = tmp_path_factory.mktemp("backup")
    (place / "backups").mkdir()
    environ = {"PENSTOCK_BACKUP_DIR": str(place / "backups")}
    with cluster(place, "a", "b", "c", environ=environ) as made:
        for topic in TOPICS:
            assert made["a"].write(topic, "before").status == 201
        leader = made.leader_of(0)
        for topic in TOPICS:
            wait_until(lambda topic=topic: leader.values(topic) == ["before"], topic)  # type: ignore[misc]
        command("backup", str(place / "backups" / "one"), "--url", leader.url)
    return place / "backups" / "one"


def restored(backup: Path, made: Processes, name: str) -> Process:
    node = made.nodes[name] = Process(made.place, name)
    command("restore", str(backup), "--data-dir", str(node.directory))
    return node


def grown(made: Processes, node: Process, expected: list[str]) -> None:
    """Make a cluster of a restored node and a new one, which gets everything."""
    node.peer_listen = node.peer
    command("cluster", "init", node.name, node.peer, "--data-dir", str(node.directory))
    node.start()
    for topic in TOPICS:
        assert node.write(topic, "cluster").status == 200
    second = made.add("second", node)
    for topic in TOPICS:
        assert second.write(topic, "two").status == 200
        for each in (node, second):
            wait_until(
                lambda each=each, topic=topic: each.values(topic) == [*expected, "cluster", "two"],  # type: ignore[misc]
                lambda each=each, topic=topic: f"{topic} on {each.name}",  # type: ignore[misc]
            )
    command("cluster", "verify", "--url", node.url)


def test_a_restored_backup_of_a_cluster_is_a_node_alone_and_can_be_a_cluster_again(
    backup: Path, tmp_path: Path
) -> None:
    made = Processes(tmp_path)
    try:
        node = restored(backup, made, "node")
        node.peer_listen = ""
        for life in ("first", "second"):
            node.start()
            for topic in TOPICS:
                assert node.write(topic, life).status == 200
                assert node.values(topic) == ["before", "first", "second"][: 2 + (life == "second")]
            node.kill() if life == "first" else node.stop()
        grown(made, node, ["before", "first", "second"])
    finally:
        made.close()


def test_a_cluster_can_be_made_of_a_restored_backup_that_never_served(
    backup: Path, tmp_path: Path
) -> None:
    made = Processes(tmp_path)
    try:
        grown(made, restored(backup, made, "node"), ["before"])
    finally:
        made.close()
