"""A read: the records after a cursor, and an account of those that are no longer available.

`next_from_seq` is the last seq that was scanned, so a cursor moves past deleted or filtered
records; the reader has everything exactly when it equals the head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.protocol.errors import InvalidRequest
from penstock.protocol.limits import WAIT_MS_MAX, TopicLimits
from penstock.protocol.values import parse_bool, parse_u64
from penstock.topics.core.predicate import Predicate, parse_predicate
from penstock.topics.core.record import size_of
from penstock.topics.core.record_row import Slot
from penstock.topics.core.shown import Found
from penstock.topics.core.topic import Floors, Topic

_U32_MAX: Final = 2**32 - 1
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


class Tombstone(NamedTuple):
    """Seqs that a cursor can no longer get, and why. Explicit deletes leave no tombstone."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Diff(NamedTuple):
    """One page: records, tombstones and the new cursor."""

    found: Found
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
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


def parse_read(body: dict[str, Any], limits: TopicLimits) -> ReadRequest:
    """Parse a read request, with defaults and clamps; a wrong type is `InvalidRequest`."""
    limit = _field(body, "limit", _u32, 0) or limits.read_records
    batch_bytes = _field(body, "max_batch_bytes", parse_u64, 0) or limits.read_bytes
    return ReadRequest(
        _field(body, "from_seq", parse_u64, 0),
        min(limit, limits.read_records_max),
        parse_nodes(body.get("node")),
        _field(body, "include_tags", parse_bool, False),
        _field(body, "include_meta", parse_bool, True),
        min(_field(body, "wait_ms", _u32, 0), WAIT_MS_MAX),
        min(batch_bytes, limits.read_bytes_max),
        None if body.get("epoch") is None else parse_u64("epoch", body["epoch"]),
        parse_predicate(body["tag"]) if body.get("tag") is not None else None,
    )


def parse_nodes(value: Any) -> frozenset[str]:
    """The nodes whose own records are not sent back to them: one name, or several."""
    if value is None:
        return _NOBODY
    nodes = [value] if isinstance(value, str) else value
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise InvalidRequest(f"expected node to be a string or an array of strings, found {value}")
    return frozenset(nodes)


def read(
    topic: Topic,
    request: ReadRequest,
    now_ms: int,
    limits: TopicLimits,
    upto_seq: int | None = None,
) -> Diff:
    """Read one page. Changes nothing except expiring records.

    At least one record is delivered even if it is over the byte budget; the cursor does not move
    past one that is left out. At most `scan_records_max` seqs are scanned, `filter_records_max`
    where each must be decoded, none after `upto_seq`. Raises `NotLoaded` if a record must be loaded
    from a file.
    """
    topic.expire(now_ms)
    tombstone = find_tombstone(topic, request.from_seq, request.epoch)
    start = request.from_seq
    if tombstone:
        start = 0 if tombstone.reason == "recreated" else tombstone.gap_to
    start = max(start, topic.earliest_seq - 1)
    nodes = request.nodes if topic.config.dedupe_node else frozenset()
    is_filtered = bool(nodes) or request.tag is not None
    scan_max = limits.filter_records_max if is_filtered else limits.scan_records_max
    upto = min(topic.head_seq, start + scan_max)
    if topic.holes:
        upto = before_hole(topic, start, upto)
    if upto_seq is not None:
        upto = max(start, min(upto, upto_seq))
    found, next_from_seq = _take(topic, start, upto, nodes, request)
    return Diff(
        found,
        next_from_seq,
        topic.head_seq,
        topic.earliest_seq,
        tombstone,
        topic.told_epoch,
        next_from_seq - start,
    )


def find_tombstone(topic: Topic, from_seq: int, epoch: int | None = None) -> Tombstone | None:
    """What a cursor lost by caps, age or a trimmed source, or because the topic is another."""
    head_seq = topic.head_seq
    if from_seq > head_seq or (epoch is not None and epoch != topic.told_epoch):
        missed = max(head_seq - 1, 0) + 1
        return Tombstone(1, head_seq, "recreated", missed, topic.earliest_seq, head_seq)
    gap_to = max(from_seq, topic.floors.involuntary)
    if topic.holes:
        gap_to = _past_holes(topic, gap_to)
    if gap_to == from_seq:
        return None
    reason = _reason(topic.floors, from_seq + 1)
    return Tombstone(from_seq + 1, gap_to, reason, gap_to - from_seq, gap_to + 1, head_seq)


def before_hole(topic: Topic, start: int, upto: int) -> int:
    """End a page before the next hole: the following page reports it."""
    hole = topic.hole_after(start)
    if hole is not None and hole.first_seq - 1 <= start:
        hole = topic.hole_after(hole.last_seq)  # a cursor inside this one already knows of it
    return upto if hole is None else min(upto, hole.first_seq - 1)


def _past_holes(topic: Topic, seq: int) -> int:
    """The end of the holes at a cursor, with no record before them; else the cursor."""
    hole = topic.hole_after(seq)
    while hole is not None and not topic.has_between(seq + 1, hole.first_seq - 1):
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
    return topic.page(start, upto, request.limit, request.batch_bytes_max)


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


def _field(body: dict[str, Any], key: str, parse: Callable[[str, Any], Any], default: Any) -> Any:
    return parse(key, body[key]) if key in body else default


def _u32(key: str, value: Any) -> int:
    number = parse_u64(key, value)
    if number > _U32_MAX:
        raise InvalidRequest(f"expected {key} to fit 32 bits, found {value}")
    return number
