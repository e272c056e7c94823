"""Dead letters as commands: chosen ones become jobs again, or are discarded.

Letters for a topic of the same partition are moved in one change. For a topic of another partition
they are written there in one commit and then taken out of the dead letter topic in another; if the
node stops in between, they are in both, and a repetition within the idempotency window of the topic
adds none of them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from penstock.kernel.clock import Clock
from penstock.kernel.units import MIB
from penstock.protocol.errors import InvalidRequest, NoDeadLetters, RecordsUnreadable
from penstock.protocol.own_topics import check_not_own
from penstock.protocol.queues import LETTERS_MOVED_MAX
from penstock.topics.core.batch import Batch
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.letters import Death, death_of, redriven
from penstock.topics.core.partition import Partition
from penstock.topics.core.record import RawRecord, size_of
from penstock.topics.core.record_row import Slot
from penstock.topics.core.registry import Registry
from penstock.topics.core.topic import Topic
from penstock.topics.engine.forwarder import Forwarder
from penstock.topics.engine.writers import PartitionWriter, Writers
from penstock.topics.persist.cold import ColdCache

MOVED_BYTES_MAX: Final = 16 * MIB
"""The most bytes of letters that one command moves, except for the last one: they are one entry."""
_SLICE: Final = 256
"""How many records are looked at before the loop does other work."""


class Choice(NamedTuple):
    """Which letters of a queue: those of some seqs, those of a reason, or all of them.

    The reason "" is that of letters without one.
    """

    seqs: tuple[int, ...] | None = None
    reason: str | None = None

    def has(self, death: Death | None, queue: str) -> bool:
        """Whether a record is a letter of a queue that was chosen; its seq is checked elsewhere."""
        if death is None or death.queue != queue:
            return False
        return self.reason is None or self.reason == (death.reason or "")


class Settled(NamedTuple):
    """What became of letters: `seqs` are those that left, `more` is whether others wait."""

    topic: str
    seqs: tuple[int, ...]
    skipped: list[int]
    more: bool = False


class _Found(NamedTuple):
    letters: dict[int, RawRecord]
    more: bool


class LetterCommands:
    """Moves and discards dead letters. One command at a time: people give them."""

    def __init__(
        self,
        registry: Registry,
        writers: Writers,
        forwarder: Forwarder,
        cold: ColdCache,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._writers = writers
        self._forwarder = forwarder
        self._cold = cold
        self._clock = clock
        self._turn = asyncio.Lock()

    async def redrive(self, name: str, choice: Choice, to: str | None = None) -> Settled:
        """Move letters of a queue back into it, or into another topic; all or none of them."""
        to = name if to is None else to
        async with self._turn:
            dest = await self._dead_letter_topic(name)
            await self._forwarder.settled(to)
            check_not_own(to)
            self._topic(to)
            if dest is None:
                return Settled(to, (), list(choice.seqs or ()))
            if to == dest.name:
                raise InvalidRequest(f"the letters are in {to!r} already: name another topic")
            found, writer = await self._find(dest, name, choice), self._writers.of(dest.name)
            if self._writers.of(to) is writer:
                moved = await self._move_near(writer, dest, to, found)
            else:
                moved = await self._move_far(dest, to, found)
            return _settled(to, choice, moved, found)

    async def discard(self, name: str, choice: Choice) -> Settled:
        """Delete letters of a queue."""
        async with self._turn:
            dest = await self._dead_letter_topic(name)
            if dest is None:
                return Settled("", (), list(choice.seqs or ()))
            found = await self._find(dest, name, choice)
            async with self._writers.of(dest.name).exclusive() as partition:
                gone = self._still_there(partition, dest, found.letters)
                await self._take_out(dest, gone)
            return _settled(dest.name, choice, gone, found)

    async def _dead_letter_topic(self, name: str) -> Topic | None:
        """The topic with the letters of a queue, once its routers have delivered.

        None if it was not made yet, as no job has died.
        """
        dest = self._writers.of(name).partition.queue(name).topic.config.dead_letter
        if dest is None:
            raise NoDeadLetters(name)
        await self._forwarder.settled(dest)
        return self._registry.topics.get(dest)

    def _topic(self, name: str) -> Topic:
        """A topic, or `TopicNotFound`."""
        return self._writers.of(name).partition.topic(name)

    async def _find(self, dest: Topic, name: str, choice: Choice) -> _Found:
        """The chosen letters, the oldest first, as many as one command moves."""
        letters: dict[int, RawRecord] = {}
        size_bytes = 0
        seqs = [*dest.row.live_seqs(0, dest.head_seq)] if choice.seqs is None else choice.seqs
        async for slot in slots_of(self._cold, dest, sorted(set(seqs))):
            if not choice.has(death_of(slot.record), name):
                continue
            if len(letters) == LETTERS_MOVED_MAX or size_bytes > MOVED_BYTES_MAX:
                return _Found(letters, more=True)
            letters[slot.seq] = slot.record
            size_bytes += size_of(slot.record)
        return _Found(letters, more=False)

    def _still_there(
        self, partition: Partition, dest: Topic, seqs: Iterable[int]
    ) -> tuple[int, ...]:
        """Those that may leave now: a letter that a worker holds stays with its holder."""
        if partition.topics.get(dest.name) is not dest:
            return ()  # it was removed meanwhile
        now_ms, queue = self._clock.now_ms(), partition.queues.get(dest.name)
        aged_seq = dest.aged_seq(now_ms)
        return tuple(
            seq
            for seq in seqs
            if seq > aged_seq
            and dest.has(seq)
            and (queue is None or queue.lease_of(seq, now_ms) is None)
        )

    async def _move_near(
        self, writer: PartitionWriter, dest: Topic, to: str, found: _Found
    ) -> tuple[int, ...]:
        """Move letters within a partition, decided while nothing is staged there."""
        async with writer.exclusive() as partition:
            seqs = self._still_there(partition, dest, found.letters)
            if seqs:
                jobs = Batch.of([redriven(found.letters[seq]) for seq in seqs])
                now_ms = self._clock.now_ms()
                change = partition.decide_redrive(dest.name, seqs, to, jobs, now_ms)
                await writer.commit(change, sync=True)
            return seqs

    async def _move_far(self, dest: Topic, to: str, found: _Found) -> tuple[int, ...]:
        """Write letters to another partition, then take them out of their own."""
        target_writer = self._writers.of(to)
        while target_writer.is_held:
            await target_writer.settled()
        here = self._writers.of(dest.name).partition
        seqs = self._still_there(here, dest, found.letters)
        self._registry.written.check([dest.decide_remove(seqs, 0)])
        jobs = [(seq, redriven(found.letters[seq])) for seq in seqs]
        size_bytes, now_ms = sum(size_of(job) for _, job in jobs), self._clock.now_ms()
        target_writer.partition.topic(to).admit(len(jobs), size_bytes, now_ms)
        self._registry.check_total(size_bytes)
        sent: list[asyncio.Future[object]] = []
        for seq, job in jobs:  # without waiting in between: they are one commit
            key = f"redrive:{dest.name}:{dest.epoch}:{seq}"
            change = target_writer.partition.decide_dead_letters(
                to, Batch.of([job]), now_ms, key=key
            )
            sent.append(asyncio.get_running_loop().create_future())
            target_writer.submit(change, sent[-1].set_result, sync=True)
        for outcome in [await each for each in sent]:
            if isinstance(outcome, Exception):
                raise outcome
        await self._forwarder.settled(dest.name)
        if self._registry.topics.get(dest.name) is dest:
            await self._take_out(dest, seqs)
        return seqs

    async def _take_out(self, dest: Topic, seqs: tuple[int, ...]) -> None:
        if seqs:
            writer = self._writers.of(dest.name)
            change = writer.partition.decide_removal(dest.name, seqs, self._clock.now_ms())
            await writer.commit(change, sync=True)


async def slots_of(cold: ColdCache, topic: Topic, seqs: Iterable[int]) -> AsyncIterator[Slot]:
    """Live records of a topic, from their files if need be; unreadable ones are left out."""
    for looked, seq in enumerate(seqs, 1):
        slot = await _slot(cold, topic, seq)
        if slot is not None:
            yield slot
        if looked % _SLICE == 0:
            await asyncio.sleep(0)


async def _slot(cold: ColdCache, topic: Topic, seq: int) -> Slot | None:
    try:
        return topic.slot(seq)
    except NotLoaded as missing:
        with cold.hold() as hold:
            try:
                await hold.load(missing.block)
                return topic.slot(seq)
            except (NotLoaded, RecordsUnreadable):
                return None


def _settled(topic: str, choice: Choice, seqs: tuple[int, ...], found: _Found) -> Settled:
    """Seqs that were asked for and did not leave are skipped, unless their turn is to come."""
    skipped: list[int] = []
    if choice.seqs is not None:
        last_seq = max(found.letters, default=0) if found.more else max(choice.seqs, default=0)
        left = set(seqs)
        skipped = [seq for seq in choice.seqs if seq not in left and seq <= last_seq]
    return Settled(topic, seqs, skipped, found.more)
