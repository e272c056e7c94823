"""A flipped bit in the log of one of three nodes: found, told, and healed by a new directory."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.integration.cluster.load import content, wait_equal
from tests.integration.cluster.processes import Process, cluster, command
from tests.waiting import wait_until

pytestmark = pytest.mark.slow  # a cluster of three processes takes ten seconds to make

MARK = "a mark of its own"


def flip_bit_at(node: Process, mark: bytes) -> None:
    """Change a bit of the only place in a node's log where some bytes are."""
    for path in (node.directory / "log").rglob("*.segment"):
        log = bytearray(path.read_bytes())
        at = log.find(mark)
        if at >= 0:
            log[at] ^= 1
            path.write_bytes(log)
            return
    raise AssertionError(f"{mark!r} is not in the log")


def writes(node: Process, topic: str, value: str) -> bool:
    return node.write(topic, value, key=value).status == 200


def test_a_node_with_a_damaged_roster_says_so_leads_nothing_and_is_replaced(tmp_path: Path) -> None:
    with cluster(tmp_path, "a", "b", "c", partitions=2) as made:
        first, other = (
            next(f"t{n}" for n in range(99) if made.partition_of(f"t{n}") == partition)
            for partition in (0, 1)
        )
        for topic in (first, other):
            for value in ("before", f"{MARK} in {topic}", "behind"):
                assert made["a"].write(topic, value).status in (200, 201)
        wait_equal(made, [first, other])
        damaged = made["b"]
        damaged.kill()
        flip_bit_at(damaged, f"{MARK} in {first}".encode())
        damaged.start()
        stopped = damaged.view()["partitions"][0]["stopped"]
        assert ".segment at offset" in stopped
        for node in made.others():
            wait_until(partial(writes, node, other, f"after, by {node.name}"), "a write")
        healthy = made["a"]
        made.wait_settled(healthy)
        leader = made.leader_of(1, "b")
        command("cluster", "transfer", "b", "--partition", "1", "--url", leader.url)
        wait_until(lambda: healthy.leaders()[1] not in ("", "b"), "b to hand partition 1 over")
        damaged.kill()
        shutil.rmtree(damaged.directory)
        command("cluster", "replace", "b", "--data-dir", str(damaged.directory),
                "--url", healthy.url)  # fmt: skip
        damaged.start()
        made.wait_settled(healthy)
        for topic in (first, other):
            wait_equal(made, [topic])
            assert len({tuple(content(node, topic)) for node in made.others()}) == 1
