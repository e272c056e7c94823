"""One step of a router: from its position in the source to the copies its destination appends.

The router's new position is part of the entry that appends the copies, so a crash can neither lose
a copy nor duplicate it.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Final, NamedTuple

from msgspec import Raw

from penstock.kernel.units import MIB
from penstock.protocol.errors import RecordTooLarge, TopicFull
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch
from penstock.topics.core.blocks import NotLoaded
from penstock.topics.core.entries import Appended, Feed
from penstock.topics.core.record import (
    Record,
    Routed,
    has_member,
    hops_of,
    meta_keys,
    size_of,
    splice_meta,
)
from penstock.topics.core.record_row import Slot
from penstock.topics.core.router import Router, RouterConfig
from penstock.topics.core.topic import Topic

STEP_RECORDS_MAX: Final = 1_024
STEP_BYTES_MAX: Final = 4 * MIB
"""The most bytes in a step, unless a single record is larger: a step is one log entry."""
HOPS_MAX: Final = 8
HOLE_SEQS_MAX: Final = 65_536
"""The most seqs in a hole: each takes memory, and the number missed is an estimate."""


class Step(NamedTuple):
    """A router's next action: the entry for its destination, and whether more is waiting.

    No entry and `held`: the destination is full, and the router keeps its position.
    """

    entry: Appended | None
    more: bool
    held: bool = False


class Copies(NamedTuple):
    """The copies a router takes from its source, each with its source seq."""

    records: list[Record]
    seqs: list[int]
    upto_seq: int
    trimmed: int


def step(router: Router, source: Topic, dest: Topic, now_ms: int, limits: TopicLimits) -> Step:
    """Decide the next step of a router whose source and destination are both on this node.

    The next step may be decided once this one's entry is applied. A destination that rejects when
    full takes as much as it has room for.
    """
    copies = take(router, source, now_ms, limits)
    dest.expire(now_ms)
    if copies.upto_seq == router.source_seq:
        return Step(None, more=False)
    fits = _room(dest, copies.records)
    if fits < len(copies.records):
        upto_seq = copies.seqs[fits] - 1
        if upto_seq == router.source_seq:
            return Step(None, more=True, held=True)
        copies = copies._replace(records=copies.records[:fits], upto_seq=upto_seq)
    feed = Feed(router.config.name, router.source_epoch, copies.upto_seq, copies.trimmed)
    entry = dest.decide_feed(feed, Batch.of(copies.records), now_ms)
    return Step(entry, more=copies.upto_seq < source.head_seq)


def take(router: Router, source: Topic, now_ms: int, limits: TopicLimits) -> Copies:
    """The copies of the next seqs of a source, skipping what is not forwarded.

    Seqs evicted from the source too early become a hole in the destination. Records that were only
    in memory and lost by a restart are skipped silently: they were never promised.
    """
    source.expire(now_ms)
    passed = max(router.source_seq, source.floors.lost)
    start = max(passed, source.floors.involuntary)
    upto = max(start, min(source.head_seq, start + STEP_RECORDS_MAX))
    copies = Copies([], [], upto, min(start - passed, HOLE_SEQS_MAX))
    wanted = router.config.filter
    room = STEP_BYTES_MAX
    try:
        for slot in source.live(start, upto):
            record = slot.record
            if hops_of(record) < HOPS_MAX and (wanted is None or wanted.matches(record.tag)):
                room -= len(record.data) + (len(record.meta) if record.meta is not None else 0)
                if room < 0 and copies.records:
                    return copies._replace(upto_seq=slot.seq - 1)
                copies.records.append(copy(router, slot, limits))
                copies.seqs.append(slot.seq)
    except NotLoaded as missing:
        if missing.block.first_seq - 1 <= start:
            raise
        return copies._replace(upto_seq=missing.block.first_seq - 1)  # loaded in its turn
    return copies


def copy(router: Router, slot: Slot, limits: TopicLimits) -> Record:
    """A record for the destination: new seq and time, one more hop."""
    config, record = router.config, slot.record
    tag = record.tag if config.preserve_tag else None
    node = record.node if config.preserve_node else None
    if config.guarantee == "exactly_once":
        old = None if record.meta is None else bytes(record.meta)
        meta = Raw(traced_meta(config, router.source_epoch, slot.seq, old, limits))
        return Routed(record.data, tag, node, meta, hops=hops_of(record) + 1)
    return Routed(record.data, tag, node, record.meta, hops=hops_of(record) + 1)


def traced_meta(
    config: RouterConfig, source_epoch: int, seq: int, meta: bytes | None, limits: TopicLimits
) -> bytes:
    """The meta of a copy, with its origin.

    A meta that has no room for the origin, or already has one from another router, is kept whole
    under a separate key.
    """
    trace = {
        "idempotency_key": f"{config.name}:{source_epoch}:{seq}",
        "router": config.name,
        "source_topic": config.source,
        "source_topic_id": source_epoch,
        "source_epoch": source_epoch,
        "source_seq": seq,
    }
    members = b'"_topics_router":' + json.dumps(trace, separators=(",", ":")).encode()
    if meta is None or _takes_one_more(meta, len(members), limits):
        return splice_meta(meta, members)
    return splice_meta(None, members + b',"_topics_original_meta":' + meta)


def _takes_one_more(meta: bytes, more_bytes: int, limits: TopicLimits) -> bool:
    if len(meta) + more_bytes >= limits.meta_bytes_max or meta_keys(meta) >= limits.meta_keys_max:
        return False
    return not has_member(meta, "_topics_router")


def _room(dest: Topic, records: list[Record]) -> int:
    """How many of these records, from the first on, fit into a destination."""
    if dest.config.discard != "reject":
        return len(records)
    low, high = 0, len(records)
    totals = [0, *accumulate(map(size_of, records))]
    while low < high:
        middle = (low + high + 1) // 2
        try:
            dest.admit(middle, totals[middle])
            low = middle
        except (TopicFull, RecordTooLarge):
            high = middle - 1
    return low
