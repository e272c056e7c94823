"""A queue: a topic whose records are leased, one holder at a time, until they are acked.

Every job is in exactly one place: fresh, leased, delayed, returned, settling, or gone. A staged
entry reserves its jobs, so that no two claims get the same job. The jobs it finishes are deleted
once it is logged, and restored if it is abandoned. Where leases need not survive a restart, only
`JobsAcked` and dead letters are logged, and replay finds every other job fresh. Jobs return by time
alone, so the state is a function of the entries and the time last seen.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.kernel.units import MIB
from penstock.protocol.errors import NotAQueue
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import (
    JobsAcked,
    JobsClaimed,
    JobsExtended,
    JobsNacked,
    QueueEntry,
)
from penstock.topics.core.leases import ClaimRequest, JobLease, Settle, dead_letter
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


class _Before(NamedTuple):
    """A job's place before a staged entry: leased or not, and how often delivered.

    No entry takes a delayed job, so one that was not leased was waiting.
    """

    seq: int
    lease: JobLease | None
    deliveries: int


class _Staged(NamedTuple):
    """How to revert a staged entry: the first fresh seq before it, and the jobs it moved."""

    fresh_seq: int
    moved: list[_Before]


class Queue:
    """The leases on one topic. A job is leased again only after its lease or delay is over."""

    def __init__(self, topic: Topic) -> None:
        if topic.config.type != "queue":
            raise NotAQueue(topic.name)
        self.topic = topic
        self.dead_lettered = 0
        self._fresh_seq = 1  # every live seq below was claimed at least once
        self._leases: dict[int, JobLease] = {}
        self._delayed: dict[int, int] = {}  # seq -> when it is due
        self._settling: set[int] = set()  # finished by a staged entry
        self._staged: deque[_Staged] = deque()  # one for each staged entry, oldest first
        self._returned: list[int] = []  # sorted
        self._deliveries: dict[int, int] = {}
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
        """The counts of the queue now."""
        self.sweep(now_ms)
        in_flight = len(self._leases)
        ready = self.topic.count - in_flight - len(self._delayed) - len(self._settling)
        return JobCounts(ready, in_flight, self.dead_lettered)

    def first_ready(self) -> int | None:
        """The job that would be leased next; None if none is ready."""
        return next(self._waiting(), None)

    @property
    def in_flight(self) -> int:
        """How many jobs are leased, as of the time last seen."""
        return len(self._leases)

    def recount(self) -> None:
        """Report the current number of leases to the node's totals."""
        if self.topic.totals is not None:
            self.topic.totals.recount_leases(self)

    def lease_of(self, seq: int) -> JobLease | None:
        """The lease on a job."""
        return self._leases.get(seq)

    def next_due_ms(self) -> int | None:
        """When a job may next return by time; the job may be gone by then."""
        ends = [self._deadlines[0][0] + 1] if self._deadlines else []
        return min(ends + [due_ms for due_ms, _ in self._dues[:1]], default=None)

    def sweep(self, now_ms: int) -> int:
        """Advance the time: expired leases and due delays return their jobs."""
        now_ms = self.topic.expire(now_ms)
        self._forget_gone()
        back: list[int] = []
        for deadline_ms, seq in _taken_before(self._deadlines, now_ms):
            lease = self._leases.get(seq)
            if lease is not None and lease.deadline_ms == deadline_ms:
                del self._leases[seq]
                back.append(seq)
        for due_ms, seq in _taken_before(self._dues, now_ms + 1):
            if self._delayed.get(seq) == due_ms:
                del self._delayed[seq]
                back.append(seq)
        self._give_back(back)
        if len(self._leases) != self.topic.counted.leases:
            self.recount()
        return now_ms

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
        now_ms = self.sweep(now_ms)
        config = self.topic.config
        deadline_ms = now_ms + (requests[0].lease_ms or config.lease_ms)
        turns = _turns(requests)
        leases: list[JobLease] = []
        dead: list[int] = []
        room, dead_room = CLAIMED_BYTES_MAX, DEAD_LETTER_BYTES_MAX
        turn, passed = next(turns, None), 0
        resume_seq, self._resume_seq = self._resume_seq, 0
        waiting = self._waiting()
        while turn is not None and (seq := next(waiting, None)) is not None:
            deliveries = self._deliveries.get(seq, 0) + 1
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
                        waiting = self._waiting(resume_seq)
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
        return Batch.of([self._dead_letter(seq) for seq in claimed.dead])

    def decide_ack(self, settle: Settle, now_ms: int) -> tuple[JobsAcked, list[int]]:
        """Decide which jobs are finished; also return the seqs that the node does not hold."""
        now_ms = self.sweep(now_ms)
        held, skipped = self._held(settle)
        return JobsAcked(self.topic.name, now_ms, held), skipped

    def decide_nack(
        self, settle: Settle, now_ms: int, delay_ms: int, *, unseen: bool = False
    ) -> tuple[JobsNacked, list[int]]:
        """Decide which jobs are returned; also return the seqs that the node does not hold."""
        now_ms = self.sweep(now_ms)
        held, skipped = self._held(settle)
        return JobsNacked(self.topic.name, now_ms, held, now_ms + delay_ms, unseen), skipped

    def decide_extend(
        self, settle: Settle, now_ms: int, lease_ms: int
    ) -> tuple[JobsExtended, list[int]]:
        """Decide which leases restart now; also return the seqs that the node does not hold."""
        now_ms = self.sweep(now_ms)
        held, skipped = self._held(settle)
        return JobsExtended(self.topic.name, now_ms, held, now_ms + lease_ms), skipped

    def to_log(self, entry: QueueEntry) -> QueueEntry | None:
        """The part of an entry that must be logged before the caller is answered, or None.

        Leases that need not survive are not logged; finished jobs always are.
        """
        if isinstance(entry, JobsClaimed):
            if entry.dead and not self.topic.config.leases_durable:
                return replace(entry, leases=())
            is_empty = not (entry.leases or entry.dead)
        else:
            is_empty = not entry.seqs
        is_wanted = self.topic.config.leases_durable or isinstance(entry, JobsAcked)
        return entry if is_wanted and not is_empty else None

    # Changes

    def stage(self, entry: QueueEntry) -> None:
        """Reserve the jobs of a submitted entry: no claim gets them, none is deleted yet."""
        self.sweep(entry.now_ms)
        moved: list[_Before] = []
        self._staged.append(_Staged(self._fresh_seq, moved))
        match entry:
            case JobsClaimed():
                for seq in entry.dead:
                    self._reserve(seq, moved)
                for lease in entry.leases:
                    self._claim(lease, moved)
            case JobsAcked():
                for seq in entry.seqs:
                    self._reserve(seq, moved)
            case JobsNacked():
                self._nack(entry, moved)
            case JobsExtended():
                self._extend(entry, moved)
        self.recount()

    def apply(self, entry: QueueEntry) -> None:
        """Apply the next durable entry, the oldest staged one: its finished jobs are deleted.

        In replay nothing is staged. Jobs that have left the topic are skipped.
        """
        if not self._staged:
            self.stage(entry)
        self._staged.popleft()
        finished: tuple[int, ...] = ()
        if isinstance(entry, JobsAcked):
            finished = entry.seqs
        elif isinstance(entry, JobsClaimed):
            finished = entry.dead
            self.dead_lettered += len(finished)
        for seq in finished:
            self._settling.discard(seq)
            self._deliveries.pop(seq, None)
            self.topic.remove(seq)

    def abandon(self) -> None:
        """Restore every job that is still in the topic: no staged entry became durable."""
        while self._staged:
            fresh_seq, moved = self._staged.pop()
            for before in reversed(moved):
                self._put_back(before)
            # Everything that is fresh again was taken by an entry that is reverted here.
            self._fresh_seq = fresh_seq
            del self._returned[bisect_left(self._returned, fresh_seq) :]
        self.recount()

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
        )

    @classmethod
    def restored(cls, topic: Topic, state: QueueState) -> Queue:
        """The queue of a snapshot."""
        queue = cls(topic)
        queue._fresh_seq = state.fresh_seq
        # Jobs may have left before the snapshot was taken.
        queue._removals_seen = queue._scattered_seen = -1
        queue._delayed = dict(state.delayed)
        queue._dues = sorted((due_ms, seq) for seq, due_ms in state.delayed)
        queue._returned = list(state.returned)
        queue._deliveries = dict(state.deliveries)
        queue.dead_lettered = state.dead_lettered
        for lease in state.leases:
            queue._lease(lease)
        queue.recount()
        return queue

    def _claim(self, lease: JobLease, moved: list[_Before]) -> None:
        seq = lease.seq
        self._pass_fresh(seq)
        if self.topic.has(seq):
            moved.append(self._before(seq))
            self._leave(seq)
            self._deliveries[seq] = lease.deliveries
            self._lease(lease)

    def _reserve(self, seq: int, moved: list[_Before]) -> None:
        """Keep a job from every claim until it is known whether it is finished."""
        if self.topic.has(seq):
            moved.append(self._before(seq))
            self._leave(seq)
            self._settling.add(seq)

    def _before(self, seq: int) -> _Before:
        return _Before(seq, self._leases.get(seq), self._deliveries.get(seq, 0))

    def _put_back(self, before: _Before) -> None:
        """Restore a job's place, unless it has left the topic."""
        seq, lease, deliveries = before
        self._leave(seq)
        self._deliveries.pop(seq, None)
        if not self.topic.has(seq):
            return
        if deliveries:
            self._deliveries[seq] = deliveries
        if lease is not None:
            self._lease(lease)
        else:
            insort(self._returned, seq)

    def _lease(self, lease: JobLease) -> None:
        self._leases[lease.seq] = lease
        heappush(self._deadlines, (lease.deadline_ms, lease.seq))
        if len(self._deadlines) > 2 * len(self._leases) + _OUT_OF_DATE_MAX:
            self._deadlines = [(held.deadline_ms, seq) for seq, held in self._leases.items()]
            heapify(self._deadlines)

    def _extend(self, entry: JobsExtended, moved: list[_Before]) -> None:
        for seq in entry.seqs:
            lease = self._leases.get(seq)
            if lease is not None:
                moved.append(self._before(seq))
                self._lease(lease._replace(deadline_ms=entry.deadline_ms))

    def _nack(self, entry: JobsNacked, moved: list[_Before]) -> None:
        for seq in entry.seqs:
            if not self.topic.has(seq) or seq >= self._fresh_seq:
                continue
            moved.append(self._before(seq))
            self._leave(seq)
            if entry.unseen:
                self._uncount(seq)
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
        self._settling.discard(seq)
        place = bisect_left(self._returned, seq)
        if place < len(self._returned) and self._returned[place] == seq:
            del self._returned[place]

    def _pass_fresh(self, seq: int) -> None:
        """Move past a seq. Fresh jobs before it, whose claims were not logged, are not lost."""
        if seq >= self._fresh_seq:
            self._give_back([*self.topic.row.live_seqs(self._fresh_seq - 1, seq - 1)])
            self._fresh_seq = seq + 1

    def _waiting(self, from_seq: int = 0) -> Iterator[int]:
        """The jobs to lease, in order, from a seq on."""
        returned = islice(self._returned, bisect_left(self._returned, from_seq), None)
        fresh = self.topic.row.live_seqs(self._fresh_seq - 1, self.topic.head_seq)
        for seq in chain(returned, fresh):
            if not (self._unreadable and any(seq in seqs for seqs in self._unreadable)):
                yield seq

    def _held(self, settle: Settle) -> tuple[tuple[int, ...], list[int]]:
        """Split seqs into those that the node holds, without duplicates, and all others."""
        held: dict[int, None] = {}
        skipped = []
        for seq, fence in settle.fenced():
            lease = self._leases.get(seq)
            is_held = lease is not None and lease.node == settle.node and seq not in held
            if lease is not None and is_held and fence in (None, lease.fence):
                held[seq] = None
            else:
                skipped.append(seq)
        return tuple(held), skipped

    def _forget_gone(self) -> None:
        """Forget jobs that left the topic by a cap, by age or by a delete.

        Usually they are the oldest, and fewer than the remaining jobs.
        """
        topic = self.topic
        if self._removals_seen == topic.removals:
            return
        first_seq, end_seq = self._earliest_seq, topic.earliest_seq
        only_oldest = self._scattered_seen == topic.scattered_removals
        self._removals_seen, self._scattered_seen = topic.removals, topic.scattered_removals
        self._earliest_seq = end_seq
        if only_oldest and end_seq - first_seq <= len(self._deliveries) + len(self._settling):
            for seq in range(first_seq, end_seq):
                for kept in (self._leases, self._delayed, self._deliveries):
                    kept.pop(seq, None)
                self._settling.discard(seq)
            del self._returned[: bisect_left(self._returned, end_seq)]
            return
        has = topic.has
        for kept in (self._leases, self._delayed, self._deliveries):
            for seq in [seq for seq in kept if not has(seq)]:
                del kept[seq]
        self._returned = [seq for seq in self._returned if has(seq)]
        self._settling = {seq for seq in self._settling if has(seq)}

    def _dead_letter(self, seq: int) -> RawRecord:
        record = self.topic.get(seq)
        assert record is not None, "only live jobs wait"
        return dead_letter(record, self.topic.name, seq, self._deliveries[seq])


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
