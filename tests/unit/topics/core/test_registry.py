"""Several partitions of one node: routers between them, limits over all of them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import Throttled, TopicExistsIncompatible, TopicNotFound
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.entries import Passed
from penstock.topics.core.partition import DecidedChange, Entry, Partition
from penstock.topics.core.record import make_record
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import RouterConfig
from penstock.topics.core.topic import AppendResult, Topic


class Node:
    """Two partitions, each with its log: `left` has the topics that begin with l."""

    def __init__(self, **limits: int) -> None:
        self.limits = TopicLimits(**limits)
        self.registry = Registry(self.limits)
        self.left, self.right = Partition(self.registry), Partition(self.registry)
        self.logs: tuple[list[Entry], list[Entry]] = ([], [])

    def of(self, topic: str) -> Partition:
        return self.left if topic.startswith("l") else self.right

    def run(self, topic: str, change: DecidedChange | AppendResult) -> list[Any]:
        assert isinstance(change, DecidedChange)
        partition = self.of(topic)
        partition.stage(change)
        self.logs[partition is self.right].extend(change.to_log)
        return partition.apply_all(change.entries)

    def stage(self, topic: str, count: int = 1, **options: Any) -> DecidedChange:
        batch = Batch.of([make_record(b"1")] * count)
        change = self.of(topic).decide_write(topic, WriteRequest(batch, **options), 0)
        assert isinstance(change, DecidedChange)
        self.of(topic).stage(change)
        return change

    def write(self, topic: str, count: int = 1, **options: Any) -> None:
        batch = Batch.of([make_record(b"1")] * count)
        self.run(topic, self.of(topic).decide_write(topic, WriteRequest(batch, **options), 0))

    def put_router(self, name: str, source: str, dest: str, **options: Any) -> None:
        config = RouterConfig(name, source, dest, **options)
        self.run(dest, self.of(dest).decide_router(config, 0))

    def forward(self, name: str) -> int:
        dest = self.registry.routers.get(name).config.dest
        entry = self.of(dest).decide_step(name, 0).entry
        if entry is None:
            return 0
        return int(self.run(dest, self.of(dest).change_of(entry))[-1].records)

    def drop(self, topic: str) -> None:
        for router in self.registry.routers.fed_by(topic):
            dest = router.config.dest
            self.run(dest, self.of(dest).decide_router_removal(router.config.name))
        self.run(topic, self.of(topic).decide_drop(topic, 0))

    def restarted(self, *order: int) -> Node:
        again = Node()
        again.registry = Registry(self.limits)
        again.left, again.right = Partition(again.registry), Partition(again.registry)
        for place in order:
            (again.left, again.right)[place].apply_all(self.logs[place])
        return again

    def state(self) -> tuple[object, ...]:
        registry = self.registry
        return (
            self.left.state(),
            self.right.state(),
            tuple(registry.routers),
            registry.size_bytes,
            sorted(registry.topics),
        )

    def comes_back_in_any_order(self) -> None:
        assert self.restarted(0, 1).state() == self.state()
        assert self.restarted(1, 0).state() == self.state()


def test_a_router_brings_copies_from_one_partition_to_another() -> None:
    node = Node()
    node.write("left", 2)
    node.put_router("r", "left", "right")
    assert "right" in node.right.topics
    assert node.forward("r") == 0, "it begins at the head of its source"
    node.write("left", 3)
    assert node.forward("r") == 3
    assert node.forward("r") == 0
    assert node.right.topic("right").count == 3
    assert node.registry.routers.get("r").source_seq == 5
    assert [len(node.left.state().routers), len(node.right.state().routers)] == [0, 1]
    node.comes_back_in_any_order()


def test_a_chain_of_routers_goes_back_and_forth_between_partitions() -> None:
    node = Node()
    node.write("l1")
    node.put_router("a", "l1", "r1")
    node.put_router("b", "r1", "l2", guarantee="exactly_once")
    node.write("l1", 4)
    assert [node.forward("a"), node.forward("b"), node.forward("b")] == [4, 4, 0]
    node.comes_back_in_any_order()
    again = node.restarted(1, 0)
    assert [again.forward("a"), again.forward("b")] == [0, 0]


def test_copies_that_were_not_logged_are_made_after_a_restart() -> None:
    node = Node()
    node.write("left")
    node.put_router("r", "left", "right")
    node.write("left", 3)
    assert node.restarted(1, 0).forward("r") == 3


def test_a_router_of_the_same_name_may_come_to_lead_elsewhere() -> None:
    node = Node()
    for topic in ("left", "right"):
        node.write(topic)
    node.put_router("r", "left", "right2")
    with pytest.raises(TopicExistsIncompatible):
        node.put_router("r", "right", "left2")
    node.run("right2", node.right.decide_router_removal("r"))
    node.put_router("r", "right", "left2")
    node.run("left2", node.left.decide_router_removal("r"))
    node.put_router("r", "left", "right2")
    node.write("left", 2)
    assert node.forward("r") == 2
    node.comes_back_in_any_order()


def test_a_dropped_source_and_a_new_one_of_its_name_come_back_in_any_order() -> None:
    node = Node()
    node.write("left", 5)
    node.put_router("r", "left", "right")
    node.write("left", 5)
    node.forward("r")
    node.drop("left")
    assert len(node.registry.routers) == 0
    node.write("left", 2)
    node.put_router("r", "left", "right")
    node.write("left", 1)
    assert node.forward("r") == 1
    assert node.right.topic("right").count == 6
    node.comes_back_in_any_order()


def test_a_router_does_not_take_a_new_topic_for_its_source() -> None:
    node = Node()
    node.write("left", 5)
    node.put_router("r", "left", "right")
    node.run("left", node.left.decide_drop("left", 0))  # though the router should have gone first
    with pytest.raises(TopicNotFound):
        node.forward("r")
    node.write("left", 9)
    with pytest.raises(TopicNotFound):
        node.forward("r")


def test_a_topic_that_is_dropped_takes_the_routers_into_it_along_in_one_change() -> None:
    node = Node()
    node.write("left")
    node.put_router("r", "left", "right")
    node.put_router("s", "left", "right")
    node.drop("right")
    assert len(node.registry.routers) == 0
    node.comes_back_in_any_order()


def test_rules_between_routers_hold_across_partitions() -> None:
    node = Node()
    node.write("left")
    node.put_router("r", "left", "right")
    node.write("left2")
    with pytest.raises(TopicExistsIncompatible):
        node.put_router("s", "left2", "right")


def test_the_limit_on_topics_is_one_for_all_partitions_and_counts_those_on_their_way() -> None:
    node = Node(topics_max=2)
    node.write("left")
    node.stage("right")
    for topic in ("left2", "right2"):
        with pytest.raises(Throttled) as refused:
            node.write(topic)
        assert refused.value.detail == {"limit": "max_topics", "max": 2}
    node.right.abandon()
    node.write("left2")
    with pytest.raises(Throttled):
        node.write("right")
    node.drop("left")
    node.write("right")


def test_the_limit_on_routers_is_one_for_all_partitions() -> None:
    node = Node(routers_max=1)
    node.write("left")
    node.put_router("r", "left", "right")
    for dest in ("left2", "right2"):
        with pytest.raises(Throttled):
            node.put_router("s", "left", dest)
        assert dest not in node.registry.topics


def test_the_limit_on_bytes_is_one_for_all_partitions() -> None:
    node = Node(total_bytes_max=5)
    node.write("left", 3)
    node.write("right", 2)
    for topic in ("left", "right"):
        with pytest.raises(Throttled) as refused:
            node.write(topic)
        assert refused.value.detail == {"limit": "max_total_bytes", "max": 5}
    node.run("left", node.left.decide_delete("left", 0, before_seq=2))
    node.write("right")
    node.drop("right")
    assert node.registry.size_bytes == 2


def test_bytes_on_their_way_to_a_log_count_until_they_are_there_or_will_not_be() -> None:
    node = Node(total_bytes_max=5)
    first, second = node.stage("left", 2), node.stage("right", 3)
    with pytest.raises(Throttled):
        node.stage("left")
    node.left.apply_all(first.entries)
    assert (node.registry.size_bytes, node.registry.staged_bytes) == (2, 3)
    with pytest.raises(Throttled):
        node.stage("left")
    node.right.abandon()
    assert (node.registry.size_bytes, node.registry.staged_bytes) == (2, 0)
    again = node.stage("right", 3)
    with pytest.raises(Throttled):
        node.stage("right")
    node.right.apply_all(again.entries)
    assert (node.registry.size_bytes, node.registry.staged_bytes) == (5, 0)
    assert second.to_log


def test_bytes_that_age_out_make_room_when_their_topic_is_looked_at() -> None:
    node = Node(total_bytes_max=2)
    node.write("left", 2, config={"ttl_ms": 10})
    batch = Batch.of([make_record(b"1")])
    with pytest.raises(Throttled):
        node.left.decide_write("left", WriteRequest(batch), 10)
    assert isinstance(node.left.decide_write("left", WriteRequest(batch), 11), DecidedChange)


def test_bytes_that_age_out_make_room_once_time_has_passed_in_their_partition() -> None:
    node = Node(total_bytes_max=3)
    node.write("left", 2, config={"ttl_ms": 10})
    write = WriteRequest(Batch.of([make_record(b"1")] * 2))
    assert not node.registry.is_short
    with pytest.raises(Throttled):
        node.right.decide_write("right", write, 20)
    assert node.registry.is_short, "old records should leave soon"
    assert node.registry.size_bytes == 2, "a decision changes nothing"
    node.left.apply(Passed(10))
    assert node.registry.size_bytes == 2
    node.left.apply(Passed(11))
    node.run("right", node.right.decide_write("right", write, 20))
    assert node.registry.size_bytes == 2


def test_a_total_counts_what_replay_brings_back_and_nothing_twice() -> None:
    node = Node(total_bytes_max=100)
    node.write("left", 4, config={"cap_records": 2})
    node.write("left", 3)
    node.write("right", 3)
    node.put_router("r", "left", "right")
    node.write("left", 2)
    node.forward("r")
    assert node.registry.size_bytes == 2 + 3 + 2
    node.comes_back_in_any_order()


def test_names_are_in_order_whatever_comes_and_goes() -> None:
    registry, draw = Registry(), Random(7)
    names = [f"{draw.choice('ab')}{draw.randrange(500)}" for _ in range(200)]
    for number, name in enumerate(names):
        if name in registry.topics:
            registry.remove(name)
        else:
            registry.add(Topic(name, TopicConfig(), epoch=1, now_ms=0))
        if number % 50 in (3, 4, 7, 31):
            for prefix, after in (("", None), ("a", None), ("b1", None), ("a", "a3"), ("b", "a3")):
                assert list(registry.names_from(prefix, after)) == sorted(
                    name
                    for name in registry.topics
                    if name.startswith(prefix) and (after is None or name > after)
                )
