"""A queue against a plain model: every job is in exactly one place, whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.protocol.config import TopicConfig
from penstock.testing import ManualClock
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, QueueEntry, TopicEntry
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.queue import Queue
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import Topic

NODES = st.sampled_from("ab")
SEQS = st.lists(st.integers(1, 10), max_size=6)
LEASE_MS = 20
MAX_DELIVERIES = 3


class QueueMachine(RuleBasedStateMachine):
    """`where` says of each job: `waiting`, a lease, a delay, or how it left."""

    @initialize(cap_records=st.sampled_from([0, 0, 8]), buries=st.booleans())
    def start(self, cap_records: int, buries: bool) -> None:
        self.clock = ManualClock(now_ms=0)
        self.buries = buries
        self.config = TopicConfig(
            type="queue",
            cap_records=cap_records,
            leases_durable=True,
            max_deliveries=MAX_DELIVERIES if buries else 0,
            dead_letter="dead" if buries else None,
        )
        self.queue = self.fresh()
        self.log: list[TopicEntry | QueueEntry] = []
        self.where: dict[int, tuple[Any, ...]] = {}
        self.delivered: dict[int, int] = {}
        self.dead: list[int] = []
        self.tokens = 0

    def fresh(self) -> Queue:
        return Queue(Topic("q", self.config, epoch=1, now_ms=0))

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        records = [make_record(b"%d" % (len(self.where) + 1 + number)) for number in range(count)]
        entry = self.queue.topic.decide_append(Batch.of(records), self.clock.now_ms())
        assert isinstance(entry, Appended)
        self.change(entry)
        for _ in range(count):
            self.where[len(self.where) + 1] = ("waiting",)
        cap = self.config.cap_records
        self.leave(range(1, len(self.where) - cap + 1 if cap else 0))

    @rule(wanted=st.lists(st.tuples(NODES, st.integers(1, 3)), min_size=1, max_size=3))
    def claim(self, wanted: list[tuple[str, int]]) -> None:
        self.sweep()
        requests = [ClaimRequest(node, jobs_max, LEASE_MS) for node, jobs_max in wanted]
        claimed = self.queue.decide_claim(requests, self.clock.now_ms(), self.tokens)
        self.tokens += 100
        asked = sum(jobs_max for _, jobs_max in wanted)
        got, buried = self.expected_claim(asked)
        assert [lease.seq for lease in claimed.leases] == got
        assert list(claimed.dead) == buried
        letters = self.queue.letters(claimed).records
        assert [bytes(letter.data) for letter in letters] == [b"%d" % seq for seq in buried]
        self.apply(claimed)
        for seq in buried:
            self.where[seq] = ("dead",)
            self.dead.append(seq)
        for lease in claimed.leases:
            self.delivered[lease.seq] = self.delivered.get(lease.seq, 0) + 1
            assert lease.deliveries == self.delivered[lease.seq]
            assert lease.node == wanted[lease.request][0]
            deadline_ms = self.clock.now_ms() + LEASE_MS
            self.where[lease.seq] = ("leased", lease.node, deadline_ms, lease.fence)
        for index, (_, jobs_max) in enumerate(wanted):
            assert sum(lease.request == index for lease in claimed.leases) <= jobs_max

    @rule(node=NODES, seqs=SEQS)
    def ack(self, node: str, seqs: list[int]) -> None:
        self.sweep()
        entry, skipped = self.queue.decide_ack(Settle(node, tuple(seqs)), self.clock.now_ms())
        self.check_split(node, seqs, entry.seqs, skipped)
        self.apply(entry)
        for seq in entry.seqs:
            self.where[seq] = ("acked",)

    @rule(node=NODES, seqs=SEQS, stale=st.booleans())
    def ack_with_tokens(self, node: str, seqs: list[int], stale: bool) -> None:
        self.sweep()
        fences = tuple(
            place[3] - stale if place[0] == "leased" else 0
            for place in (self.where.get(seq, ("none",)) for seq in seqs)
        )
        settle = Settle(node, tuple(seqs), fences)
        entry, skipped = self.queue.decide_ack(settle, self.clock.now_ms())
        if stale:
            assert (entry.seqs, skipped) == ((), seqs)
            return
        self.check_split(node, seqs, entry.seqs, skipped)
        self.apply(entry)
        for seq in entry.seqs:
            self.where[seq] = ("acked",)

    @rule(node=NODES, seqs=SEQS, delay_ms=st.sampled_from([0, 5, 30]))
    def nack(self, node: str, seqs: list[int], delay_ms: int) -> None:
        self.sweep()
        entry, skipped = self.queue.decide_nack(
            Settle(node, tuple(seqs)), self.clock.now_ms(), delay_ms
        )
        self.check_split(node, seqs, entry.seqs, skipped)
        self.apply(entry)
        due_ms = self.clock.now_ms() + delay_ms
        for seq in entry.seqs:
            self.where[seq] = ("delayed", due_ms) if delay_ms else ("waiting",)

    @rule(node=NODES, seqs=SEQS, lease_ms=st.sampled_from([5, 20, 40]))
    def extend(self, node: str, seqs: list[int], lease_ms: int) -> None:
        self.sweep()
        entry, skipped = self.queue.decide_extend(
            Settle(node, tuple(seqs)), self.clock.now_ms(), lease_ms
        )
        self.check_split(node, seqs, entry.seqs, skipped)
        self.apply(entry)
        for seq in entry.seqs:
            _, holder, _, fence = self.where[seq]
            self.where[seq] = ("leased", holder, self.clock.now_ms() + lease_ms, fence)

    @rule(before_seq=st.integers(0, 12))
    def delete(self, before_seq: int) -> None:
        entry = self.queue.topic.decide_delete(self.clock.now_ms(), before_seq=before_seq)
        self.change(entry)
        self.leave(range(1, before_seq))

    @rule(ms=st.sampled_from([1, 5, 15, 20]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule()
    def replay(self) -> None:
        again = self.fresh()
        for entry in self.log:
            if isinstance(entry, QueueEntry):
                again.apply(entry)
            else:
                again.topic.apply(entry)
                again.forget_gone()
        assert again.counts(self.clock.now_ms()) == self.queue.counts(self.clock.now_ms())
        assert again.state() == self.queue.state()
        assert again.topic.state() == self.queue.topic.state()

    @rule()
    def restart_from_a_snapshot(self) -> None:
        topic = Topic.restored(self.queue.topic.state())
        self.queue = Queue.restored(topic, self.queue.state())

    @rule()
    def restart_without_leases(self) -> None:
        """Replay of what a queue logs whose leases need not survive: everything else waits."""
        again = self.fresh()
        for entry in self.log:
            if isinstance(entry, TopicEntry):
                again.topic.apply(entry)
                again.forget_gone()
                continue
            again.topic.config = self.config.merged({"leases_durable": False})
            logged = again.to_log(entry)
            if logged is not None:
                again.apply(logged)
        still = [seq for seq, place in self.where.items() if place[0] not in GONE]
        claimed = again.decide_claim([ClaimRequest("n", 1_000)], self.clock.now_ms(), 0)
        assert [lease.seq for lease in claimed.leases] == still
        assert again.dead_lettered == len(self.dead)

    @invariant()
    def the_counts_agree(self) -> None:
        self.sweep()
        kinds = [place[0] for place in self.where.values()]
        assert self.queue.counts(self.clock.now_ms()) == (
            kinds.count("waiting"),
            kinds.count("leased"),
            len(self.dead),
        )
        live = [slot.seq for slot in self.queue.topic.live(0, self.queue.topic.head_seq)]
        assert live == [seq for seq, place in self.where.items() if place[0] not in GONE]

    # The model

    def change(self, entry: TopicEntry) -> None:
        self.queue.topic.apply(entry)
        self.queue.forget_gone()
        self.log.append(entry)

    def apply(self, entry: QueueEntry) -> None:
        self.queue.apply(entry)
        self.log.append(entry)

    def leave(self, seqs: range) -> None:
        for seq in seqs:
            if seq in self.where and self.where[seq][0] not in GONE:
                self.where[seq] = ("lost",)

    def sweep(self) -> None:
        now_ms = self.clock.now_ms()
        for seq, place in self.where.items():
            is_over = place[0] == "leased" and now_ms > place[2]
            if is_over or (place[0] == "delayed" and now_ms >= place[1]):
                self.where[seq] = ("waiting",)

    def expected_claim(self, asked: int) -> tuple[list[int], list[int]]:
        waiting = [seq for seq, place in self.where.items() if place[0] == "waiting"]
        waiting.sort(key=lambda seq: (seq not in self.delivered, seq))
        got: list[int] = []
        buried: list[int] = []
        for seq in waiting:
            if len(got) == asked:
                break
            is_worn = self.buries and self.delivered.get(seq, 0) >= MAX_DELIVERIES
            (buried if is_worn else got).append(seq)
        return got, buried

    def check_split(
        self, node: str, seqs: list[int], held: tuple[int, ...], skipped: list[int]
    ) -> None:
        mine = [seq for seq in seqs if self.where.get(seq, ("",))[:2] == ("leased", node)]
        assert list(held) == list(dict.fromkeys(mine))
        assert sorted([*held, *skipped]) == sorted(seqs)


GONE = ("acked", "dead", "lost")

TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=100, stateful_step_count=40)
