"""The totals of a node, kept as topics change, are what a walk over all of them adds up to."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.kernel.errors import PenstockError
from penstock.testing import ManualClock
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Passed
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import make_record
from penstock.topics.core.registry import Registry
from penstock.topics.core.totals import Overdue, Shelves

NAMES = st.sampled_from(["a", "b", "q", "r"])
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "ttl_ms": st.sampled_from([0, 5, 40]),
        "cap_records": st.sampled_from([0, 3]),
        "cap_bytes": st.sampled_from([0, 7]),
        "durability": st.sampled_from(["ephemeral", "memory", "disk", "fsync"]),
        "leases_durable": st.booleans(),
    },
)


class TotalsMachine(RuleBasedStateMachine):
    """Topics `q` and `r` are queues. A change is staged, and then the log has it or not."""

    @initialize()
    def start(self) -> None:
        self.clock = ManualClock(now_ms=0)
        self.partition = Partition(Registry())
        self.log: list[bytes] = []
        self.token = 0

    @rule(name=NAMES, body=CONFIGS, logged=st.booleans())
    def put(self, name: str, body: dict[str, Any], logged: bool) -> None:
        if name not in self.partition.topics:
            body = {**body, "type": "queue" if name in "qr" else "log"}
        self.finish(self.partition.decide_config(name, body, self.clock.now_ms()), logged)

    @rule(name=NAMES, count=st.integers(1, 3), logged=st.booleans())
    def write(self, name: str, count: int, logged: bool) -> None:
        records = [make_record(b"%d" % number, tag="t") for number in range(count)]
        try:
            write = WriteRequest(Batch.of(records))
            decided = self.partition.decide_write(name, write, self.clock.now_ms())
        except PenstockError:
            return
        assert isinstance(decided, DecidedChange)
        self.finish(decided, logged)

    @rule(name=NAMES, before_seq=st.integers(0, 9), by_tag=st.booleans())
    def delete(self, name: str, before_seq: int, by_tag: bool) -> None:
        if name in self.partition.topics:
            match = Predicate("t", prefix=False) if by_tag else None
            now_ms = self.clock.now_ms()
            change = self.partition.decide_delete(name, now_ms, before_seq=before_seq, match=match)
            self.finish(change, True)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.finish(self.partition.decide_drop(name, self.clock.now_ms()), True)

    @rule(name=NAMES, jobs_max=st.integers(1, 3), lease_ms=st.sampled_from([5, 60]))
    def claim(self, name: str, jobs_max: int, lease_ms: int) -> None:
        queue = self.partition.queues.get(name)
        if queue is not None:
            self.token += 10
            request = ClaimRequest("n", jobs_max, lease_ms)
            entry = queue.decide_claim([request], self.clock.now_ms(), self.token)
            self.finish(self.partition.change_of(entry), bool(self.token % 3))

    @rule(
        name=NAMES,
        seqs=st.lists(st.integers(1, 9), max_size=4),
        verb=st.sampled_from(["ack", "nack", "delay", "extend"]),
        logged=st.booleans(),
    )
    def settle(self, name: str, seqs: list[int], verb: str, logged: bool) -> None:
        queue = self.partition.queues.get(name)
        if queue is None:
            return
        settle, now_ms = Settle("n", tuple(seqs)), self.clock.now_ms()
        if verb == "ack":
            entry, _ = queue.decide_ack(settle, now_ms)
        elif verb == "extend":
            entry, _ = queue.decide_extend(settle, now_ms, 30)  # type: ignore[assignment]
        else:
            entry, _ = queue.decide_nack(settle, now_ms, 9 * (verb == "delay"))  # type: ignore[assignment]
        self.finish(self.partition.change_of(entry), logged)

    @rule(name=NAMES)
    def look(self, name: str) -> None:
        """No reader changes anything."""
        topic = self.partition.topics.get(name)
        if topic is not None:
            before = self.partition.state()
            topic.at(self.clock.now_ms())
            assert self.partition.state() == before

    @rule()
    def time_passes(self) -> None:
        self.finish(DecidedChange(*[(Passed(self.clock.now_ms()),)] * 2), True)
        assert not list(self.partition.overdue(self.clock.now_ms()))

    @rule(name=NAMES)
    def forget_leases(self, name: str) -> None:
        queue = self.partition.queues.get(name)
        if queue is not None and not queue.topic.config.leases_durable:
            queue.forget_leases()

    @rule(span_ms=st.sampled_from([1, 7, 50]))
    def wait(self, span_ms: int) -> None:
        self.clock.advance(span_ms)

    @rule()
    def restart(self) -> None:
        """From the log, and then from a snapshot, as a whole and topic by topic."""
        again = Partition(Registry())
        for payload in self.log:
            again.apply_all(decode_entries(payload))
        for topic in again.topics.values():
            topic.lose_unlogged()
        restored = Partition.restored(again.state(), Registry())
        assert_same(restored, again)
        adopted = Partition(Registry())
        for name, topic in restored.topics.items():
            restored.registry.totals.remove(topic)
            adopted.adopt(restored.epoch, restored.now_ms, topic, restored.queues.get(name))
        assert_same(adopted, again)
        self.partition = again

    @invariant()
    def totals_are_what_a_walk_adds_up_to(self) -> None:
        now_ms = self.clock.now_ms()
        totals = self.partition.registry.totals
        overdue = Overdue()
        for _ in totals.overdue(now_ms, overdue):
            pass
        assert told(self.partition, overdue) == walk(self.partition, now_ms)
        listed = [topic for part in totals.topics.parts() for topic in part]
        assert {topic.name: topic for topic in listed} == self.partition.topics
        assert len(listed) == len(self.partition.topics)

    def finish(self, change: DecidedChange, logged: bool) -> None:
        self.partition.stage(change)
        if logged:
            self.log.append(encode_entries(change.to_log))
            self.partition.apply_all(change.entries)
        else:
            self.partition.abandon()


def told(partition: Partition, overdue: Overdue) -> tuple[Any, ...]:
    totals = partition.registry.totals
    records, size_bytes = totals.records - overdue.records, totals.size_bytes - overdue.size_bytes
    leases = totals.leases - overdue.leases
    return records, size_bytes, totals.hot_bytes, leases, +totals.by_class, +totals.by_type


def assert_same(restored: Partition, before: Partition) -> None:
    """All but the bytes in memory are the same; there, records that left may still have a place."""
    records, size_bytes, hot_bytes, *others = told(restored, Overdue())
    records_before, size_bytes_before, hot_bytes_before, *others_before = told(before, Overdue())
    assert (records, size_bytes, others) == (records_before, size_bytes_before, others_before)
    held = sum(topic.row.hot_bytes for topic in restored.topics.values())
    assert hot_bytes == held <= hot_bytes_before


def walk(partition: Partition, now_ms: int) -> tuple[Any, ...]:
    topics = partition.topics.values()
    in_flight = [queue.counts(now_ms).in_flight for queue in partition.queues.values()]
    return (
        sum(topic.at(now_ms).count for topic in topics),
        sum(topic.at(now_ms).size_bytes for topic in topics),
        sum(topic.row.hot_bytes for topic in topics),
        sum(in_flight),
        Counter(topic.config.durability for topic in topics),
        Counter(topic.config.type for topic in topics),
    )


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(0, 5))
def test_a_walk_meets_all_that_stay_once_each_while_others_come_and_go(names, steps):
    shelves: Shelves[int] = Shelves()
    places: dict[int, Any] = {}

    def turn(number: int) -> None:
        if number in places:
            shelves.take(str(number), places.pop(number))
        else:
            places[number] = shelves.add(str(number), number)

    with patch("penstock.topics.core.totals.SHELF_MAX", 2):
        for number in names[: len(names) // 2]:
            turn(number)
        staying = set(places) - set(names[len(names) // 2 :])
        left = iter(names[len(names) // 2 :])
        met: list[int] = []
        for part in shelves.parts():
            met += part
            for number in islice(left, steps):
                turn(number)
        for number in left:
            turn(number)
    assert [number for number in sorted(met) if number in staying] == sorted(staying)
    assert sorted(number for part in shelves.parts() for number in part) == sorted(places)


TestTotals = TotalsMachine.TestCase
TestTotals.settings = settings(max_examples=150, stateful_step_count=40)
