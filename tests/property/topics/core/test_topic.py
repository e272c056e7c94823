"""A log topic against a plain model: every seq with what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.protocol.config import TopicConfig
from penstock.protocol.errors import RecordTooLarge, TopicFull
from penstock.protocol.limits import TopicLimits
from penstock.testing import ManualClock
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, TopicEntry
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import DiffPage, ReadRequest, read
from penstock.topics.core.record import RawRecord, make_record, size_of
from penstock.topics.core.topic import AppendResult, Topic
from penstock.topics.core.topic_state import Floors

TAGS = st.sampled_from(["a", "ab", "b", None])
NODES = st.sampled_from(["n", "m", None])
RECORDS = st.builds(
    lambda size, tag, node: make_record(b"1" * size, None, tag, node),
    st.integers(1, 9),
    TAGS,
    NODES,
)
PREDICATES = st.builds(Predicate, st.sampled_from(["a", "ab", "b", "c", ""]), st.booleans())
CAPS = st.sampled_from([0, 0, 3, 8])
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "cap_records": CAPS,
        "cap_bytes": st.sampled_from([0, 0, 12, 40]),
        "ttl_ms": st.sampled_from([0, 5, 20]),
        "discard": st.sampled_from(["old", "reject"]),
    },
)
WINDOW_MS = 20
LIMITS = TopicLimits(scan_records_max=5, filter_records_max=3)


@dataclass
class Fate:
    """What was appended, and what became of it."""

    ts_ms: int
    record: RawRecord
    lost: str | None = None


class TopicMachine(RuleBasedStateMachine):
    """`fates` holds every seq for ever; caps and ages are restated by looking at all of them."""

    @initialize(changes=CHANGES)
    def start(self, changes: dict[str, Any]) -> None:
        self.clock = ManualClock(now_ms=0)
        self.config = TopicConfig(idempotency_window_ms=WINDOW_MS).merged(changes)
        self.first_config = self.config
        self.topic = self.fresh()
        self.entries: list[TopicEntry] = []
        self.fates: dict[int, Fate] = {}
        self.keys: dict[str, tuple[int, int, int]] = {}
        self.evicted = 0
        self.floors = Floors()

    def fresh(self) -> Topic:
        return Topic("t", self.first_config, epoch=1, now_ms=0)

    @rule(records=st.lists(RECORDS, min_size=1, max_size=6))
    def append(self, records: list[RawRecord]) -> None:
        self.age()
        refusal = self.refusal(records)
        if refusal is not None:
            with pytest.raises(refusal):
                self.topic.decide_append(Batch.of(records), self.clock.now_ms())
            return
        entry = self.topic.decide_append(Batch.of(records), self.clock.now_ms())
        assert isinstance(entry, Appended)
        self.apply(entry)
        self.accept(records)

    @rule(records=st.lists(RECORDS, min_size=1, max_size=3), key=st.sampled_from("xyz"))
    def append_with_a_key(self, records: list[RawRecord], key: str) -> None:
        self.age()
        now_ms = self.clock.now_ms()
        self.keys = {k: kept for k, kept in self.keys.items() if now_ms - kept[2] <= WINDOW_MS}
        refusal = self.refusal(records)
        if refusal is not None and key not in self.keys:
            with pytest.raises(refusal):
                self.topic.decide_append(Batch.of(records), self.clock.now_ms(), key=key)
            return
        entry = self.topic.decide_append(Batch.of(records), self.clock.now_ms(), key=key)
        if key in self.keys:
            first_seq, last_seq, _ = self.keys[key]
            count = last_seq - first_seq + 1
            assert entry == AppendResult(first_seq, last_seq, count, last_seq, deduped=True)
            return
        assert isinstance(entry, Appended)
        self.apply(entry)
        self.accept(records)
        self.keys[key] = (len(self.fates) - len(records) + 1, len(self.fates), now_ms)
        assert list(self.topic.answers.kept()) == [*(k for k in self.keys if k != key), key]

    @rule(before_seq=st.none() | st.integers(0, 40), match=st.none() | PREDICATES)
    def delete(self, before_seq: int | None, match: Predicate | None) -> None:
        if before_seq is None and match is None:
            return
        self.age()
        entry = self.topic.decide_delete(self.clock.now_ms(), before_seq=before_seq, match=match)
        deleted = self.apply(entry)
        chosen = [
            fate
            for seq, fate in self.fates.items()
            if fate.lost is None
            and (before_seq is None or seq < before_seq)
            and (match is None or match.matches(fate.record.tag))
        ]
        for fate in chosen:
            fate.lost = "deleted"
        assert deleted == len(chosen)

    @rule(changes=CHANGES)
    def configure(self, changes: dict[str, Any]) -> None:
        self.age()
        self.apply(self.topic.decide_configure(changes, self.clock.now_ms()))
        self.config = self.config.merged(changes)
        self.age()
        self.evict()

    @rule(ms=st.sampled_from([1, 5, 5, 15, 20]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(
        from_seq=st.integers(0, 45),
        limit=st.integers(1, 7),
        batch_bytes_max=st.sampled_from([1, 10, 1_000]),
        nodes=st.frozensets(st.sampled_from("nm")),
    )
    def read_to_the_end_in_pages(
        self, from_seq: int, limit: int, batch_bytes_max: int, nodes: frozenset[str]
    ) -> None:
        self.age()
        request = ReadRequest(from_seq, limit, nodes, batch_bytes_max=batch_bytes_max)
        pages = [self.page(request)]
        while not pages[-1].caught_up:
            pages.append(self.page(request._replace(from_seq=pages[-1].next_from_seq)))
            assert pages[-1].tombstone is None
            assert pages[-1].next_from_seq > pages[-2].next_from_seq
        got = [slot.seq for page in pages for slot in page.records]
        start = from_seq if from_seq <= len(self.fates) else 0
        assert got == [
            seq for seq in self.live() if seq > start and self.fates[seq].record.node not in nodes
        ]
        self.every_seq_is_accounted_for(from_seq, pages[0])

    @rule()
    def replay(self) -> None:
        again = self.fresh()
        for entry in self.entries:
            again.apply(entry)
        assert again.state() == self.topic.state()

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.topic = Topic.restored(self.topic.state())

    @invariant()
    def the_topic_is_what_the_model_says(self) -> None:
        self.age()
        live, topic = self.live(), self.topic
        seen = topic.at(self.clock.now_ms())
        assert [slot.seq for slot in topic.live(seen.earliest_seq - 1, topic.head_seq)] == live
        for seq in live:
            fate = self.fates[seq]
            assert topic.slot(seq) == (seq, fate.ts_ms, fate.record)
        assert topic.head_seq == len(self.fates)
        assert seen.count == len(live)
        assert seen.size_bytes == sum(size_of(self.fates[seq].record) for seq in live)
        assert seen.earliest_seq == (live[0] if live else len(self.fates) + 1)

    @invariant()
    def floors_never_go_back(self) -> None:
        floors = self.topic.at(self.clock.now_ms()).floors
        assert all(new >= old for new, old in zip(floors, self.floors, strict=True))
        self.floors = floors

    # The model

    def apply(self, entry: TopicEntry) -> AppendResult | int:
        self.entries.append(entry)
        return self.topic.apply(entry)

    def live(self) -> list[int]:
        return [seq for seq, fate in self.fates.items() if fate.lost is None]

    def accept(self, records: list[RawRecord]) -> None:
        for record in records:
            self.fates[len(self.fates) + 1] = Fate(self.clock.now_ms(), record)
        self.evict()

    def age(self) -> None:
        ttl_ms = self.config.ttl_ms
        for fate in self.fates.values():
            if ttl_ms and fate.lost is None and self.clock.now_ms() - fate.ts_ms > ttl_ms:
                fate.lost = "expired"

    def evict(self) -> None:
        config = self.config
        if config.discard == "reject":
            return
        if config.cap_records:
            self.evicted = max(self.evicted, len(self.fates) - config.cap_records)
            for seq in self.live():
                if seq <= self.evicted:
                    self.fates[seq].lost = "evicted"
        while config.cap_bytes and self.bytes_of(self.live()) > config.cap_bytes:
            self.fates[self.live()[0]].lost = "evicted"

    def bytes_of(self, seqs: list[int]) -> int:
        return sum(size_of(self.fates[seq].record) for seq in seqs)

    def refusal(self, records: list[RawRecord]) -> type[Exception] | None:
        config = self.config
        if config.discard == "old":
            return None
        size_bytes = sum(size_of(record) for record in records)

        def is_over(count: int, size_bytes: int) -> bool:
            over_count = config.cap_records and count > config.cap_records
            return bool(over_count or (config.cap_bytes and size_bytes > config.cap_bytes))

        if is_over(len(records), size_bytes):
            return RecordTooLarge
        live = self.live()
        if is_over(len(live) + len(records), self.bytes_of(live) + size_bytes):
            return TopicFull
        return None

    def page(self, request: ReadRequest) -> DiffPage:
        page = read(self.topic, request, self.clock.now_ms(), LIMITS)
        assert page.caught_up is (page.next_from_seq == page.head_seq)
        assert page.lag == page.head_seq - page.next_from_seq
        assert len(page.records) <= request.limit
        sizes = [size_of(slot.record) for slot in page.records]
        assert len(sizes) <= 1 or sum(sizes) <= request.batch_bytes_max
        return page

    def every_seq_is_accounted_for(self, from_seq: int, page: DiffPage) -> None:
        """What a reader does not get was deleted on request, filtered, or told in a tombstone."""
        gone = page.tombstone
        if from_seq > len(self.fates):
            assert gone is not None
            assert gone.reason == "recreated"
            return
        for seq, fate in self.fates.items():
            if seq > from_seq and fate.lost in ("expired", "evicted"):
                assert gone is not None
                assert gone.gap_from == from_seq + 1
                assert seq <= gone.gap_to
        if gone is not None:
            assert gone.earliest_seq == gone.gap_to + 1
            assert gone.missed_estimate == gone.gap_to - from_seq
            assert all(seq > gone.gap_to for seq in self.live())


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(max_examples=100, stateful_step_count=40)
