"""A partition whose changes reach the log late, together, or not at all; replay must agree."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.protocol.errors import RecordTooLarge, TopicFull, TopicNotFound
from penstock.testing import ManualClock
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Appended
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.record import make_record
from penstock.topics.core.router import RouterConfig
from penstock.topics.core.topic import AppendResult

LOGS = st.sampled_from(["a", "x", "y", "dead"])
TOPICS = st.sampled_from(["a", "x", "y", "q"])
QUEUE = {"type": "queue", "leases_durable": True, "max_deliveries": 2, "dead_letter": "dead"}


class PartitionMachine(RuleBasedStateMachine):
    """`staged` is on its way to `log`. Topic `a` feeds `b` and then `c`, which get nothing else."""

    @initialize(cap=st.sampled_from([0, 6]), reject=st.booleans())
    def start(self, cap: int, reject: bool) -> None:
        self.clock = ManualClock(now_ms=0)
        self.partition = Partition()
        self.staged: deque[DecidedChange] = deque()
        self.log: list[bytes] = []
        self.written = 0
        self.sent: list[bytes] = []  # what `a` was given
        self.answers: dict[tuple[str, str], tuple[int, int]] = {}
        self.a_lost_some = False
        discard = "reject" if reject else "old"
        for name, body in (
            ("a", {}),
            ("q", QUEUE | {"cap_records": cap}),
            ("x", {"cap_records": cap, "discard": discard}),
        ):
            self.stage(self.partition.decide_config(name, body, 0))
            self.commit_everything()
        for name, source, dest in (("ab", "a", "b"), ("bc", "b", "c")):
            config = RouterConfig(name, source, dest, guarantee="exactly_once")
            self.stage(self.partition.decide_router(config, 0))
            self.commit_everything()

    @rule(topic=TOPICS, count=st.integers(1, 3), key=st.sampled_from([None, None, "k", "l"]))
    def write(self, topic: str, count: int, key: str | None) -> None:
        payloads = [b"%d" % (self.written + number) for number in range(count)]
        records = [make_record(data, tag=data[-1:].decode()) for data in payloads]
        try:
            write = WriteRequest(Batch.of(records), key)
            decided = self.partition.decide_write(topic, write, self.clock.now_ms())
        except (TopicFull, RecordTooLarge):
            return
        if isinstance(decided, AppendResult):
            assert (decided.first_seq, decided.last_seq) == self.answers[topic, key or ""]
            return
        self.written += count
        entry = decided.entries[-1]
        assert isinstance(entry, Appended)
        if key is not None:
            assert (topic, key) not in self.answers
            self.answers[topic, key] = (entry.first_seq, entry.first_seq + count - 1)
        if topic == "a":
            self.sent += payloads
        self.stage(decided)

    @rule(topic=TOPICS, before_seq=st.integers(0, 9), digit=st.sampled_from([None, "1", "2"]))
    def delete(self, topic: str, before_seq: int, digit: str | None) -> None:
        match = Predicate(digit, prefix=False) if digit else None
        try:
            change = self.partition.decide_delete(
                topic, self.clock.now_ms(), before_seq=before_seq, match=match
            )
        except TopicNotFound:
            return
        self.a_lost_some |= topic == "a"
        self.stage(change)

    @rule(jobs_max=st.integers(1, 3))
    def claim(self, jobs_max: int) -> None:
        queue, now_ms = self.partition.queue("q"), self.clock.now_ms()
        claimed = queue.decide_claim([ClaimRequest("n", jobs_max, 20)], now_ms, self.written)
        buried = DecidedChange((), ())
        if claimed.dead:
            try:
                buried = self.partition.decide_dead_letters("dead", queue.letters(claimed), now_ms)
            except (TopicFull, RecordTooLarge):
                claimed = claimed.without_dead_letters()
        settled = self.partition.change_of(claimed)
        self.stage(
            DecidedChange((*settled.entries, *buried.entries), (*settled.to_log, *buried.to_log))
        )

    @rule(seqs=st.lists(st.integers(1, 12), max_size=4), verb=st.sampled_from(["ack", "nack"]))
    def settle(self, seqs: list[int], verb: str) -> None:
        queue, settle = self.partition.queue("q"), Settle("n", tuple(seqs))
        now_ms = self.clock.now_ms()
        entry, _ = (
            queue.decide_ack(settle, now_ms)
            if verb == "ack"
            else queue.decide_nack(settle, now_ms, 0)
        )
        self.stage(self.partition.change_of(entry))

    @rule(router=st.sampled_from(["ab", "bc"]))
    def forward(self, router: str) -> None:
        if not any(self.feeds(change, router) for change in self.staged):
            entry = self.partition.decide_step(router, self.clock.now_ms()).entry
            if entry is not None:
                self.stage(self.partition.change_of(entry))

    @rule(topic=LOGS, body=st.fixed_dictionaries({"cap_bytes": st.sampled_from([0, 9])}))
    def configure(self, topic: str, body: dict[str, Any]) -> None:
        self.commit_everything()
        if topic in self.partition.topics and topic != "a":
            self.stage(self.partition.decide_config(topic, body, self.clock.now_ms()))

    @rule(topic=st.sampled_from(["x", "y", "dead"]))
    def drop(self, topic: str) -> None:
        self.commit_everything()
        self.stage(self.partition.decide_drop(topic, self.clock.now_ms()))
        self.commit_everything()
        for key in [key for key in self.answers if key[0] == topic]:
            del self.answers[key]

    @rule(ms=st.integers(1, 15))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(count=st.integers(1, 4))
    def commit(self, count: int) -> None:
        for _ in range(min(count, len(self.staged))):
            change = self.staged.popleft()
            self.log.append(encode_entries(change.to_log))
            self.partition.apply_all(change.entries)

    @rule()
    def the_log_fails(self) -> None:
        """Nothing that was staged ever was."""
        if self.staged:
            self.forget([entry for change in self.staged for entry in change.entries])
            self.partition.abandon()
            self.staged.clear()
        self.replay_agrees()

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.commit_everything()
        self.partition = Partition.restored(self.partition.state())

    @invariant()
    def copies_come_once_and_in_order(self) -> None:
        if "c" in self.partition.topics:
            for source, dest in (("a", "b"), ("b", "c")):
                given, copies = self.read(source), self.read(dest)
                assert copies == sorted(set(copies), key=copies.index)
                if not self.a_lost_some:
                    assert copies == given[: len(copies)]

    def teardown(self) -> None:
        if not hasattr(self, "partition"):
            return
        self.commit_everything()
        for router in ("ab", "bc"):
            self.forward(router)
            self.commit_everything()
        if not self.a_lost_some:
            assert self.read("c") == self.read("b") == self.read("a") == self.sent
        self.replay_agrees()

    # Aids

    def stage(self, change: DecidedChange) -> None:
        if change.entries:
            self.partition.stage(change)
            self.staged.append(change)

    def commit_everything(self) -> None:
        self.commit(len(self.staged))

    def replayed(self) -> Partition:
        again = Partition()
        for entries in self.log:
            again.apply_all(decode_entries(entries))
        return again

    def replay_agrees(self) -> None:
        again = self.replayed()
        assert again.state() == self.partition.state()
        assert again.registry.size_bytes == self.partition.registry.size_bytes

    def forget(self, lost: list[Any]) -> None:
        for entry in lost:
            if isinstance(entry, Appended):
                self.answers.pop((entry.topic, entry.key or ""), None)
                gone = {bytes(record.data) for record in entry.batch.records}
                if entry.topic == "a":
                    self.sent = [data for data in self.sent if data not in gone]

    def feeds(self, change: DecidedChange, router: str) -> bool:
        return any(
            isinstance(entry, Appended) and entry.feed and entry.feed.router == router
            for entry in change.entries
        )

    def read(self, topic: str) -> list[bytes]:
        request = ReadRequest(limit=10_000)
        page = self.partition.read(topic, request, self.clock.now_ms())
        return [bytes(slot.record.data) for slot in page.records]


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(max_examples=100, stateful_step_count=40)
