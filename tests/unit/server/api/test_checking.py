"""What is wrong with the nodes of a cluster, in sentences."""

from __future__ import annotations

import pytest

from penstock.kernel.units import GIB, MIB
from penstock.protocol.cluster_answers import ClusterEntries, NodeCheck, NodeFacts
from penstock.server.api.checking import problems

SAME = ClusterEntries(active=3, newest=3)


def node(name: str = "a", ahead_ms: int = 0, **facts: object) -> NodeCheck:
    usual = {"version": "1.0", "now_ms": 0, "disk_bytes": 100 * GIB, "disk_free_bytes": 50 * GIB}
    return NodeCheck(name=name, ahead_ms=ahead_ms, facts=NodeFacts(**(usual | facts)))  # type: ignore[arg-type]


def test_nodes_that_fit_together_have_no_problems() -> None:
    assert list(problems([node("a"), node("b", 4_999), node("c", -5_000)], SAME)) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (node("b", 60_000), "the clock of b is 60.0 s ahead of"),
        (node("b", -6_000), "6.0 s behind"),
        (node("b", version="2.0"), "different versions: a 1.0, b 2.0"),
        (node("b", log="no space left"), "the log of b takes no writes: no space left"),
        (node("b", failed_partitions=(3,)), "partition 3 of b is damaged"),
        (
            node("b", failed_partitions=(3,), newer_partitions=(3,)),
            "partition 3 of b was written by a newer release than 1.0: start that one again",
        ),
        (node("b", disk_free_bytes=512 * MIB), "the disk of b has 0.50 GiB left"),
        (NodeCheck(name="b", problem="no link"), "b is away: no link"),
    ],
    ids=["fast", "slow", "version", "log", "damage", "downgrade", "disk", "away"],
)
def test_what_is_wrong_with_a_node_is_one_sentence(wrong: NodeCheck, words: str) -> None:
    (said,) = problems([node("a"), wrong], SAME)
    assert words in said


def test_a_small_disk_may_have_less_than_a_gibibyte() -> None:
    assert list(problems([node(disk_bytes=4 * GIB, disk_free_bytes=GIB // 2)], SAME)) == []


def test_a_member_that_holds_a_newer_version_of_entries_back_is_told() -> None:
    (said,) = problems([node("a")], ClusterEntries(active=3, newest=4, held_by=("b", "c")))
    assert said == "entries are written in version 3, not 4, until b and c can read it: upgrade"
