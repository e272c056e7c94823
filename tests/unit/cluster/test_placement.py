"""Leaders are spread over the members, slowly."""

from __future__ import annotations

from penstock.cluster.placement import SETTLED_MS, TURN_MS, order_of, transfer_to
from penstock.raft.members import Members

MEMBERS = Members((10, 20, 30))


def hand_over(partition: int, own: int, healthy: set[int], **facts: int) -> int:
    facts = {"led_since_ms": 0, "now_ms": 8 * TURN_MS, "partitions": 4, **facts}
    return transfer_to(partition, order_of(partition, MEMBERS), own=own, healthy=healthy, **facts)


def test_each_partition_has_its_own_first_member() -> None:
    assert order_of(1, MEMBERS) == (20, 30, 10)
    assert {order_of(each, MEMBERS, together=True) for each in range(4)} == {(10, 20, 30)}


def test_a_leader_hands_over_to_the_first_healthy_member_before_it() -> None:
    assert hand_over(0, 20, {10, 30}) == 10
    assert hand_over(0, 20, {30}) == 0  # 30 comes after 20
    assert hand_over(0, 30, {20}) == 20
    assert hand_over(0, 10, {20, 30}) == 0


def test_partitions_take_turns() -> None:
    moves = [hand_over(0, 20, {10}, now_ms=turn * TURN_MS) for turn in range(8, 13)]
    assert moves == [10, 0, 0, 0, 10]


def test_nothing_moves_soon_after_an_election() -> None:
    now_ms = 8 * TURN_MS
    assert hand_over(0, 20, {10}, led_since_ms=now_ms - SETTLED_MS) == 10
    assert hand_over(0, 20, {10}, led_since_ms=now_ms - SETTLED_MS + 1) == 0
