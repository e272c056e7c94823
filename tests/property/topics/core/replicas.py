"""Random histories of a partition on three replicas, for a test and for a soak.

The leader decides, stages, and applies what is committed; the others apply the logged entries. In
between each of them is read, counted, listed and restored from a snapshot at random, at times of
its own. After every commit all three have the same state.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from penstock.kernel.errors import PenstockError
from penstock.protocol.config import Changes
from penstock.protocol.errors import UpgradePending
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch, WriteRequest
from penstock.topics.core.codec import decode_entries, encode_entries
from penstock.topics.core.entries import Began, JobsClaimed, Passed
from penstock.topics.core.leases import ClaimRequest, Settle
from penstock.topics.core.letters import death_of, redriven
from penstock.topics.core.partition import DecidedChange, Partition
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.read import ReadRequest
from penstock.topics.core.record import make_record
from penstock.topics.core.record_row import Slot
from penstock.topics.core.registry import Registry
from penstock.topics.core.router import RouterConfig
from penstock.topics.core.topic import AppendResult
from penstock.topics.core.totals import Overdue
from penstock.topics.core.versions import NEWEST, WrittenVersion
from penstock.topics.engine.watch import PageShape, Watchers
from penstock.topics.persist.snapshot import (
    Restoring,
    SnapshotHeader,
    SnapshotReader,
    decode_kept,
    encode_snapshot,
)

LIMITS: Final = TopicLimits(total_bytes_max=2_000)
LOGS: Final = ("a", "b")
QUEUES: Final = ("q", "r")
NAMES: Final = (*LOGS, *QUEUES)
STEPS: Final = 40
MORTAL: Final[dict[str, Any]] = {
    "type": "queue",
    "leases_durable": True,
    "max_deliveries": 1,
    "dead_letter": "a",
}
"""A queue whose jobs die soon."""


class History:
    """One history, decided by its seed.

    Entries are written in a version that goes up to the newest at some time.
    """

    def __init__(self, seed: int, version: int = NEWEST) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_000
        self.replicas = [Partition(Registry(LIMITS)) for _ in range(3)]
        self.staged: deque[DecidedChange] = deque()
        self.compared = 0
        self.looked_through = 0  # reads that saw less than the applied state has
        self.tokens = 0
        self.redriven = 0
        self.version = version
        self.written: Counter[int] = Counter()
        self.refused = 0

    @property
    def leader(self) -> Partition:
        """The replica that decides."""
        return self.replicas[0]

    def run(self, steps: int = STEPS) -> None:
        """Run the whole history."""
        commands: list[Callable[[], None]] = [
            *[self.write] * 5, self.create, self.configure, self.delete, self.drop, self.route,
            *[self.step] * 2, *[self.claim] * 3, *[self.settle] * 4, self.passes, self.begin,
            self.fail, *[self.redrive] * 3, self.discard,
        ]  # fmt: skip
        for _ in range(steps):
            self.now_ms += self.random.choice((0, 1, 3, 9, 30))
            with suppress(PenstockError):  # a refusal changes nothing: the next comparison tells
                self.random.choice(commands)()
            for replica in self.replicas:
                if self.random.random() < 0.5:
                    self.look(replica)
            if self.random.random() < 0.6:
                self.commit()
            if self.version < NEWEST and self.random.random() < 0.05:
                self.version += 1
        self.commit()

    # Commands

    def write(self) -> None:
        records = [self.record() for _ in range(self.random.randint(1, 3))]
        key = self.random.choice((None, None, "k", "l"))
        name = self.random.choice(NAMES)
        config = MORTAL if name in QUEUES else None
        write = WriteRequest(Batch.of(records), key, config=config)
        decided = self.leader.decide_write(name, write, self.now_ms)
        if not isinstance(decided, AppendResult):
            self.stage(decided)

    def create(self) -> None:
        self.configure()

    def configure(self) -> None:
        name = self.random.choice(NAMES)
        body: Changes = dict(
            self.random.sample(
                [
                    ("ttl_ms", self.random.choice((0, 5, 20, 60))),
                    ("cap_records", self.random.choice((0, 3, 8))),
                    ("cap_bytes", self.random.choice((0, 10, 40))),
                    ("discard", self.random.choice(("old", "reject"))),
                    ("idempotency_window_ms", self.random.choice((5, 100))),
                ],
                2,
            )
        )
        if name in QUEUES:
            body |= MORTAL | {"max_deliveries": self.random.choice((1, 2))}
            body["dead_letter"] = self.random.choice((None, "a", "a"))
        self.commit()  # decided while nothing is staged, as in the engine
        self.stage(self.leader.decide_config(name, body, self.now_ms))
        if self.random.random() < 0.5:
            self.commit()

    def delete(self) -> None:
        name = self.random.choice(NAMES)
        match = self.random.choice((None, Predicate("x", prefix=False)))
        before_seq = self.random.choice((None, self.random.randint(1, 20)))
        self.stage(self.leader.decide_delete(name, self.now_ms, before_seq=before_seq, match=match))

    def drop(self) -> None:
        if self.random.random() < 0.3:
            self.commit()
            name = self.random.choice(NAMES)
            for router in self.leader.routers.fed_by(name):
                self.stage(self.leader.decide_router_removal(router.config.name))
            self.stage(self.leader.decide_drop(name, self.now_ms, if_empty=True))
            self.commit()

    def route(self) -> None:
        self.commit()
        self.stage(self.leader.decide_router(RouterConfig("ab", "a", "b"), self.now_ms))
        self.commit()

    def step(self) -> None:
        self.commit()
        entry = self.leader.decide_step("ab", self.now_ms).entry
        if entry is not None:
            self.stage(self.leader.change_of(entry))

    def claim(self) -> None:
        queue = self.leader.queue(self.random.choice(QUEUES))
        count, lease_ms = self.random.randint(1, 4), self.random.choice((5, 20, 90))
        self.tokens += 10
        request = ClaimRequest(self.random.choice("mn"), count, lease_ms)
        entry = queue.decide_claim([request], self.now_ms, self.tokens)
        if not queue.topic.config.dead_letter:
            entry = entry.without_dead_letters()
        elif entry.dead:
            letters = self.leader.decide_dead_letters("a", queue.letters(entry), self.now_ms)
            self.stage(letters)
        if entry.leases or entry.dead:
            self.stage(self.leader.change_of(entry))
            self.no_job_has_two_holders(queue.topic.name, entry)

    def settle(self) -> None:
        queue = self.leader.queue(self.random.choice(QUEUES))
        held = [lease.seq for lease in queue.leases(self.now_ms, 9)]
        seqs = self.random.sample([*range(1, 12), *held], 4)
        settle = Settle(self.random.choice("mn"), tuple(seqs))
        kind = self.random.randrange(4)
        entry: Any
        if kind == 0:
            entry, _ = queue.decide_ack(settle, self.now_ms)
        elif kind == 1:
            entry, _ = queue.decide_extend(settle, self.now_ms, self.random.choice((1, 30)))
        else:
            delay_ms, unseen = self.random.choice((0, 7, 40)), self.random.random() < 0.3
            reason = self.random.choice(("", "late", "broken"))
            entry, _ = queue.decide_nack(
                settle, self.now_ms, delay_ms, unseen=unseen, reason=reason
            )
        if entry.seqs:
            self.stage(self.leader.change_of(entry))

    def redrive(self) -> None:
        """Dead letters go back, decided while nothing is staged, as in the engine."""
        self.commit()
        to = self.random.choice((*QUEUES, "b"))
        letters = {slot.seq: slot.record for slot in self.letters()}
        if letters:
            jobs = Batch.of([redriven(letter) for letter in letters.values()])
            self.stage(self.leader.decide_redrive("a", [*letters], to, jobs, self.now_ms))
            self.redriven += len(letters)

    def discard(self) -> None:
        seqs = [slot.seq for slot in self.letters()]
        seqs += self.random.sample(range(1, 20), 2)  # which may be gone, or not be letters
        self.stage(self.leader.decide_removal("a", seqs, self.now_ms))

    def letters(self) -> list[Slot]:
        topic = self.leader.topic("a")
        aged_seq = topic.aged_seq(self.now_ms)
        found = [slot for slot in topic.live(aged_seq, topic.head_seq) if death_of(slot.record)]
        return self.random.sample(found, self.random.randint(min(1, len(found)), len(found)))

    def passes(self) -> None:
        entries = (Passed(self.now_ms),)
        self.stage(DecidedChange(entries, entries))

    def begin(self) -> None:
        """Another start of the leader, or of another one; it decides nothing until it has begun."""
        if self.random.random() < 0.2:
            self.commit()
            skipped_seqs = self.random.choice((0, 2))
            entries = (Began(self.leader.term + 1, 0, self.now_ms, skipped_seqs),)
            self.stage(DecidedChange(entries, entries))
            self.commit()  # a node serves only after that

    def fail(self) -> None:
        """The log fails: nothing that is staged ever was."""
        if self.random.random() < 0.3:
            self.leader.abandon()
            self.staged.clear()
            self.all_are_equal()

    # Looking

    def look(self, replica: Partition) -> None:
        """Read, count, list, watch, or restore; at a time that this replica takes for now."""
        now_ms = self.now_ms + self.random.choice((0, 0, 5, 50, 500))
        for name in list(replica.topics):
            how = self.random.randrange(6)
            if how == 0:
                from_seq = self.random.randint(0, 12)
                page = replica.read(name, ReadRequest(from_seq, 3), now_ms)
                self.looked_through += page.earliest_seq > replica.topics[name].earliest_seq
            elif how == 1:
                replica.topics[name].at(now_ms)
            elif how == 2 and name in replica.queues:
                replica.queues[name].counts(now_ms)
            elif how == 3:
                Watchers(LIMITS).page(replica.topics[name], 0, None, PageShape(), now_ms)
            elif how == 4 and name in replica.queues:
                replica.queues[name].decide_claim([ClaimRequest("x", 9)], now_ms, 0)
                replica.queues[name].lease_of(1, now_ms)
        for _ in replica.registry.totals.overdue(now_ms, Overdue()):
            pass
        list(replica.overdue(now_ms))
        if replica is not self.leader and self.random.random() < 0.2:
            at = self.replicas.index(replica)
            self.replicas[at] = self.random.choice((restored, through_a_file))(replica)

    # Aids

    def record(self) -> Any:
        tag = self.random.choice((None, "x", "y"))
        return make_record(b"1" * self.random.randint(1, 9), None, tag)

    def stage(self, change: DecidedChange) -> None:
        if change.entries:
            try:
                WrittenVersion(self.version).check(change.to_log)
            except UpgradePending:
                self.refused += 1
                raise
            self.leader.stage(change)
            self.staged.append(change)

    def commit(self) -> None:
        """Apply everything staged, entry by entry, everywhere."""
        while self.staged:
            change = self.staged.popleft()
            payload = encode_entries(change.to_log, self.version)
            self.written[payload[0]] += 1
            self.leader.apply_all(change.entries)
            for replica in self.replicas[1:]:
                replica.apply_all(decode_entries(payload))
            self.all_are_equal()

    def all_are_equal(self) -> None:
        """Compare the replicas; what the leader has staged does not show either."""
        first, *others = (replica.state() for replica in self.replicas)
        for other in others:
            assert other == first
        self.compared += 1

    def no_job_has_two_holders(self, name: str, entry: JobsClaimed) -> None:
        """A job that was just handed out is leased to nobody else on any replica."""
        queue = self.leader.queues[name]
        again = queue.decide_claim([ClaimRequest("other", 100)], self.now_ms, 0)
        assert {lease.seq for lease in again.leases}.isdisjoint(each.seq for each in entry.leases)


def restored(replica: Partition) -> Partition:
    """The same partition by way of its state."""
    return Partition.restored(replica.state(), Registry(LIMITS))


def through_a_file(replica: Partition) -> Partition:
    """The same partition by way of a snapshot's bytes."""
    data = b"".join(encode_snapshot(replica, SnapshotHeader(0, 7)))
    reader = SnapshotReader("test", partial(_read, data))
    again = Partition(Registry(LIMITS))
    restoring = Restoring(again)
    for payload in reader.payloads():
        restoring.take(decode_kept("test", payload))
    return again


def _read(data: bytes, count: int, offset: int) -> bytes:
    return data[offset : offset + count]
