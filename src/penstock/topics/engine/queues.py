"""Queue commands: claims, alone or collected in a window, and ack, nack and extend."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from penstock.kernel.clock import Clock
from penstock.protocol.errors import (
    IsASpace,
    RecordsUnreadable,
    RecordTooLarge,
    Throttled,
    TopicFull,
)
from penstock.topics.core.batch import Batch
from penstock.topics.core.cold_row import ColdBlock, NotLoaded
from penstock.topics.core.entries import JobsAcked, JobsClaimed, JobsExtended, JobsNacked
from penstock.topics.core.leases import ClaimRequest, ClaimWindow, JobLease, Settle
from penstock.topics.core.partition import DecidedChange
from penstock.topics.core.queue import JobCounts, Queue
from penstock.topics.core.record_row import Slot
from penstock.topics.engine.forwarder import Forwarder
from penstock.topics.engine.writers import PartitionWriter, Writers
from penstock.topics.persist.cold import ColdCache, Hold

_REFUSALS: Final = (TopicFull, RecordTooLarge, Throttled, IsASpace)
"""Why a topic refuses dead letters: their jobs keep waiting."""


class LeasedJob(NamedTuple):
    """A leased job with its record."""

    lease: JobLease
    slot: Slot


class ClaimResult(NamedTuple):
    """The jobs of a claimer, and the counts of the queue afterwards."""

    jobs: list[LeasedJob]
    counts: JobCounts


class Settled(NamedTuple):
    """The outcome of an ack, nack or extend."""

    seqs: tuple[int, ...]
    skipped: list[int]
    counts: JobCounts
    deadline_ms: int = 0


class QueueCommands:
    """Leases jobs and takes them back."""

    def __init__(
        self,
        writers: Writers,
        forwarder: Forwarder,
        cold: ColdCache,
        *,
        clock: Clock,
        touch: Callable[[str], None],
        mark: Callable[[str], None],
    ) -> None:
        self._writers = writers
        self._forwarder = forwarder
        self._cold = cold
        self._clock = clock
        self._touch = touch
        self._mark = mark
        self._windows: dict[str, tuple[ClaimWindow, asyncio.Task[list[list[LeasedJob]]]]] = {}
        self._dead_lettering: dict[str, asyncio.Lock] = {}

    async def claim(self, name: str, request: ClaimRequest) -> ClaimResult:
        """Lease jobs to a node, lowest seq first."""
        queue = await self._queue(name)
        self._touch(name)
        jitter_ms = queue.topic.config.claim_jitter_ms
        if jitter_ms:
            jobs = await self._claim_together(name, request, jitter_ms)
        else:
            jobs = (await self._claim(name, [request]))[0]
        return ClaimResult(jobs, self._counts(name))

    async def ack(self, name: str, settle: Settle) -> Settled:
        """Finish jobs: they are deleted."""
        queue = await self._queue(name)
        entry, skipped = queue.decide_ack(settle, self._clock.now_ms())
        return await self._settle(name, entry, skipped)

    async def nack(
        self, name: str, settle: Settle, delay_ms: int, *, unseen: bool = False, reason: str = ""
    ) -> Settled:
        """Return jobs, available again at once or after a delay.

        `unseen` jobs never reached the claimer and do not count as delivered. `reason` is why the
        others were not finished.
        """
        queue = await self._queue(name)
        entry, skipped = queue.decide_nack(
            settle, self._clock.now_ms(), delay_ms, unseen=unseen, reason=reason
        )
        settled = await self._settle(name, entry, skipped)
        self._mark(name)
        return settled

    async def extend(self, name: str, settle: Settle, lease_ms: int) -> Settled:
        """Set new deadlines of leases, counted from now; they may be earlier."""
        queue = await self._queue(name)
        entry, skipped = queue.decide_extend(settle, self._clock.now_ms(), lease_ms)
        settled = await self._settle(name, entry, skipped)
        return settled._replace(deadline_ms=entry.deadline_ms)

    def forget(self, name: str) -> None:
        """Forget a removed queue."""
        self._dead_lettering.pop(name, None)

    async def _queue(self, name: str) -> Queue:
        """The queue, once no exclusive command holds it and its routers have delivered."""
        await self._forwarder.settled(name)
        return self._writers.of(name).partition.queue(name)

    async def _settle(
        self, name: str, entry: JobsAcked | JobsNacked | JobsExtended, skipped: list[int]
    ) -> Settled:
        writer = self._writers.of(name)
        if entry.seqs:
            await writer.commit(
                writer.partition.change_of(entry), sync=self._is_synced(writer, name)
            )
        return Settled(entry.seqs, skipped, self._counts(name))

    async def _claim_together(
        self, name: str, request: ClaimRequest, jitter_ms: int
    ) -> list[LeasedJob]:
        """Join the window of a queue, or open one; all of it is served when it closes."""
        found = self._windows.get(name)
        if found is None:
            window = ClaimWindow()
            serving = asyncio.create_task(self._serve_window(name, window, jitter_ms))
            serving.add_done_callback(_look)
            found = self._windows[name] = (window, serving)
        window, serving = found
        place = window.join(request, self._clock.monotonic_ms(), jitter_ms)
        return (await asyncio.shield(serving))[place]

    async def _serve_window(
        self, name: str, window: ClaimWindow, jitter_ms: int
    ) -> list[list[LeasedJob]]:
        """Serve a window when it closes, even if some of its claimers have disconnected."""
        try:
            await asyncio.sleep(jitter_ms / 1e3)
        finally:
            del self._windows[name]  # later claims open the next window
        assert window.closes_ms is not None
        return await self._claim(name, window.close(window.closes_ms))

    async def _claim(self, name: str, requests: Sequence[ClaimRequest]) -> list[list[LeasedJob]]:
        """One pass over the queue. Jobs that were delivered too often become dead letters first."""
        queue = await self._queue(name)
        with self._cold.hold() as hold:
            if queue.topic.config.dead_letter is None or not queue.topic.config.max_deliveries:
                queue, entry = await self._choose(queue, requests, hold)
                if not entry.dead:  # else it was reconfigured while records were loaded
                    change = self._writers.of(name).partition.change_of(entry)
                    return await self._lease(queue, requests, change, entry)
            async with self._dead_lettering.setdefault(name, asyncio.Lock()):
                return await self._claim_after_dead_letters(name, requests, hold)

    async def _claim_after_dead_letters(
        self, name: str, requests: Sequence[ClaimRequest], hold: Hold
    ) -> list[list[LeasedJob]]:
        """Claim from a queue with dead letters.

        Dead letters for the same partition are in one change with the claim. Those for another
        partition are written first, and then the claim is decided again.
        """
        writer = self._writers.of(name)
        far_takes = True
        while True:
            queue, entry = await self._choose(await self._queue(name), requests, hold)
            dest = queue.topic.config.dead_letter
            if entry.dead and dest is not None and self._writers.of(dest) is not writer:
                if far_takes:
                    far_takes = await self._dead_letter_far(dest, queue, entry)
                    continue
                entry = entry.without_dead_letters()
            change, entry = self._dead_letter_near(queue, entry)
            return await self._lease(queue, requests, change, entry)

    async def _choose(
        self, queue: Queue, requests: Sequence[ClaimRequest], hold: Hold
    ) -> tuple[Queue, JobsClaimed]:
        """Decide which claimer gets which job, once all their records are in memory."""
        while True:
            entry = queue.decide_claim(requests, self._clock.now_ms(), secrets.randbits(64))
            missing = _not_loaded(queue, entry) if queue.topic.row.cold_count else []
            if not missing:
                return queue, entry
            for block in missing:
                try:
                    await hold.load(block)
                except RecordsUnreadable:
                    queue.pass_over(block.first_seq, block.last_seq)
            queue = await self._queue(queue.topic.name)

    def _dead_letter_near(
        self, queue: Queue, entry: JobsClaimed
    ) -> tuple[DecidedChange, JobsClaimed]:
        """A claim and the dead letters that fit in its own partition, as one change."""
        partition, dest = self._writers.of(entry.topic).partition, queue.topic.config.dead_letter
        if not entry.dead or dest is None:
            return partition.change_of(entry), entry
        letters, now_ms = queue.letters(entry).records, self._clock.now_ms()
        letters_change, fits, left = DecidedChange((), ()), 0, len(letters)
        count = left  # usually all of them fit
        while left:
            try:
                letters_change = partition.decide_dead_letters(
                    dest, Batch.of(letters[: fits + count]), now_ms
                )
                fits, left = fits + count, left - count
            except _REFUSALS:
                left = count - 1
            count = (left + 1) // 2
        entry = replace(entry, dead=entry.dead[:fits])
        settled = partition.change_of(entry)
        entries = (*letters_change.entries, *settled.entries)
        return DecidedChange(entries, (*letters_change.to_log, *settled.to_log)), entry

    async def _dead_letter_far(self, dest: str, queue: Queue, entry: JobsClaimed) -> bool:
        """Write dead letters to another partition, then end their jobs. False if none was accepted.

        The jobs are not reserved meanwhile: a job that a client claimed because the queue was
        reconfigured stays with its holder. If the node stops between the two commits, a letter is
        sent again with its key, whichever other jobs are dead by then.
        """
        topic, letters = queue.topic, queue.letters(entry).records
        dest_writer, now_ms = self._writers.of(dest), self._clock.now_ms()
        while dest_writer.is_held:
            await dest_writer.settled()
        sent: list[asyncio.Future[object]] = []
        for seq, letter in zip(entry.dead, letters, strict=True):
            key = f"dead:{topic.name}:{topic.epoch}:{seq}"
            try:
                change = dest_writer.partition.decide_dead_letters(
                    dest, Batch.of([letter]), now_ms, key=key
                )
            except _REFUSALS:
                break
            sent.append(asyncio.get_running_loop().create_future())
            dest_writer.submit(change, sent[-1].set_result, sync=True)
        for outcome in [await each for each in sent]:
            if isinstance(outcome, Exception):
                raise outcome
        queue = await self._queue(topic.name)
        if sent and queue.topic is topic:  # else it was recreated meanwhile
            writer = self._writers.of(topic.name)
            now_ms = self._clock.now_ms()
            dead = [seq for seq in entry.dead[: len(sent)] if queue.lease_of(seq, now_ms) is None]
            ended = replace(entry, leases=(), dead=tuple(dead))
            await writer.commit(writer.partition.change_of(ended), sync=True)
        return bool(sent)

    async def _lease(
        self,
        queue: Queue,
        requests: Sequence[ClaimRequest],
        change: DecidedChange,
        entry: JobsClaimed,
    ) -> list[list[LeasedJob]]:
        jobs: list[list[LeasedJob]] = [[] for _ in requests]
        for lease in entry.leases:
            slot = queue.topic.slot(lease.seq)
            assert slot is not None, "only live jobs are leased"
            jobs[lease.request].append(LeasedJob(lease, slot))
        if entry.leases:
            queue.topic.out_records += len(entry.leases)
            queue.topic.last_out_ms = entry.now_ms
        if change.entries and (entry.leases or entry.dead):
            writer = self._writers.of(entry.topic)
            await writer.commit(change, sync=bool(change.to_log))
        return jobs

    def _counts(self, name: str) -> JobCounts:
        queue = self._writers.of(name).partition.queues.get(name)
        return queue.counts(self._clock.now_ms()) if queue else JobCounts(0, 0, 0)

    def _is_synced(self, writer: PartitionWriter, name: str) -> bool:
        config = writer.partition.topics[name].config
        return config.durability == "fsync" or config.leases_durable


def _not_loaded(queue: Queue, entry: JobsClaimed) -> list[ColdBlock]:
    """The distinct blocks with records that a claim needs and memory does not have."""
    missing: dict[ColdBlock, None] = {}
    for seq in (*entry.dead, *(lease.seq for lease in entry.leases)):
        try:
            queue.topic.get(seq)
        except NotLoaded as found:
            missing[found.block] = None
    return list(missing)


def _look(served: asyncio.Task[list[list[LeasedJob]]]) -> None:
    """Retrieve an error even if all waiters are gone, so that asyncio does not report it."""
    if not served.cancelled():
        served.exception()
