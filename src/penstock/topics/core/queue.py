"""A queue: a topic whose records are leased, one holder at a time, until they are acked.

Every job is in exactly one place: fresh, leased, delayed, returned, or gone. What an entry does to
its jobs happens when it is applied. While it is staged it is only a plan that decisions look at, so
that no two claims get the same job; if it is abandoned, the plan is forgotten. Where leases need
not survive a restart, only `JobsAcked` and dead letters are logged, and replay finds every other
job fresh.

Leases end and delays are over by the times of applied entries; decisions and counts look at the
queue as of a time and change nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from penstock.kernel.units import MIB
from penstock.protocol.errors import NotAQueue
from penstock.topics.core.batch import Batch
from penstock.topics.core.dues import heap_before
from penstock.topics.core.entries import (
    JobsAcked,
    JobsClaimed,
    JobsExtended,
    JobsNacked,
    QueueEntry,
)
from penstock.topics.core.leases import ClaimRequest, JobLease, Settle
from penstock.topics.core.letters import Death, Failure, dead_letter, lease_ended, reason_text
from penstock.topics.core.record import RawRecord
from penstock.topics.core.topic import Topic

DEAD_LETTERS_MAX: Final = 1_000
"""The most jobs that one claim turns into dead letters, since other claims wait for it."""
DEAD_LETTER_BYTES_MAX: Final = 16 * MIB
"""The most bytes of these, except for the last one: they are one log entry."""
PASSED_MAX: Final = 8_192
"""How many more such jobs a claim skips; the next one continues after them."""
CLAIMED_BYTES_MAX: Final = 8 * MIB
"""The most bytes of the jobs of one claim, except for each claimer's first job."""
_FEW: Final = 16
"""Up to this many are inserted one by one; more are sorted in together."""
_OUT_OF_DATE_MAX: Final = 64
"""How many stale deadlines the heap may have beyond the number of leases."""


class JobCounts(NamedTuple):
    """The counts of a queue. `ready` is everything live that is neither leased nor delayed."""

    ready: int
    in_flight: int
    dead_lettered: int


class QueueState(NamedTuple):
    """A queue's leases as plain values; its jobs are in its topic's state."""

    fresh_seq: int
    leases: tuple[JobLease, ...]
    delayed: tuple[tuple[int, int], ...]
    returned: tuple[int, ...]
    deliveries: tuple[tuple[int, int], ...]
    dead_lettered: int
    failures: tuple[tuple[int, Failure], ...] = ()


class _Plan(NamedTuple):
    """Where a staged entry puts a job: leased, waiting from a time on, or finished."""

    entry: int  # the number of the staged entry
    deliveries: int
    failure: Failure | None = None
    lease: JobLease | None = None
    due_ms: int = 0
    is_finished: bool = False

    def is_free(self, now_ms: int) -> bool:
        """Whether a claim may take the job at a time, once the entry is applied."""
        if self.is_finished:
            return False
        return self.due_ms <= now_ms if self.lease is None else self.lease.deadline_ms < now_ms


class Queue:
    """The leases on one topic. A job is leased again only after its lease or delay is over."""

    def __init__(self, topic: Topic) -> None:
        if topic.config.type != "queue":
            raise NotAQueue(topic.name)
        self.topic = topic
        self.dead_lettered = 0
        self.finished = 0
        """Jobs acked since the start, for rates; neither logged nor in a snapshot."""
        self.last_finished_ms = 0
        self.finished_rate: Any = None  # kept here to be shown, as a topic's rates are
        self._fresh_seq = 1  # every live seq below was claimed at least once
        self._leases: dict[int, JobLease] = {}
        self._delayed: dict[int, int] = {}  # seq -> when it is due
        self._staged: deque[int] = deque()  # the numbers of the staged entries, oldest first
        self._plans: dict[int, _Plan] = {}  # of jobs: what the last staged entry does to each
        self._planned_seq = 0  # no seq below is fresh once all staged entries are applied
        self._entries = 0  # staged so far
        self._returned: list[int] = []  # sorted
        self._deliveries: dict[int, int] = {}
        self._failures: dict[int, Failure] = {}  # how the last delivery of a job ended
        self._deadlines: list[tuple[int, int]] = []  # heaps of (time, seq), some stale
        self._dues: list[tuple[int, int]] = []
        self._removals_seen = topic.removals
        self._scattered_seen = topic.scattered_removals
        self._earliest_seq = topic.earliest_seq  # at the last check for removals
        self._unreadable: list[range] = []  # jobs whose records cannot be read
        self._resume_seq = 0  # where the last claim stopped, if it had to skip too many

    def pass_over(self, first_seq: int, last_seq: int) -> None:
        """Lease none of these jobs until the next start: their records cannot be read."""
        self._unreadable.append(range(first_seq, last_seq + 1))

    def counts(self, now_ms: int) -> JobCounts:
        """The counts of the queue as of a time, without what is only staged."""
        over, due = self._over_at(now_ms), self._due_at(now_ms)
        in_flight, delayed = len(self._leases) - len(over), len(self._delayed) - len(due)
        aged_seq = self.topic.aged_seq(now_ms)
        if aged_seq:
            in_flight -= sum(seq <= aged_seq and seq not in over for seq in self._leases)
            delayed -= sum(seq <= aged_seq and seq not in due for seq in self._delayed)
        ready = self.topic.at(now_ms).count - in_flight - delayed
        return JobCounts(ready, in_flight, self.dead_lettered)

    def first_ready(self, now_ms: int) -> int | None:
        """The job that would be leased next; None if none is ready."""
        return next(self._waiting(now_ms), None)

    @property
    def in_flight(self) -> int:
        """How many jobs are leased, as of the last applied entry."""
        return len(self._leases)

    def recount(self) -> None:
        """Report the current number of leases to the node's totals."""
        if self.topic.totals is not None:
            self.topic.totals.recount_leases(self)

    def lease_of(self, seq: int, now_ms: int = 0) -> JobLease | None:
        """The lease on a job as of a time, staged or not."""
        plan = self._plans.get(seq)
        lease = self._leases.get(seq) if plan is None else plan.lease
        return None if lease is None or lease.deadline_ms < now_ms else lease

    def leases(self, now_ms: int, at_most: int) -> list[JobLease]:
        """Leases that are not over at a time, those of the longest-known jobs first."""
        aged_seq = self.topic.aged_seq(now_ms)
        held = (
            lease
            for lease in self._leases.values()
            if lease.deadline_ms >= now_ms and lease.seq > aged_seq
        )
        return list(islice(held, at_most))

    def next_delayed_ms(self, now_ms: int) -> int | None:
        """In how long the next delay is over; its job may be gone by then."""
        return max(0, self._dues[0][0] - now_ms) if self._dues else None

    def next_due_ms(self) -> int | None:
        """When a job may next return by time; the job may be gone by then."""
        ends = [self._deadlines[0][0] + 1] if self._deadlines else []
        return min(ends + [due_ms for due_ms, _ in self._dues[:1]], default=None)

    def is_due(self, now_ms: int) -> bool:
        """Whether a lease has ended or a delay is over at a time, and its job is not yet back."""
        return bool(self._over_at(now_ms) or self._due_at(now_ms))

    def pass_time(self, now_ms: int) -> None:
        """Apply: the time is now this or later; ended leases and due delays return their jobs."""
        self.topic.pass_time(now_ms)
        now_ms = self.topic.now_ms
        self.forget_gone()
        back: list[int] = []
        for deadline_ms, seq in _taken_before(self._deadlines, now_ms):
            lease = self._leases.get(seq)
            if lease is not None and lease.deadline_ms == deadline_ms:
                del self._leases[seq]
                self._failures[seq] = lease_ended(self._failures.get(seq))
                back.append(seq)
        for due_ms, seq in _taken_before(self._dues, now_ms + 1):
            if self._delayed.get(seq) == due_ms:
                del self._delayed[seq]
                back.append(seq)
        self._give_back(back)
        if len(self._leases) != self.topic.counted.leases:
            self.recount()

    # Decisions

    def decide_claim(
        self, requests: Sequence[ClaimRequest], now_ms: int, token: int
    ) -> JobsClaimed:
        """Decide which claimer gets which job: returned jobs first, then fresh, lowest seq first.

        Several claimers are served round robin, one job each, with the first one's lease. `token`
        is a random number from which the fences of these leases count up. Each claimer gets one job
        however large it is; beyond that, all jobs together have at most `CLAIMED_BYTES_MAX`, and
        the rest is left for the next claim.
        """
        now_ms = self.topic.time_of(now_ms)
        config = self.topic.config
        deadline_ms = now_ms + (requests[0].lease_ms or config.lease_ms)
        turns = _turns(requests)
        leases: list[JobLease] = []
        dead: list[int] = []
        room, dead_room = CLAIMED_BYTES_MAX, DEAD_LETTER_BYTES_MAX
        turn, passed = next(turns, None), 0
        resume_seq, self._resume_seq = self._resume_seq, 0
        waiting = self._waiting(now_ms)
        while turn is not None and (seq := next(waiting, None)) is not None:
            deliveries = self._deliveries_of(seq) + 1
            if config.dead_letter is not None and 0 < config.max_deliveries < deliveries:
                if len(dead) < DEAD_LETTERS_MAX and dead_room > 0:
                    dead.append(seq)
                    dead_room -= self.topic.row.bytes_of(seq)
                elif passed == PASSED_MAX:
                    self._resume_seq = seq
                    break
                else:
                    passed += 1
                    if seq < resume_seq:
                        waiting = self._waiting(now_ms, resume_seq)
                continue
            room -= self.topic.row.bytes_of(seq)
            if room < 0 and len(leases) >= len(requests):
                break
            fence = (token + len(leases)) % 2**64
            leases.append(JobLease(seq, requests[turn].node, fence, deadline_ms, deliveries, turn))
            turn = next(turns, None)
        return JobsClaimed(self.topic.name, now_ms, tuple(leases), tuple(dead))

    def letters(self, claimed: JobsClaimed) -> Batch:
        """The dead letters of a claim."""
        return Batch.of([self._dead_letter(seq, claimed.now_ms) for seq in claimed.dead])

    def decide_ack(self, settle: Settle, now_ms: int) -> tuple[JobsAcked, list[int]]:
        """Decide which jobs are finished; also return the seqs that the node does not hold."""
        now_ms = self.topic.time_of(now_ms)
        held, skipped = self._held(settle, now_ms)
        return JobsAcked(self.topic.name, now_ms, held), skipped

    def decide_nack(
        self,
        settle: Settle,
        now_ms: int,
        delay_ms: int,
        *,
        unseen: bool = False,
        reason: str = "",
    ) -> tuple[JobsNacked, list[int]]:
        """Decide which jobs are returned; also return the seqs that the node does not hold."""
        now_ms = self.topic.time_of(now_ms)
        held, skipped = self._held(settle, now_ms)
        due_ms = now_ms + delay_ms
        return JobsNacked(self.topic.name, now_ms, held, due_ms, unseen, reason), skipped

    def decide_extend(
        self, settle: Settle, now_ms: int, lease_ms: int
    ) -> tuple[JobsExtended, list[int]]:
        """Decide which leases restart now; also return the seqs that the node does not hold."""
        now_ms = self.topic.time_of(now_ms)
        held, skipped = self._held(settle, now_ms)
        return JobsExtended(self.topic.name, now_ms, held, now_ms + lease_ms), skipped

    def to_log(self, entry: QueueEntry) -> QueueEntry | None:
        """The part of an entry that must be logged before the caller is answered, or None.

        Leases that need not survive are not logged; finished jobs always are.
        """
        if not jobs_of(entry):
            return None
        if self.topic.config.leases_durable or isinstance(entry, JobsAcked):
            return entry
        if isinstance(entry, JobsClaimed) and entry.dead:
            return replace(entry, leases=())
        return None

    # Changes

    def stage(self, entry: QueueEntry) -> None:
        """Plan a submitted entry: no claim gets its jobs. Nothing happens to them yet."""
        self._entries += 1
        self._staged.append(self._entries)
        self._plans.update(self._planned(entry, self._entries))
        if isinstance(entry, JobsClaimed) and entry.leases:
            last_seq = max(lease.seq for lease in entry.leases)
            self._planned_seq = max(self._planned_seq, last_seq + 1)

    def _planned(self, entry: QueueEntry, number: int) -> list[tuple[int, _Plan]]:
        """What an entry will do to each of its jobs."""
        match entry:
            case JobsClaimed():
                now_ms = entry.now_ms
                dead = [(seq, _Plan(number, 0, is_finished=True)) for seq in entry.dead]
                return dead + [
                    (
                        each.seq,
                        _Plan(number, each.deliveries, self._failure_of(each.seq, now_ms), each),
                    )
                    for each in entry.leases
                ]
            case JobsAcked():
                return [(seq, _Plan(number, 0, is_finished=True)) for seq in entry.seqs]
            case JobsNacked():
                return [(seq, self._planned_nack(seq, entry, number)) for seq in entry.seqs]
            case JobsExtended():
                held = [(seq, self.lease_of(seq)) for seq in entry.seqs]
                until_ms = entry.deadline_ms
                return [
                    (seq, _Plan(number, lease.deliveries, self._failure_of(seq, 0), longer))
                    for seq, lease in held
                    if lease is not None
                    for longer in [lease._replace(deadline_ms=until_ms)]
                ]

    def _planned_nack(self, seq: int, entry: JobsNacked, number: int) -> _Plan:
        failure = self._failure_of(seq, 0) if entry.unseen else entry.reason or None
        deliveries = self._deliveries_of(seq) - entry.unseen
        return _Plan(number, deliveries, failure, due_ms=entry.due_ms)

    def apply(self, entry: QueueEntry) -> None:
        """Apply the next durable entry, the oldest staged one; in replay nothing is staged.

        Jobs that have left the topic are skipped.
        """
        if self._staged:
            self._unplan(entry, self._staged.popleft())
        self.pass_time(entry.now_ms)
        match entry:
            case JobsClaimed():
                for lease in entry.leases:
                    self._claim(lease)
                self.dead_lettered += len(entry.dead)
                self._finish(entry.dead)
            case JobsAcked():
                self.finished += len(entry.seqs)
                self.last_finished_ms = entry.now_ms
                self._finish(entry.seqs)
            case JobsNacked():
                self._nack(entry)
            case JobsExtended():
                self._extend(entry)
        self.recount()

    def abandon(self) -> None:
        """Forget the plans: no staged entry became durable."""
        self._staged.clear()
        self._plans.clear()
        self._planned_seq = 0

    def _unplan(self, entry: QueueEntry, number: int) -> None:
        """Forget what an entry was to do, unless a later one has planned more for a job."""
        plans = self._plans
        for seq in jobs_of(entry):
            plan = plans.get(seq)
            if plan is not None and plan.entry == number:
                del plans[seq]

    def forget_leases(self) -> None:
        """Return all jobs: after a restart, leases that need not survive are over."""
        self._give_back([*self._leases, *self._delayed])
        self._leases.clear()
        self._delayed.clear()
        self.recount()

    def state(self) -> QueueState:
        """Everything that entries and time have determined, for a snapshot or a comparison."""
        return QueueState(
            self._fresh_seq,
            tuple(sorted(self._leases.values())),
            tuple(sorted(self._delayed.items())),
            tuple(self._returned),
            tuple(sorted(self._deliveries.items())),
            self.dead_lettered,
            tuple(sorted(self._failures.items())),
        )

    @classmethod
    def restored(cls, topic: Topic, state: QueueState) -> Queue:
        """The queue of a snapshot."""
        queue = cls(topic)
        queue._fresh_seq = state.fresh_seq
        # In snapshots of earlier versions, jobs may have left that the queue still knew.
        queue._removals_seen = queue._scattered_seen = -1
        queue._delayed = dict(state.delayed)
        queue._dues = sorted((due_ms, seq) for seq, due_ms in state.delayed)
        queue._returned = list(state.returned)
        queue._deliveries = dict(state.deliveries)
        queue._failures = dict(state.failures)
        queue.dead_lettered = state.dead_lettered
        for lease in state.leases:
            queue._lease(lease)
        queue.forget_gone()
        queue.recount()
        return queue

    def _claim(self, lease: JobLease) -> None:
        seq = lease.seq
        self._pass_fresh(seq)
        if self.topic.has(seq):
            self._leave(seq)
            self._deliveries[seq] = lease.deliveries
            self._lease(lease)

    def _finish(self, seqs: tuple[int, ...]) -> None:
        for seq in seqs:
            self._leave(seq)
            self._deliveries.pop(seq, None)
            self._failures.pop(seq, None)
            self.topic.remove(seq)

    def _lease(self, lease: JobLease) -> None:
        self._leases[lease.seq] = lease
        heappush(self._deadlines, (lease.deadline_ms, lease.seq))
        if len(self._deadlines) > 2 * len(self._leases) + _OUT_OF_DATE_MAX:
            self._deadlines = [(held.deadline_ms, seq) for seq, held in self._leases.items()]
            heapify(self._deadlines)

    def _extend(self, entry: JobsExtended) -> None:
        for seq in entry.seqs:
            lease = self._leases.get(seq)
            if lease is not None:
                self._lease(lease._replace(deadline_ms=entry.deadline_ms))

    def _nack(self, entry: JobsNacked) -> None:
        for seq in entry.seqs:
            if not self.topic.has(seq) or seq >= self._fresh_seq:
                continue
            self._leave(seq)
            if entry.unseen:
                self._uncount(seq)
            elif entry.reason:
                self._failures[seq] = entry.reason
            else:
                self._failures.pop(seq, None)
            if entry.due_ms > entry.now_ms:
                self._delayed[seq] = entry.due_ms
                heappush(self._dues, (entry.due_ms, seq))
            else:
                insort(self._returned, seq)

    def _uncount(self, seq: int) -> None:
        """Undo a delivery that did not reach a client."""
        deliveries = self._deliveries.pop(seq, 0) - 1
        if deliveries > 0:
            self._deliveries[seq] = deliveries

    def _give_back(self, seqs: Sequence[int]) -> None:
        """Return jobs that are in no other place."""
        if len(seqs) > _FEW:
            self._returned.extend(seqs)
            self._returned.sort()
            return
        for seq in seqs:
            insort(self._returned, seq)

    def _leave(self, seq: int) -> None:
        """Take a job out of its current place."""
        self._leases.pop(seq, None)
        self._delayed.pop(seq, None)
        place = bisect_left(self._returned, seq)
        if place < len(self._returned) and self._returned[place] == seq:
            del self._returned[place]

    def _pass_fresh(self, seq: int) -> None:
        """Move past a seq. Fresh jobs before it, whose claims were not logged, are not lost."""
        if seq >= self._fresh_seq:
            self._give_back([*self.topic.row.live_seqs(self._fresh_seq - 1, seq - 1)])
            self._fresh_seq = seq + 1

    def _waiting(self, now_ms: int, from_seq: int = 0) -> Iterator[int]:
        """The jobs to lease at a time, in order, from a seq on."""
        aged_seq, plans = self.topic.aged_seq(now_ms), self._plans
        first_seq = max(from_seq, aged_seq + 1)
        returned = islice(self._returned, bisect_left(self._returned, first_seq), None)
        back = [seq for seq in self._back_at(now_ms) if seq >= first_seq]
        before_seq = max(self._fresh_seq, self._planned_seq, aged_seq + 1) - 1
        fresh = self.topic.row.live_seqs(before_seq, self.topic.head_seq)
        if plans:
            returned = (seq for seq in returned if seq not in plans)  # type: ignore[assignment]
        for seq in chain(merge(returned, back) if back else returned, fresh):
            if not (self._unreadable and any(seq in seqs for seqs in self._unreadable)):
                yield seq

    def _back_at(self, now_ms: int) -> list[int]:
        """The jobs that are free at a time and not yet returned, in order."""
        plans = self._plans
        back = [seq for seq in self._over_at(now_ms) | self._due_at(now_ms) if seq not in plans]
        back += [seq for seq, plan in plans.items() if plan.is_free(now_ms) and self.topic.has(seq)]
        back.sort()
        return back

    def _over_at(self, now_ms: int) -> set[int]:
        """The leased jobs whose leases are over at a time and not yet returned."""
        return {
            seq
            for deadline_ms, seq in heap_before(self._deadlines, now_ms)
            if seq in self._leases and self._leases[seq].deadline_ms == deadline_ms
        }

    def _due_at(self, now_ms: int) -> set[int]:
        """The delayed jobs that are due at a time and not yet returned."""
        due = heap_before(self._dues, now_ms + 1)
        return {seq for due_ms, seq in due if self._delayed.get(seq) == due_ms}

    def _deliveries_of(self, seq: int) -> int:
        """How often a job was delivered, staged claims included."""
        plan = self._plans.get(seq)
        return self._deliveries.get(seq, 0) if plan is None else plan.deliveries

    def _failure_of(self, seq: int, now_ms: int) -> Failure | None:
        """How the last delivery of a job ended as of a time, staged entries included."""
        plan = self._plans.get(seq)
        failure = self._failures.get(seq) if plan is None else plan.failure
        lease = self._leases.get(seq) if plan is None else plan.lease
        is_over = lease is not None and lease.deadline_ms < now_ms
        return lease_ended(failure) if is_over else failure

    def _held(self, settle: Settle, now_ms: int) -> tuple[tuple[int, ...], list[int]]:
        """Split seqs into those that the node holds, without duplicates, and all others."""
        held: dict[int, None] = {}
        skipped = []
        aged_seq = self.topic.aged_seq(now_ms)
        for seq, fence in settle.fenced():
            lease = self.lease_of(seq, now_ms)
            is_held = lease is not None and lease.node == settle.node and seq not in held
            is_held = is_held and seq > aged_seq and self.topic.has(seq)
            if lease is not None and is_held and fence in (None, lease.fence):
                held[seq] = None
            else:
                skipped.append(seq)
        return tuple(held), skipped

    def forget_gone(self) -> None:
        """Apply: forget jobs that left the topic by a cap, by age or by a delete.

        Usually they are the oldest, and fewer than the remaining jobs.
        """
        topic = self.topic
        if self._removals_seen == topic.removals:
            return
        first_seq, end_seq = self._earliest_seq, topic.earliest_seq
        only_oldest = self._scattered_seen == topic.scattered_removals
        self._removals_seen, self._scattered_seen = topic.removals, topic.scattered_removals
        self._earliest_seq = end_seq
        if only_oldest and end_seq - first_seq <= len(self._deliveries):
            for seq in range(first_seq, end_seq):
                for kept in (self._leases, self._delayed, self._deliveries, self._failures):
                    kept.pop(seq, None)
            del self._returned[: bisect_left(self._returned, end_seq)]
            return
        has = topic.has
        for kept in (self._leases, self._delayed, self._deliveries, self._failures):
            for seq in [seq for seq in kept if not has(seq)]:
                del kept[seq]
        self._returned = [seq for seq in self._returned if has(seq)]

    def _dead_letter(self, seq: int, now_ms: int) -> RawRecord:
        record = self.topic.get(seq)
        assert record is not None, "only live jobs wait"
        reason = reason_text(self._failure_of(seq, now_ms))
        return dead_letter(record, Death(self.topic.name, seq, self._deliveries_of(seq), reason))


def jobs_of(entry: QueueEntry) -> tuple[int, ...]:
    """The jobs that an entry changes."""
    if isinstance(entry, JobsClaimed):
        return (*entry.dead, *(lease.seq for lease in entry.leases))
    return entry.seqs


def _taken_before(heap: list[tuple[int, int]], before_ms: int) -> list[tuple[int, int]]:
    """Pop everything before a time from a heap."""
    taken: list[tuple[int, int]] = []
    while heap and heap[0][0] < before_ms:
        if len(taken) == _FEW:  # maybe all of them are due: one scan is faster
            taken += [each for each in heap if each[0] < before_ms]
            heap[:] = [each for each in heap if each[0] >= before_ms]
            heapify(heap)
            break
        taken.append(heappop(heap))
    return taken


def _turns(requests: Sequence[ClaimRequest]) -> Iterator[int]:
    """Claimers round robin, one job each, until each has had as many as requested."""
    rounds = max((request.jobs_max for request in requests), default=0)
    for had in range(rounds):
        for index, request in enumerate(requests):
            if had < request.jobs_max:
                yield index
