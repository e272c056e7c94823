"""Several partitions of one node under random commands: replay in any order gives the same."""

from __future__ import annotations

from collections import deque
from itertools import permutations
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.protocol.errors import (
    RouterCycle,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotFound,
)
from penstock.protocol.limits import TopicLimits
from penstock.testing import ManualClock
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Appended
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.record import make_record
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import RouterConfig
from penstock.topics.core.topic import AppendResult

PARTITIONS = 3
TOPICS = st.sampled_from([f"{name}{place}" for place in range(PARTITIONS) for name in "ab"])
ROUTERS = st.sampled_from(["r", "s", "t"])
LIMITS = TopicLimits(topics_max=5, routers_max=2, total_bytes_max=40)


class NodeMachine(RuleBasedStateMachine):
    """The last letter of a topic's name is the number of its partition."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock(now_ms=0)
        self.registry = Registry(LIMITS)
        self.partitions = [Partition(self.registry) for _ in range(PARTITIONS)]
        self.staged: list[deque[DecidedChange]] = [deque() for _ in range(PARTITIONS)]
        self.logs: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.moving: set[str] = set()

    @rule(topic=TOPICS, count=st.integers(1, 4), cap=st.sampled_from([0, 3]))
    def write(self, topic: str, count: int, cap: int) -> None:
        batch = Batch.of([make_record(b"1")] * count)
        write = WriteRequest(batch, config={"cap_records": cap})
        is_new = topic not in self.registry.topics and topic not in self.creating()
        size_bytes = self.size_bytes() + count
        try:
            decided = self.of(topic).decide_write(topic, write, self.clock.now_ms())
        except Throttled as refused:
            if refused.detail["limit"] == "max_topics":
                assert is_new
                assert len(self.registry.topics) + len(self.creating()) == LIMITS.topics_max
            else:
                assert size_bytes > LIMITS.total_bytes_max
            return
        assert size_bytes <= LIMITS.total_bytes_max
        self.stage(topic, decided)

    @rule(topic=TOPICS, before_seq=st.integers(0, 8))
    def delete(self, topic: str, before_seq: int) -> None:
        if topic in self.registry.topics:
            now_ms = self.clock.now_ms()
            self.stage(topic, self.of(topic).decide_delete(topic, now_ms, before_seq=before_seq))

    @rule(name=ROUTERS, source=TOPICS, dest=TOPICS, allow_cycle=st.booleans())
    def put_router(self, name: str, source: str, dest: str, allow_cycle: bool) -> None:
        if source == dest or source not in self.registry.topics:
            return
        self.commit_everything(dest)
        config = RouterConfig(name, source, dest, allow_cycle=allow_cycle)
        try:
            change = self.of(dest).decide_router(config, self.clock.now_ms())
        except (Throttled, RouterCycle, TopicExistsIncompatible):
            return
        self.stage(dest, change)
        self.commit_everything(dest)

    @rule(name=ROUTERS)
    def remove_router(self, name: str) -> None:
        router = self.registry.routers.find(name)
        if router is not None:
            dest = router.config.dest
            self.commit_everything(dest)
            self.stage(dest, self.of(dest).decide_router_removal(name))
            self.commit_everything(dest)

    @rule(topic=TOPICS)
    def drop(self, topic: str) -> None:
        for router in self.registry.routers.fed_by(topic):
            self.remove_router(router.config.name)
        self.commit_everything(topic)
        self.stage(topic, self.of(topic).decide_drop(topic, self.clock.now_ms()))
        self.commit_everything(topic)

    @rule(name=ROUTERS)
    def forward(self, name: str) -> None:
        router = self.registry.routers.find(name)
        if router is None or name in self.moving:
            return
        dest = router.config.dest
        try:
            entry = self.of(dest).decide_step(name, self.clock.now_ms()).entry
        except (TopicNotFound, TopicFull):
            return
        if entry is not None:
            self.moving.add(name)
            self.stage(dest, self.of(dest).change_of(entry))

    @rule(place=st.integers(0, PARTITIONS - 1), count=st.integers(1, 4))
    def commit(self, place: int, count: int) -> None:
        staged = self.staged[place]
        for _ in range(min(count, len(staged))):
            change = staged.popleft()
            self.logs[place].append(encode_entries(change.to_log))
            self.partitions[place].apply_all(change.entries)
            self.arrived(change)

    @rule(place=st.integers(0, PARTITIONS - 1))
    def the_log_fails(self, place: int) -> None:
        for change in self.staged[place]:
            self.arrived(change)
        self.staged[place].clear()
        self.partitions[place].abandon()

    @rule()
    def restart(self) -> None:
        self.commit_all()
        wanted = self.state(self.registry, self.partitions)
        for order in permutations(range(PARTITIONS)):
            registry = Registry(LIMITS)
            partitions = [Partition(registry) for _ in range(PARTITIONS)]
            for place in order:
                for payload in self.logs[place]:
                    partitions[place].apply_all(decode_entries(payload))
            assert self.state(registry, partitions) == wanted
        self.registry, self.partitions = registry, partitions

    @invariant()
    def totals_are_what_the_topics_add_up_to(self) -> None:
        registry = self.registry
        topics = {name: topic for each in self.partitions for name, topic in each.topics.items()}
        assert registry.topics == topics
        assert registry.size_bytes == sum(topic.size_bytes for topic in topics.values())
        assert registry.size_bytes + registry.staged_bytes == self.size_bytes()
        assert registry.creating == len(self.creating())
        assert len(topics) + registry.creating <= LIMITS.topics_max
        assert len(registry.routers) <= LIMITS.routers_max

    @invariant()
    def every_router_has_its_ends_and_one_source_feeds_a_topic(self) -> None:
        sources: dict[str, str] = {}
        for router in self.registry.routers:
            config = router.config
            source = self.registry.topics[config.source]
            assert source.epoch == router.source_epoch
            assert router.source_seq <= source.head_seq
            assert config.dest in self.registry.topics
            assert sources.setdefault(config.dest, config.source) == config.source

    def teardown(self) -> None:
        if hasattr(self, "registry"):
            self.restart()

    # Aids

    def of(self, topic: str) -> Partition:
        return self.partitions[int(topic[-1])]

    def stage(self, topic: str, change: DecidedChange | AppendResult) -> None:
        assert isinstance(change, DecidedChange)
        if change.entries:
            self.of(topic).stage(change)
            self.staged[int(topic[-1])].append(change)

    def commit_everything(self, topic: str) -> None:
        place = int(topic[-1])
        self.commit(place, len(self.staged[place]))

    def commit_all(self) -> None:
        for place in range(PARTITIONS):
            self.commit(place, len(self.staged[place]))

    def arrived(self, change: DecidedChange) -> None:
        for entry in change.entries:
            if isinstance(entry, Appended) and entry.feed is not None:
                self.moving.discard(entry.feed.router)

    def creating(self) -> set[str]:
        return {name for each in self.partitions for name in each._creating}

    def size_bytes(self) -> int:
        appends = [
            entry
            for staged in self.staged
            for change in staged
            for entry in change.entries
            if isinstance(entry, Appended)
        ]
        live = sum(topic.size_bytes for topic in self.registry.topics.values())
        return live + sum(entry.batch.size_bytes for entry in appends)

    def state(self, registry: Registry, partitions: list[Partition]) -> list[Any]:
        return [
            [partition.state() for partition in partitions],
            list(registry.routers),
            registry.size_bytes,
        ]


TestNode = NodeMachine.TestCase
TestNode.settings = settings(max_examples=100, stateful_step_count=40)
