"""Queues of partitions, served in turns."""

from __future__ import annotations

import pytest

from penstock.kernel.errors import Rejected
from penstock.log.queues import PartitionQueues, QueueLimits


def test_limits_below_one_are_refused() -> None:
    for limits in ({"depth_max": 0}, {"total_max": 0}):
        with pytest.raises(Rejected, match="at least 1"):
            QueueLimits(**limits)


def test_130_ready_partitions_with_groups_of_64_make_groups_of_64_64_and_2() -> None:
    queues: PartitionQueues[tuple[int, str]] = PartitionQueues()
    for partition in range(130):
        queues.put((partition, "work"))
    groups = [queues.take(64, 256) for _ in range(4)]
    assert [len(group.work) for group in groups] == [64, 64, 2, 0]


def test_a_taken_partition_is_nobody_elses_until_it_is_finished() -> None:
    queues: PartitionQueues[tuple[int, str]] = PartitionQueues()
    queues.put((1, "a"))
    group = queues.take(64, 1)
    queues.put((1, "b"))
    assert queues.take(64, 1).work == []
    assert not queues.idle
    queues.finish(group)
    assert queues.take(64, 1) == ([1], [(1, "b")])


def test_a_hot_partition_takes_one_turn_and_then_stands_behind_the_others() -> None:
    queues: PartitionQueues[tuple[int, int]] = PartitionQueues()
    for number in range(4_000):
        queues.put((7, number))
    queues.finish(queues.take(1, 256))
    queues.put((8, -1))
    group = queues.take(2, 256)
    assert group.partitions == [7, 8]
    assert [partition for partition, _ in group.work] == [7] * 256 + [8]


def test_a_partition_keeps_its_order_over_many_turns() -> None:
    queues: PartitionQueues[tuple[int, int]] = PartitionQueues()
    for number in range(1_000):
        queues.put((1, number))
    seen: list[int] = []
    while (group := queues.take(64, 7)).work:
        seen += [number for _, number in group.work]
        queues.finish(group)
    assert seen == list(range(1_000))
    assert queues.idle
