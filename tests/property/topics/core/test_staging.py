"""What queues stage: others keep off at once, and what did not reach the log never was."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.protocol.config import TopicConfig
from penstock.testing import ManualClock
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import Appended, JobsAcked, JobsClaimed, QueueEntry, TopicEntry
from penstock.topics.core.leases import ClaimRequest, JobLease, Settle
from penstock.topics.core.queue import JobCounts, Queue, QueueState
from penstock.topics.core.record import make_record
from penstock.topics.core.topic import Topic
from penstock.topics.core.topic_state import TopicSnapshot

NODES = st.sampled_from("aab")
SEQS = st.lists(st.integers(1, 6), min_size=1, max_size=4)
LEASE_MS = 20


class Seen(NamedTuple):
    """Everything that can be asked of a queue."""

    counts: JobCounts
    leases: tuple[JobLease | None, ...]
    next_claim: JobsClaimed
    state: QueueState
    topic: TopicSnapshot


class StagingMachine(RuleBasedStateMachine):
    """`committed` is a second queue that gets each entry when it is committed, never before.

    Entries of the topic are committed at once if nothing is staged, as their order is that of the
    log.
    """

    @initialize(buries=st.booleans(), cap_records=st.sampled_from([0, 0, 6]))
    def start(self, buries: bool, cap_records: int) -> None:
        self.clock = ManualClock(now_ms=0)
        self.config = TopicConfig(
            type="queue",
            leases_durable=True,
            cap_records=cap_records,
            max_deliveries=2 if buries else 0,
            dead_letter="dead" if buries else None,
        )
        self.queue, self.committed = self.fresh(), self.fresh()
        self.staged: deque[QueueEntry | TopicEntry] = deque()
        self.tokens = 0
        self.write(4)
        self.commit(1)

    def fresh(self) -> Queue:
        return Queue(Topic("q", self.config, epoch=1, now_ms=0))

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        batch = Batch.of([make_record(b"1")] * count)
        entry = self.queue.topic.decide_append(batch, self.clock.now_ms())
        assert isinstance(entry, Appended)
        self.queue.topic.stage(entry)
        self.staged.append(entry)

    @rule(before_seq=st.integers(1, 5))
    def delete(self, before_seq: int) -> None:
        self.staged.append(
            self.queue.topic.decide_delete(self.clock.now_ms(), before_seq=before_seq)
        )

    @rule(node=NODES, jobs_max=st.integers(1, 4))
    def claim(self, node: str, jobs_max: int) -> None:
        request = ClaimRequest(node, jobs_max, LEASE_MS)
        claimed = self.queue.decide_claim([request], self.clock.now_ms(), self.tokens)
        self.tokens += 100
        now_ms = self.clock.now_ms()
        held = {seq for seq in range(1, 60) if self.queue.lease_of(seq, now_ms) is not None}
        assert held.isdisjoint(lease.seq for lease in claimed.leases)
        self.stage(claimed)
        for lease in claimed.leases:
            assert self.queue.lease_of(lease.seq) == lease

    @rule(node=NODES, seqs=SEQS)
    def ack(self, node: str, seqs: list[int]) -> None:
        entry, _ = self.queue.decide_ack(Settle(node, tuple(seqs)), self.clock.now_ms())
        self.stage(entry)
        for seq in entry.seqs:
            assert self.queue.topic.get(seq) is not None, "it is there until the log has the ack"
            assert self.queue.lease_of(seq) is None

    @rule(node=NODES, seqs=SEQS, delay_ms=st.sampled_from([0, 5, 30]))
    def nack(self, node: str, seqs: list[int], delay_ms: int) -> None:
        settle = Settle(node, tuple(seqs))
        self.stage(self.queue.decide_nack(settle, self.clock.now_ms(), delay_ms)[0])

    @rule(node=NODES, seqs=SEQS, lease_ms=st.sampled_from([5, 40]))
    def extend(self, node: str, seqs: list[int], lease_ms: int) -> None:
        settle = Settle(node, tuple(seqs))
        self.stage(self.queue.decide_extend(settle, self.clock.now_ms(), lease_ms)[0])

    @rule(ms=st.sampled_from([1, 5, 15, 21]))
    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(count=st.sampled_from([1, 1, 2, 5]))
    def commit(self, count: int) -> None:
        for _ in range(min(count, len(self.staged))):
            entry = self.staged.popleft()
            if isinstance(entry, QueueEntry):
                self.queue.apply(entry)
                self.committed.apply(entry)
                finished = entry.seqs if isinstance(entry, JobsAcked) else ()
                finished = entry.dead if isinstance(entry, JobsClaimed) else finished
                assert all(self.queue.topic.get(seq) is None for seq in finished)
            else:
                for queue in (self.queue, self.committed):
                    queue.topic.apply(entry)
                    queue.forget_gone()

    @rule()
    def commit_everything(self) -> None:
        self.commit(len(self.staged))
        self.nothing_is_staged_and_both_agree()

    @rule()
    def abandon(self) -> None:
        self.staged.clear()
        self.queue.abandon()
        self.queue.topic.abandon()
        self.nothing_is_staged_and_both_agree()

    @invariant()
    def no_job_is_lost_or_counted_twice(self) -> None:
        queue, now_ms = self.queue, self.clock.now_ms()
        ready, in_flight, _ = queue.counts(now_ms)
        claimed = queue.decide_claim([ClaimRequest("c", 1_000)], now_ms, 0)
        waiting = [*claimed.dead, *(lease.seq for lease in claimed.leases)]
        assert len(set(waiting)) == len(waiting)
        leased = {seq for seq in range(1, 100) if queue.lease_of(seq, now_ms) is not None}
        assert leased.isdisjoint(waiting)
        if not self.staged:
            assert (len(waiting), len(leased)) == (ready, in_flight)

    @invariant()
    def what_is_staged_does_not_show(self) -> None:
        now_ms = self.clock.now_ms()
        assert self.queue.counts(now_ms) == self.committed.counts(now_ms)
        assert self.queue.state() == self.committed.state()
        assert self.queue.topic.state() == self.committed.topic.state()

    # Aids

    def stage(self, entry: QueueEntry) -> None:
        self.queue.stage(entry)
        self.staged.append(entry)

    def nothing_is_staged_and_both_agree(self) -> None:
        assert self.seen(self.queue) == self.seen(self.committed)

    def seen(self, queue: Queue) -> Seen:
        now_ms = self.clock.now_ms()
        counts = queue.counts(now_ms)
        leases = tuple(queue.lease_of(seq) for seq in range(queue.topic.head_seq + 2))
        claimed = queue.decide_claim([ClaimRequest("c", 1_000)], now_ms, 0)
        again = Queue.restored(Topic.restored(queue.topic.state()), queue.state())
        again.apply(claimed)
        assert again.counts(now_ms).ready == 0
        return Seen(counts, leases, claimed, queue.state(), queue.topic.state())


TestStaging = StagingMachine.TestCase
TestStaging.settings = settings(max_examples=150, stateful_step_count=40)
