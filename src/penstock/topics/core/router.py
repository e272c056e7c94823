"""Routers: which topic feeds which, the position of each, and what it copies next.

A destination has one source, and chains of routers have no cycles unless allowed. A router starts
at its source's head and keeps its position when it is put again. Its changes are in the log of its
destination, so that logs can be replayed one after another. Its new position is part of the entry
that appends its copies, so a crash can neither lose a copy nor duplicate it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple

from msgspec import Raw, Struct

from penstock.kernel.units import MIB
from penstock.protocol.errors import (
    RecordTooLarge,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
)
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.batch import Batch
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.entries import Appended, FeedMark
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import (
    RawRecord,
    Routed,
    has_member,
    hops_of,
    meta_keys,
    size_of,
    splice_meta,
)
from penstock.topics.core.record_row import Slot
from penstock.topics.core.topic import Topic

STEP_RECORDS_MAX: Final = 1_024
STEP_BYTES_MAX: Final = 4 * MIB
"""The most bytes in a step, unless a single record is larger: a step is one log entry."""
HOPS_MAX: Final = 8
HOLE_SEQS_MAX: Final = 65_536
"""The most seqs in a hole: each takes memory, and the number missed is an estimate."""


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What a router copies, from where to where."""

    name: str
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: Predicate | None = None
    allow_cycle: bool = False
    guarantee: str = "at_least_once"

    def echo(self) -> dict[str, Any]:
        """The fields in every answer."""
        return {
            "router": self.name,
            "source": self.source,
            "dest": self.dest,
            "preserve_node": self.preserve_node,
            "preserve_tag": self.preserve_tag,
            "filter": self.filter.serialised() if self.filter else None,
            "allow_cycle": self.allow_cycle,
            "guarantee": self.guarantee,
        }


@dataclass(frozen=True, slots=True)
class Router:
    """A router and its position: the last seq of its source that it has processed."""

    config: RouterConfig
    source_epoch: int
    source_seq: int
    forwarded_total: int = 0


class RouterStored(Struct, frozen=True, array_like=True, tag="r"):
    """Entry: a router was created or replaced. Its start counts only if it is new."""

    config: RouterConfig
    source_epoch: int
    source_seq: int


class RouterRemoved(Struct, frozen=True, array_like=True, tag="u"):
    """Entry: a router was removed. Its destination tells it from later ones of the same name."""

    router: str
    dest: str


RouterEntry = RouterStored | RouterRemoved


class RouterTable:
    """Every router of a node, and the rules between them.

    A name has one router. During replay of several logs it may have several, one per destination:
    the removal of one may be in a log that is replayed after the creation of the next.
    """

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self._limits = limits or TopicLimits()
        self._routers: dict[_Key, Router] = {}
        self._by_name: dict[str, dict[_Key, None]] = {}
        self.by_source: dict[str, dict[_Key, None]] = {}
        self._by_dest: dict[str, dict[_Key, None]] = {}

    def get(self, name: str) -> Router:
        """The router with a name, or `RouterNotFound`."""
        router = self.find(name)
        if router is None:
            raise RouterNotFound(name)
        return router

    def find(self, name: str) -> Router | None:
        """The router with a name, or None."""
        for key in self._by_name.get(name, ()):
            return self._routers[key]
        return None

    def fed_by(self, source: str) -> list[Router]:
        """The routers that copy from a topic."""
        return [self._routers[key] for key in self.by_source.get(source, ())]

    def feeders_of(self, dest: str) -> list[Router]:
        """The routers that copy into a topic; all have the same source."""
        return [self._routers[key] for key in self._by_dest.get(dest, ())]

    def __iter__(self) -> Iterator[Router]:
        """Every router, sorted by name."""
        return (self._routers[key] for key in sorted(self._routers))

    def __len__(self) -> int:
        return len(self._routers)

    def check(self, config: RouterConfig) -> bool:
        """Refuse an invalid router. Returns True if it would be new."""
        old = self.find(config.name)
        if old is not None and (old.config.source, old.config.dest) != (config.source, config.dest):
            raise TopicExistsIncompatible(
                f"router {config.name!r} exists with another source or dest: remove it first",
                router=config.name,
                reason="router_repoint_forbidden",
                existing_source=old.config.source,
                existing_dest=old.config.dest,
            )
        is_as_before = old is not None and not old.config.allow_cycle
        if not (config.allow_cycle or is_as_before):  # a cycle closed by a later router is allowed
            self._check_cycle(config)
        for other in self.feeders_of(config.dest):
            if other.config.source != config.source:
                raise TopicExistsIncompatible(
                    f"router {other.config.name!r} already feeds topic {config.dest!r} from "
                    "another source: a topic can have only one",
                    topic=config.dest,
                    reason="router_dest_fan_in",
                )
        if old is None and 0 < self._limits.routers_max <= len(self._routers):
            raise Throttled(
                f"the node has its limit of {self._limits.routers_max} routers: remove one first",
                limit="max_routers",
                max=self._limits.routers_max,
            )
        return old is None

    def decide_put(self, config: RouterConfig, source_epoch: int, head_seq: int) -> RouterStored:
        """Decide a router whose source has this epoch and head, where a new one starts."""
        is_new = self.check(config)
        return (
            RouterStored(config, source_epoch, head_seq) if is_new else RouterStored(config, 0, 0)
        )

    def decide_removal(self, name: str) -> RouterRemoved | None:
        """Decide to remove a router; None if it does not exist."""
        router = self.find(name)
        return None if router is None else RouterRemoved(name, router.config.dest)

    def apply(self, entry: RouterEntry) -> bool:
        """Apply the next durable entry. Returns True if it created or removed a router.

        Routers are changed one at a time, while their partition is held, so none is ever staged.
        """
        match entry:
            case RouterStored():
                return self._put(entry, entry.config)
            case RouterRemoved():
                return self._remove((entry.router, entry.dest))

    def apply_feed(self, feed: FeedMark, dest: str, forwarded: int) -> None:
        """Advance the router's position: a feed reached the destination. It never goes back."""
        key = (feed.router, dest)
        router = self._routers.get(key)
        if router is None or feed.source_epoch != router.source_epoch:
            return
        self._routers[key] = replace(
            router,
            source_seq=max(router.source_seq, feed.source_seq),
            forwarded_total=router.forwarded_total + forwarded,
        )

    def restore(self, router: Router) -> None:
        """Add a router with its position from a snapshot."""
        key = _key(router.config)
        self._routers[key] = router
        for index, end in self._indexes(router.config):
            index.setdefault(end, {})[key] = None

    def _check_cycle(self, config: RouterConfig) -> None:
        """Walk up from the source, which has at most one feeder, and look for the destination."""
        path, seen = [config.source], {config.source}
        while path[-1] != config.dest:
            feeder = next(iter(self.feeders_of(path[-1])), None)
            if feeder is None or feeder.config.source in seen:
                return
            path.append(feeder.config.source)
            seen.add(feeder.config.source)
        raise RouterCycle([config.source, *reversed(path)])

    def _put(self, entry: RouterStored, config: RouterConfig) -> bool:
        old = self._routers.get(_key(config))
        if old is not None:
            self._routers[_key(config)] = replace(old, config=config)
            return False
        self.restore(Router(config, entry.source_epoch, entry.source_seq))
        return True

    def _remove(self, key: _Key) -> bool:
        old = self._routers.pop(key, None)
        if old is None:
            return False
        for index, end in self._indexes(old.config):
            del index[end][key]
            if not index[end]:
                del index[end]
        return True

    def _indexes(self, config: RouterConfig) -> tuple[tuple[dict[str, dict[_Key, None]], str], ...]:
        """The indexes of a router, each with its key."""
        return (
            (self._by_name, config.name),
            (self.by_source, config.source),
            (self._by_dest, config.dest),
        )


_Key = tuple[str, str]
"""Name and destination of a router."""


def _key(config: RouterConfig) -> _Key:
    return config.name, config.dest


class RouterStep(NamedTuple):
    """A router's next action: the entry for its destination, and whether more is waiting.

    No entry and `held`: the destination is full, and the router keeps its position.
    """

    entry: Appended | None
    more: bool
    held: bool = False


class Copies(NamedTuple):
    """The copies a router takes from its source, each with its source seq."""

    records: list[RawRecord]
    seqs: list[int]
    upto_seq: int
    trimmed: int


def decide_step(
    router: Router, source: Topic, dest: Topic, now_ms: int, limits: TopicLimits
) -> RouterStep:
    """Decide the next step of a router whose source and destination are both on this node.

    The next step may be decided once this one's entry is applied. A destination that rejects when
    full takes as much as it has room for.
    """
    copies = take_copies(router, source, now_ms, limits)
    if copies.upto_seq == router.source_seq:
        return RouterStep(None, more=False)
    fits = _room(dest, copies.records, now_ms)
    if fits < len(copies.records):
        upto_seq = copies.seqs[fits] - 1
        if upto_seq == router.source_seq:
            return RouterStep(None, more=True, held=True)
        copies = copies._replace(records=copies.records[:fits], upto_seq=upto_seq)
    feed = FeedMark(router.config.name, router.source_epoch, copies.upto_seq, copies.trimmed)
    entry = dest.decide_feed(feed, Batch.of(copies.records), now_ms)
    return RouterStep(entry, more=copies.upto_seq < source.head_seq)


def take_copies(router: Router, source: Topic, now_ms: int, limits: TopicLimits) -> Copies:
    """The copies of the next seqs of a source, skipping what is not forwarded.

    Seqs evicted from the source too early become a hole in the destination. Records that were only
    in memory and lost by a restart are skipped silently: they were never promised.
    """
    floors = source.at(now_ms).floors
    passed = max(router.source_seq, floors.lost)
    start = max(passed, floors.involuntary)
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
                copies.records.append(copy_record(router, slot, limits))
                copies.seqs.append(slot.seq)
    except NotLoaded as missing:
        if missing.block.first_seq - 1 <= start:
            raise
        return copies._replace(upto_seq=missing.block.first_seq - 1)  # loaded in its turn
    return copies


def copy_record(router: Router, slot: Slot, limits: TopicLimits) -> RawRecord:
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


def _room(dest: Topic, records: list[RawRecord], now_ms: int) -> int:
    """How many of these records, from the first on, fit into a destination."""
    if dest.config.discard != "reject":
        return len(records)
    low, high = 0, len(records)
    totals = [0, *accumulate(map(size_of, records))]
    while low < high:
        middle = (low + high + 1) // 2
        try:
            dest.admit(middle, totals[middle], now_ms)
            low = middle
        except (TopicFull, RecordTooLarge):
            high = middle - 1
    return low
