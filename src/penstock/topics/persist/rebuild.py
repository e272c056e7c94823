"""Rebuilds a partition from what is readable: missing parts become holes, and are listed.

Replay refuses entries that are not consecutive; here a skipped seq counts as lost, and a topic
whose creation is lost is created again. Readers are told of the holes by tombstones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.kernel.errors import PenstockError
from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.cold_row import ColdBlock, SlotRun
from penstock.topics.core.entries import Appended, Created, JobsAcked, SpaceCommitted
from penstock.topics.core.partition import Entry, Partition
from penstock.topics.core.queue import Queue
from penstock.topics.core.record_row import RecordRow
from penstock.topics.core.registry import Registry
from penstock.topics.core.space import CONFIG as SPACE_CONFIG
from penstock.topics.core.space import TopicSpace
from penstock.topics.core.topic import Topic
from penstock.topics.core.topic_state import HOLES_MAX, Hole

_UNEXPECTED: Final = (PenstockError, LookupError, ValueError, TypeError, AssertionError)
"""What applying an entry may raise if it was decided on a lost one."""


class LostRecords(NamedTuple):
    """Records of a topic that cannot be read."""

    topic: str
    first_seq: int
    last_seq: int
    reason: str


class Rebuilding:
    """A partition being rebuilt."""

    def __init__(self) -> None:
        self.partition = Partition(Registry(TopicLimits(topics_max=0, routers_max=0)))
        self.lost: list[LostRecords] = []
        self.notes: list[str] = []

    def replay(self, entries: Iterable[Entry], why: str) -> None:
        """Apply entries of the log; `why` says what is missing before them, if anything."""
        for entry in entries:
            try:
                if isinstance(entry, Appended | SpaceCommitted):
                    self._join(entry, why)
                self.partition.apply(entry)
            except _UNEXPECTED as error:
                name = getattr(entry, "topic", None) or getattr(entry, "router", "a router")
                what = re.sub(r"\B([A-Z])", r" \1", type(entry).__name__).lower()  # "jobs acked"
                self.notes.append(f"{name}: a change ({what}) could not be made: {error}")

    def _join(self, entry: Appended | SpaceCommitted, why: str) -> None:
        """Make an entry with records consecutive: missing seqs are lost."""
        topic = self.partition.topics.get(entry.topic)
        if isinstance(entry, SpaceCommitted):
            first_seq, config = entry.seq, SPACE_CONFIG
        else:
            trimmed = entry.feed.trimmed if entry.feed is not None else 0
            first_seq, config = entry.first_seq - trimmed, TopicConfig()
        if topic is None:
            topic = self.make(entry.topic, config, entry.now_ms)
        if first_seq > topic.head_seq + 1 and first_seq > topic.reserved_seq + 1:
            self.lose_next(topic, first_seq - 1, why)

    def make(self, name: str, config: TopicConfig, now_ms: int, epoch: int = 0) -> Topic:
        """Create a topic whose creation, and with it its configuration, is lost."""
        epoch = epoch or self.partition.epoch + 1
        self.partition.apply(Created(name, now_ms, epoch, config))
        self.notes.append(f"{name}: its configuration cannot be read; it has that of a new topic")
        return self.partition.topics[name]

    def lose_next(self, topic: Topic, upto_seq: int, why: str) -> None:
        """Record that the next records of a topic are lost."""
        self.lost.append(LostRecords(topic.name, topic.head_seq + 1, upto_seq, why))
        topic.leave_hole(upto_seq - topic.head_seq, topic.now_ms)

    def lose_block(self, topic: Topic, block: ColdBlock, why: str) -> None:
        """Record that the records of a block are lost, except those already evicted."""
        seqs = list(topic.row.live_seqs(block.first_seq - 1, block.last_seq))
        for first_seq, last_seq in runs_of(seqs):
            self.lost.append(LostRecords(topic.name, first_seq, last_seq, why))
            _put_hole(topic, Hole(first_seq, last_seq))
        if topic.name in self.partition.queues:
            self.partition.apply(JobsAcked(topic.name, topic.now_ms, tuple(seqs)))
        for seq in seqs:
            topic.remove(seq)
        self.partition.registry.recount(topic)

    def assemble(self, topic: Topic, runs: Sequence[SlotRun], why: str) -> None:
        """Fill a topic's slots from pieces; the gaps between the pieces are lost."""
        ordered = sorted(runs, key=lambda run: run.first_seq)
        if not ordered:
            return
        topic.row = RecordRow(ordered[0].first_seq - 1)
        for run in ordered:
            slots = topic.row
            known = slots.head_seq + 1 - run.first_seq
            if known >= len(run.sizes):
                continue
            if known < 0:
                self.lose_next(topic, run.first_seq - 1, why)
                slots, known = topic.row, 0
            slots.take_run(run.times[known:], run.sizes[known:], run.records[known:])
        topic.row.settle()
        self.partition.registry.recount(topic)

    def complete(self, topic: Topic) -> None:
        """Make a topic match its type, even if the part with the details is lost."""
        partition = self.partition
        if topic.config.type == "queue" and topic.name not in partition.queues:
            partition.queues[topic.name] = Queue(topic)
            self.notes.append(f"{topic.name}: its leases and deliveries cannot be read")
        elif topic.config.type == "space" and topic.name not in partition.spaces:
            partition.spaces[topic.name] = TopicSpace(topic, partition.limits)
            self.notes.append(f"{topic.name}: its entities cannot be read")


def runs_of(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending seqs as ranges."""
    ranges: list[tuple[int, int]] = []
    for seq in seqs:
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


def joined(lost: Iterable[LostRecords]) -> list[LostRecords]:
    """The same losses in order; consecutive ones with the same reason are merged."""
    found: list[LostRecords] = []
    for each in sorted(lost):
        last = found[-1] if found else None
        follows = last is not None and (last.topic, last.last_seq + 1, last.reason) == (
            each.topic,
            each.first_seq,
            each.reason,
        )
        if last is not None and follows:
            found[-1] = last._replace(last_seq=each.last_seq)
        else:
            found.append(each)
    return found


def _put_hole(topic: Topic, hole: Hole) -> None:
    """Add a hole in the middle, so that cursors are told of it."""
    holes = sorted([*topic.holes, hole])
    merged: list[Hole] = []
    for each in holes:
        if merged and merged[-1].last_seq + 1 >= each.first_seq:
            last = max(merged[-1].last_seq, each.last_seq)
            merged[-1] = Hole(merged[-1].first_seq, last)
        else:
            merged.append(each)
    topic.holes = merged[-HOLES_MAX:]
