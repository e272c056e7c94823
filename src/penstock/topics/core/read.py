"""A read: the records after a cursor, and an account of those that are no longer available.

`next_from_seq` is the last seq that was scanned, so a cursor moves past deleted or filtered
records; the reader has everything exactly when it equals the head.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.protocol.limits import TopicLimits
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import Found, size_of
from penstock.topics.core.record_row import Slot
from penstock.topics.core.topic import LiveView, Topic
from penstock.topics.core.topic_state import Floors

_NOBODY: Final[frozenset[str]] = frozenset()
"""Shared by all readers without a filter, so that watchers do not each keep an empty set."""


class ReadRequest(NamedTuple):
    """A reader's cursor and limits. `epoch` is that of the topic the cursor belongs to."""

    from_seq: int = 0
    limit: int = 256
    nodes: frozenset[str] = frozenset()
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    batch_bytes_max: int = 1_048_576
    epoch: int | None = None
    tag: Predicate | None = None


class LostSeqs(NamedTuple):
    """Seqs that a cursor can no longer get, and why. Explicit deletes leave no tombstone."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class DiffPage(NamedTuple):
    """One page: records, tombstones and the new cursor."""

    found: Found
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: LostSeqs | None
    epoch: int
    records_scanned: int
    cold_segments_read: int = 0

    @property
    def records(self) -> list[Slot]:
        """The records with their seqs and times."""
        return list(map(Slot, *self.found))

    @property
    def caught_up(self) -> bool:
        """Whether nothing is left to read."""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """How many seqs are left to scan."""
        return self.head_seq - self.next_from_seq

    @property
    def parks(self) -> bool:
        """Whether a long poll waits: there is nothing to report yet."""
        return self.caught_up and not self.found.records and self.tombstone is None


def read(
    topic: Topic,
    request: ReadRequest,
    now_ms: int,
    limits: TopicLimits,
    upto_seq: int | None = None,
) -> DiffPage:
    """Read one page of what is there at a time. Changes nothing.

    At least one record is delivered even if it is over the byte budget; the cursor does not move
    past one that is left out. At most `scan_records_max` seqs are scanned, `filter_records_max`
    where each must be decoded, none after `upto_seq`. Raises `NotLoaded` if a record must be loaded
    from a file.
    """
    here = topic.at(now_ms)
    tombstone = find_tombstone(topic, here, request.from_seq, request.epoch)
    start = request.from_seq
    if tombstone:
        start = 0 if tombstone.reason == "recreated" else tombstone.gap_to
    start = max(start, here.earliest_seq - 1)
    nodes = request.nodes if topic.config.dedupe_node else frozenset()
    is_filtered = bool(nodes) or request.tag is not None
    scan_max = limits.filter_records_max if is_filtered else limits.scan_records_max
    upto = min(topic.head_seq, start + scan_max)
    if topic.holes:
        upto = before_hole(topic, start, upto)
    if upto_seq is not None:
        upto = max(start, min(upto, upto_seq))
    found, next_from_seq = _take(topic, start, upto, nodes, request)
    return DiffPage(
        found,
        next_from_seq,
        topic.head_seq,
        here.earliest_seq,
        tombstone,
        topic.told_epoch,
        next_from_seq - start,
    )


def find_tombstone(
    topic: Topic, here: LiveView, from_seq: int, epoch: int | None = None
) -> LostSeqs | None:
    """What a cursor lost by caps, age or a trimmed source, or because the topic is another."""
    head_seq = topic.head_seq
    if from_seq > head_seq or (epoch is not None and epoch != topic.told_epoch):
        missed = max(head_seq - 1, 0) + 1
        return LostSeqs(1, head_seq, "recreated", missed, here.earliest_seq, head_seq)
    gap_to = max(from_seq, here.floors.involuntary)
    if topic.holes:
        gap_to = _past_holes(topic, gap_to)
    if gap_to == from_seq:
        return None
    reason = _reason(here.floors, from_seq + 1)
    return LostSeqs(from_seq + 1, gap_to, reason, gap_to - from_seq, gap_to + 1, head_seq)


def before_hole(topic: Topic, start: int, upto: int) -> int:
    """End a page before the next hole: the following page reports it."""
    hole = topic.hole_after(start)
    if hole is not None and hole.first_seq - 1 <= start:
        hole = topic.hole_after(hole.last_seq)  # a cursor inside this one already knows of it
    return upto if hole is None else min(upto, hole.first_seq - 1)


def _past_holes(topic: Topic, seq: int) -> int:
    """The end of the holes at a cursor, with no record before them; else the cursor."""
    hole = topic.hole_after(seq)
    while hole is not None and not topic.row.has_between(seq + 1, hole.first_seq - 1):
        seq = hole.last_seq
        hole = topic.hole_after(seq)
    return seq


def _take(
    topic: Topic, start: int, upto: int, nodes: frozenset[str], request: ReadRequest
) -> tuple[Found, int]:
    """The records of a page, and the last seq scanned."""
    if nodes or request.tag is not None:
        picked, passed = _pick(topic, start, upto, nodes, request)
        seqs, times, records = zip(*picked, strict=True) if picked else ((), (), ())
        return Found(seqs, times, records), passed
    return topic.row.page(start, upto, request.limit, request.batch_bytes_max)


def _pick(
    topic: Topic, start: int, upto: int, nodes: frozenset[str], request: ReadRequest
) -> tuple[list[Slot], int]:
    """As `_take`, filtering by node and tag."""
    taken: list[Slot] = []
    room = request.batch_bytes_max
    for slot in topic.live(start, upto):
        record = slot.record
        if record.node in nodes or not (request.tag is None or request.tag.matches(record.tag)):
            continue
        room -= size_of(record)
        if room < 0 and taken:
            return taken, slot.seq - 1
        taken.append(slot)
        if len(taken) == request.limit:
            return taken, slot.seq
    return taken, upto


def _reason(floors: Floors, gap_from: int) -> str:
    by_cap, by_age = floors.evicted >= gap_from, floors.expired >= gap_from
    if by_cap and by_age:
        return "mixed"
    if by_age:
        return "ttl"
    return "cap" if by_cap else "source_trim"
