"""A queue for people: counts, leases by worker, and the newest dead letters. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.flow.rate import LazyRate
from penstock.protocol.queues import (
    LEASES_LOOKED_MAX,
    LEASES_SHOWN_MAX,
    LETTERS_LOOKED_MAX,
    LETTERS_SHOWN_MAX,
    DeadLetter,
    LetterReason,
    QueueLease,
    QueueState,
    QueueWorker,
)
from penstock.topics.core.leases import JobLease
from penstock.topics.core.letters import death_of
from penstock.topics.core.queue import Queue
from penstock.topics.core.record_row import Slot
from penstock.topics.engine.letters import slots_of
from penstock.topics.engine.topic_views import Shown, everything, rates_of

if TYPE_CHECKING:
    from penstock.topics.engine.engine import Engine


async def show_queue(engine: Engine, name: str, *, shown: Shown = everything) -> QueueState:
    """A queue, after its routers have delivered everything; letters only of a topic `shown`."""
    await engine.forwarder.drain(name)
    queue = engine.writer(name).partition.queue(name)
    config = queue.topic.config
    dest = config.dead_letter
    is_read = dest is not None and dest in engine.registry.topics and shown(dest)
    letters = await _letters(engine, str(dest), name) if is_read else []
    next_up = await _next_up(engine, queue)
    now_ms = engine.clock.now_ms()
    counts = queue.counts(now_ms)
    delayed = queue.topic.at(now_ms).count - counts.ready - counts.in_flight
    held = queue.leases(now_ms, LEASES_LOOKED_MAX)
    held.sort(key=lambda lease: (lease.deadline_ms, lease.seq))
    return QueueState(
        queue=name,
        ready=counts.ready,
        leased=counts.in_flight,
        delayed=delayed,
        dead=len(letters),
        dead_total=counts.dead_lettered,
        in_per_s=rates_of(queue.topic, now_ms)[0],
        finished_per_s=_finished_per_s(queue, now_ms),
        oldest_ready_ms=None if next_up is None else max(0, now_ms - next_up.ts_ms),
        next_delayed_ms=queue.next_delayed_ms(now_ms) if delayed else None,
        lease_ms=config.lease_ms,
        max_deliveries=config.max_deliveries,
        dead_letter=dest,
        workers=_workers(held),
        leases=[_lease(lease) for lease in held[:LEASES_SHOWN_MAX]],
        letters=letters[:LETTERS_SHOWN_MAX],
        reasons=_reasons(letters),
    )


def _finished_per_s(queue: Queue, now_ms: int) -> float:
    rate: LazyRate | None = queue.finished_rate
    if rate is None:
        rate = queue.finished_rate = LazyRate(queue.finished, now_ms)
    return round(rate.look(queue.finished, queue.last_finished_ms, now_ms), 2)


def _workers(held: Iterable[JobLease]) -> list[QueueWorker]:
    """How many leases each worker holds, most first; the leases come in the order of their ends."""
    counts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for lease in held:
        counts[lease.node] = counts.get(lease.node, 0) + 1
        ends.setdefault(lease.node, lease.deadline_ms)
    found = [
        QueueWorker(node=node, leases=count, next_deadline=ends[node])
        for node, count in counts.items()
    ]
    return sorted(found, key=lambda worker: (-worker.leases, worker.node))


def _lease(lease: JobLease) -> QueueLease:
    return QueueLease(
        seq=lease.seq, node=lease.node, deadline=lease.deadline_ms, deliveries=lease.deliveries
    )


async def _next_up(engine: Engine, queue: Queue) -> Slot | None:
    """The job that is leased next, with its record; None if there is none, or it is unreadable."""
    seq = queue.first_ready(engine.clock.now_ms())
    if seq is None:
        return None
    return await anext(slots_of(engine.cold, queue.topic, [seq]), None)


async def _letters(engine: Engine, dest: str, name: str) -> list[DeadLetter]:
    """The letters of a queue among the newest records of a topic, newest first."""
    topic = engine.topic(dest)
    head_seq = topic.head_seq
    newest = reversed([*topic.row.live_seqs(head_seq - LETTERS_LOOKED_MAX, head_seq)])
    found = [_letter(slot, name) async for slot in slots_of(engine.cold, topic, newest)]
    return [letter for letter in found if letter is not None]


def _letter(slot: Slot, queue: str) -> DeadLetter | None:
    """A record as a dead letter; None if it is not one of this queue."""
    death = death_of(slot.record)
    if death is None or death.queue != queue:
        return None
    return DeadLetter(
        seq=slot.seq,
        ts=slot.ts_ms,
        src_seq=death.src_seq,
        deliveries=death.deliveries,
        tag=slot.record.tag,
        reason=death.reason,
        redrives=death.redrives,
    )


def _reasons(letters: Iterable[DeadLetter]) -> list[LetterReason]:
    counts = Counter(letter.reason for letter in letters)
    return [LetterReason(reason=reason, count=count) for reason, count in counts.most_common()]
