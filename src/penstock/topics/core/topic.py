"""One topic: its records, its four floors and its answers, changed only by log entries.

`decide_*` turns a command into an entry or refuses it, and changes nothing either way. `stage`
makes later decisions count on an entry that was submitted to the log. `apply` takes durable entries
in the order of the log, live and in replay alike. `abandon` forgets what never became durable.

The state is a function of the applied entries alone: time passes by the times in them, and records
leave by age only when an entry is applied. Readers and decisions look at the topic `at` a time, and
see nothing that is too old by then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.kernel.errors import Corrupt
from penstock.protocol.config import Changes, TopicConfig, check_change
from penstock.protocol.errors import InvalidRequest, IsASpace, RecordTooLarge, TopicFull
from penstock.protocol.values import is_reserved
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import (
    Advanced,
    Appended,
    Configured,
    Deleted,
    FeedMark,
    Removed,
    Skipped,
    TopicEntry,
)
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import RawRecord
from penstock.topics.core.record_row import HOT_SLOT_BYTES, RecordRow, Slot
from penstock.topics.core.topic_state import (
    HOLES_MAX,
    Floors,
    Hole,
    KeyedAnswer,
    KeyedAnswers,
    TopicSnapshot,
)
from penstock.topics.core.totals import Counted, Totals


class AppendResult(NamedTuple):
    """The answer to a write. A deduplicated one may be sent once `last_seq` is applied."""

    first_seq: int
    last_seq: int
    records: int
    head_seq: int
    deduped: bool = False
    created: bool = False


class LiveView(NamedTuple):
    """A topic as of a time: records that are too old have left, whether an entry said so or not."""

    floors: Floors
    earliest_seq: int
    count: int  # type: ignore[assignment]
    size_bytes: int


class Topic:
    """The state of one topic. `epoch` changes each time a name is created again."""

    def __init__(self, name: str, config: TopicConfig, *, epoch: int, now_ms: int) -> None:
        self.name = name
        self.config = config
        self.epoch = epoch
        self.told_epoch = epoch  # the epoch shown to readers: see `Registry.add`
        self.is_simple = _is_simple(config)
        self.is_reserved = is_reserved(name)
        self.now_ms = now_ms
        self.last_write_ms: int | None = None
        self.out_records = 0  # given to readers, watchers and workers since the start
        self.last_out_ms = 0  # when the last of them were
        self.push_ms: Any = None  # how late pushes were, while `api.topic_series` asks for it
        self.rates: Any = None  # what `engine.topic_views` keeps between two looks
        self.floors = Floors()
        self.answers = KeyedAnswers()
        self.fed: dict[str, FeedMark] = {}
        self.holes: list[Hole] = []  # in order; those below the floors may be missing
        self.totals: Totals | None = None  # of the node, once the topic is registered
        self.counted = Counted()  # this topic's share of the totals
        self.reserved_seq = 0  # seqs up to this need no further entry
        self.unlogged_seq = 0  # no record after this is only in memory
        self.logged_seq = 0  # ephemeral topic: the log may have records up to this
        self.removals = 0  # increases whenever a record may have left
        self.scattered_removals = 0  # increases when others than the oldest may have left
        self.row = RecordRow()  # the records by seq
        self._held_ms: int | None = None  # no record is too old after this while it is set
        self._pending_ms = 0  # the time of the last staged entry
        self._pending_seqs = 0
        self._pending_count = 0
        self._pending_bytes = 0

    @property
    def head_seq(self) -> int:
        """The last seq that was appended."""
        return self.row.head_seq

    @property
    def earliest_seq(self) -> int:
        """The first readable seq; head + 1 when there is none."""
        return self.row.earliest_seq

    @property
    def next_seq(self) -> int:
        """The seq of the next record to be decided; staged records already have theirs."""
        return self.row.head_seq + self._pending_seqs + 1

    @property
    def count(self) -> int:
        """How many records are live."""
        return self.row.count

    @property
    def size_bytes(self) -> int:
        """The bytes of data and meta that are live."""
        return self.row.size_bytes

    def get(self, seq: int) -> RawRecord | None:
        """The live record of a seq."""
        return self.row.get(seq)

    def has(self, seq: int) -> bool:
        """Whether a seq has a live record."""
        return self.row.has(seq)

    def slot(self, seq: int) -> Slot | None:
        """The live record of a seq, with its time."""
        return self.row.slot(seq)

    def live(self, from_seq: int, upto_seq: int) -> Iterator[Slot]:
        """The live records after `from_seq` and up to `upto_seq`."""
        return self.row.live(from_seq, upto_seq)

    def seq_before(self, ts_ms: int) -> int:
        """The cursor for reading the records of a time and later."""
        return self.row.seq_before(ts_ms)

    def at(self, now_ms: int) -> LiveView:
        """The topic as of a time. Changes nothing."""
        row, seq = self.row, self.aged_seq(now_ms)
        if not seq:
            return LiveView(self.floors, row.earliest_seq, row.count, row.size_bytes)
        return LiveView(
            self.floors._replace(expired=seq),
            row.live_after(seq),
            row.count - row.count_between(row.earliest_seq, seq),
            row.size_bytes - row.bytes_through(seq),
        )

    def aged_seq(self, now_ms: int) -> int:
        """The last live seq that is too old at a time; 0 if there is none. Changes nothing."""
        ttl_ms = self.config.ttl_ms
        if not ttl_ms or not self.row.count:
            return 0
        if self._held_ms is not None:
            now_ms = self._held_ms
        return self.row.last_before(max(now_ms, self.now_ms) - ttl_ms) or 0

    @property
    def due_ms(self) -> int | None:
        """When the oldest record is too old, or None."""
        oldest_ms = self.row.oldest_ms if self.config.ttl_ms else None
        return None if oldest_ms is None else oldest_ms + self.config.ttl_ms + 1

    def overdue_bytes(self, now_ms: int) -> int:
        """How much memory the records take that are too old at a time."""
        seq = self.aged_seq(now_ms)
        if not seq:
            return 0
        slots = self.row.count_between(self.row.earliest_seq, seq)
        return self.row.bytes_through(seq) + HOT_SLOT_BYTES * slots

    def pass_time(self, now_ms: int) -> None:
        """Apply: the time is now this or later; records that are too old leave."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
        ttl_ms = self.config.ttl_ms
        if ttl_ms and self.row.count:
            seq = self.row.last_before(self.now_ms - ttl_ms)
            if seq is not None:
                self.floors = self.floors._replace(expired=seq)
                self._drop_through(seq)

    def time_of(self, now_ms: int) -> int:
        """The time of the next entry: no earlier than that of any before it."""
        return max(now_ms, self.now_ms, self._pending_ms)

    # Decisions

    def decide_append(
        self, batch: Batch, now_ms: int, *, key: str | None = None
    ) -> Appended | AppendResult:
        """Decide a checked batch: an entry, the answer of the write it repeats, or a refusal."""
        if self.config.type == "space":
            raise IsASpace(self.name)
        now_ms = self.time_of(now_ms)
        if key is not None:
            answer = self.answers.find(key, now_ms, self.config.idempotency_window_ms)
            if answer is not None:
                first_seq, last_seq, _ = answer
                return AppendResult(first_seq, last_seq, last_seq - first_seq + 1, last_seq, True)
        self.admit(batch.count, batch.size_bytes, now_ms)
        return Appended(self.name, self.next_seq, now_ms, batch, key)

    def stage_append(self, batch: Batch, now_ms: int) -> Appended:
        """Decide a batch without a key and stage it in one call, for simple topics.

        A short cut for the common write: 0.42 of the time of `decide_append` and `stage`.
        """
        if now_ms < self.now_ms:
            now_ms = self.now_ms
        if now_ms < self._pending_ms:
            now_ms = self._pending_ms
        else:
            self._pending_ms = now_ms
        count = batch.count
        entry = Appended(self.name, self.row.head_seq + self._pending_seqs + 1, now_ms, batch)
        self._pending_seqs += count
        self._pending_count += count
        self._pending_bytes += batch.size_bytes
        return entry

    def decide_feed(self, feed: FeedMark, batch: Batch, now_ms: int) -> Appended | None:
        """Decide a router's copies and its mark; None if they are already here."""
        now_ms = self.time_of(now_ms)
        if self.has_passed(feed):
            return None
        if batch.count:
            self.admit(batch.count, batch.size_bytes, now_ms)
        return Appended(self.name, self.next_seq + feed.trimmed, now_ms, batch, feed=feed)

    def has_passed(self, feed: FeedMark) -> bool:
        """Whether a router's mark is already at a feed or beyond it."""
        known = self.fed.get(feed.router)
        return (
            known is not None
            and known.source_epoch == feed.source_epoch
            and known.source_seq >= feed.source_seq
        )

    def admit(self, count: int, size_bytes: int, now_ms: int) -> None:
        """Refuse records that exceed a cap with `discard: reject`."""
        config = self.config
        if config.discard == "old" or not (config.cap_records or config.cap_bytes):
            return
        if _over(config, count, size_bytes):
            raise RecordTooLarge(
                f"{count} records of {size_bytes} bytes do not fit into topic {self.name!r} even "
                "when it is empty: split the write, or raise the topic's cap"
            )
        here = self.at(now_ms)
        live, live_bytes = here.count + self._pending_count, here.size_bytes + self._pending_bytes
        if _over(config, live + count, live_bytes + size_bytes):
            raise TopicFull(
                f"topic {self.name!r} is full: {count} records of {size_bytes} bytes do not fit, "
                f"as it has {live} records of {live_bytes} bytes",
                topic=self.name,
                cap_records=config.cap_records,
                cap_bytes=config.cap_bytes,
                head_seq=self.head_seq,
                earliest_seq=here.earliest_seq,
            )

    def decide_delete(
        self, now_ms: int, *, before_seq: int | None = None, match: Predicate | None = None
    ) -> Deleted:
        """Decide a delete of the current records; later ones survive it."""
        check_selector(before_seq, match)
        return Deleted(self.name, self.time_of(now_ms), self.next_seq, before_seq, match)

    def decide_remove(self, seqs: Sequence[int], now_ms: int) -> Removed:
        """Decide to take out single records; those that are gone by then are passed over."""
        return Removed(self.name, self.time_of(now_ms), tuple(seqs))

    def decide_configure(self, changes: Changes, now_ms: int) -> Configured:
        """Decide a change of configuration. Nothing of the topic may be staged meanwhile."""
        check_change(self.name, self.config, changes)
        return Configured(self.name, self.time_of(now_ms), dict(changes))

    # Changes

    def stage(self, entry: TopicEntry) -> None:
        """Count on an entry that was submitted to the log in later decisions.

        Until a new configuration is applied, nothing more is too old by the old one: otherwise
        readers would miss records that the new one keeps.
        """
        if isinstance(entry, Configured):
            self._held_ms = entry.now_ms
        if not isinstance(entry, Appended):
            return
        batch = entry.batch
        self._pending_ms = max(self._pending_ms, entry.now_ms)
        self._pending_seqs += batch.count if entry.feed is None else entry.seqs
        self._pending_count += batch.count
        self._pending_bytes += batch.size_bytes
        if self.config.durability == "ephemeral":
            self.unlogged_seq = entry.first_seq + batch.count - 1
        if entry.key is not None:
            self.answers.stage(entry.key, _answer(entry))

    def abandon(self) -> None:
        """Return to the applied state: no staged entry became durable."""
        self._held_ms = None
        self._pending_ms = self._pending_seqs = self._pending_count = self._pending_bytes = 0
        self.answers.abandon()

    def apply(self, entry: TopicEntry) -> AppendResult | int:
        """Apply the next durable entry, staged or not: in replay nothing is staged.

        Returns the answer to a write; for any other entry, how many records it removed.
        """
        match entry:
            case Appended():
                return self.apply_append(entry)
            case Deleted():
                return self._apply_deleted(entry)
            case Removed():
                return self._apply_removed(entry)
            case Configured():
                return self._apply_configured(entry)
            case Advanced():
                return self._apply_advanced(entry)
            case Skipped():
                self.row.skip_to(entry.head_seq, self.now_ms)
                return 0

    def remove(self, seq: int) -> bool:
        """Delete one record permanently, as a queue does with a finished job."""
        return self.row.remove(seq)

    def state(self) -> TopicSnapshot:
        """Everything that entries have determined, for a snapshot or a comparison."""
        return TopicSnapshot(
            self.name,
            self.config,
            self.epoch,
            self.now_ms,
            self.last_write_ms,
            self.floors,
            tuple(self.answers.kept().items()),
            tuple(self.fed.values()),
            tuple(self.holes),
            self.head_seq,
            self.reserved_seq,
            tuple(self.live(0, self.head_seq)),
        )

    @classmethod
    def restored(cls, state: TopicSnapshot) -> Topic:
        """The topic of a snapshot."""
        topic = cls(state.name, state.config, epoch=state.epoch, now_ms=state.now_ms)
        topic.last_write_ms = state.last_write_ms
        topic.floors = state.floors
        topic.answers = KeyedAnswers(dict(state.answers))
        topic.fed = {feed.router: feed for feed in state.fed}
        topic.holes = list(state.holes)
        topic.reserved_seq = state.reserved_seq
        topic.row = RecordRow.restored(state.head_seq, state.live)
        return topic

    def apply_append(self, entry: Appended) -> AppendResult:
        """As `apply`, for the most common kind of entry."""
        batch, row, config = entry.batch, self.row, self.config
        count = batch.count
        if self._pending_seqs:
            self._pending_seqs -= count if entry.feed is None else entry.seqs
            self._pending_count -= count
            self._pending_bytes -= batch.size_bytes
        if entry.feed is not None or entry.first_seq != row.head_seq + 1:
            if not self._join(entry):
                return AppendResult(0, 0, 0, self.head_seq, deduped=True)
            row = self.row
        if config.ttl_ms:
            self.pass_time(entry.now_ms)
        elif entry.now_ms > self.now_ms:
            self.now_ms = entry.now_ms
        row.extend(batch, entry.now_ms)
        if count:
            self.last_write_ms = entry.now_ms
        if entry.key is not None:
            self.answers.apply(entry.key, _answer(entry), config.idempotency_window_ms)
        if config.cap_records or config.cap_bytes:
            self._enforce_caps()
        head_seq = row.head_seq
        return AppendResult(entry.first_seq, head_seq, count, head_seq)

    def _join(self, entry: Appended) -> bool:
        """Make the next seq that of a non-consecutive entry. Returns False if it was passed.

        Records that were only in memory are before the hole that a feed leaves.
        """
        feed = entry.feed
        if feed is not None and self.has_passed(feed):
            return False
        first_seq = entry.first_seq - (feed.trimmed if feed is not None else 0)
        if self.head_seq + 1 < first_seq <= self.reserved_seq + 1:
            self.lose_unlogged(first_seq - 1)
        if first_seq != self.head_seq + 1:
            raise Corrupt(
                f"topic {self.name!r}: expected seq {self.head_seq + 1} next, found {first_seq}"
            )
        if feed is not None:
            self.fed[feed.router] = feed
            if feed.trimmed:
                self.leave_hole(feed.trimmed, entry.now_ms)
        return True

    def leave_hole(self, seqs: int, now_ms: int) -> None:
        """Skip seqs; cursors that reach them get a tombstone."""
        first_seq, last_seq = self.head_seq + 1, self.head_seq + seqs
        if self.count:
            self.row.skip_to(last_seq, now_ms)
        else:
            self.row = RecordRow(last_seq)
            self.removals += 1
        floor = self.floors.involuntary
        kept = [hole for hole in self.holes if hole.last_seq > floor][1 - HOLES_MAX :]
        if kept and kept[-1].last_seq + 1 == first_seq:
            first_seq = kept.pop().first_seq
        self.holes = [*kept, Hole(first_seq, last_seq)]

    def hole_after(self, seq: int) -> Hole | None:
        """The next hole that ends after a seq."""
        place = bisect_right(self.holes, seq, key=lambda hole: hole.last_seq)
        return self.holes[place] if place < len(self.holes) else None

    def _apply_deleted(self, entry: Deleted) -> int:
        self.pass_time(entry.now_ms)
        before = self.count
        bound_seq = min(entry.bound_seq, self.head_seq + 1)
        if entry.before_seq is not None:
            bound_seq = min(bound_seq, entry.before_seq)
        if entry.match is not None:
            self.row.remove_matching(entry.match.matches, bound_seq)
            self.scattered_removals += 1
        elif bound_seq - 1 > self.floors.deleted:
            self.floors = self.floors._replace(deleted=bound_seq - 1)
            self.row.drop_through(bound_seq - 1)
        self.removals += 1
        return before - self.count

    def _apply_removed(self, entry: Removed) -> int:
        self.pass_time(entry.now_ms)
        removed = sum(self.row.remove(seq) for seq in entry.seqs)
        self.removals += 1
        self.scattered_removals += 1
        return removed

    def _apply_configured(self, entry: Configured) -> int:
        self._held_ms = None
        logged_seq = self.logged_seq if self.config.durability == "ephemeral" else self.head_seq
        self.lose_unlogged()  # in replay: this many seqs were used before, under the old caps
        self.pass_time(entry.now_ms)
        before = self.count
        self.config = self.config.merged(entry.changes)
        self.is_simple = _is_simple(self.config)
        self.logged_seq = logged_seq
        self.pass_time(entry.now_ms)
        self._enforce_caps()
        if self.config.cap_bytes and self.has_unlogged:
            self.is_simple = False  # the log must record what a write evicts
        return before - self.count

    def _apply_advanced(self, entry: Advanced) -> int:
        self.reserved_seq = entry.head_seq
        before = self.count
        if entry.evicted_seq > self.floors.evicted:
            self._evict_through(entry.evicted_seq)
        return before - self.count

    @property
    def has_unlogged(self) -> bool:
        """Whether a live record may be only in memory."""
        return self.earliest_seq <= self.unlogged_seq

    def shed_seq(self, config: TopicConfig, more_bytes: int = 0) -> int:
        """The last seq to evict for room, where replay could not know it; else 0.

        Replay does not have the records that were only in memory. For a topic that logs no records,
        only older logged ones count, which are evicted in replay too.
        """
        if config.discard == "reject" or not config.cap_bytes:
            return 0
        is_logging = self.config.durability != "ephemeral"
        upto_seq = self.head_seq if is_logging else self.logged_seq
        if self.earliest_seq > (self.unlogged_seq if is_logging else upto_seq):
            return 0
        room = config.cap_bytes - self._pending_bytes - more_bytes
        shed_seq = self.row.seq_to_shed(room) if self.size_bytes > room else None
        return 0 if shed_seq is None else min(shed_seq, upto_seq)

    def begin(self, skipped_seqs: int) -> None:
        """Apply: skip the seqs that no record in the log has, though some may have been shown."""
        self.lose_unlogged()
        if skipped_seqs and self.config.durability in ("memory", "disk"):
            self.row.skip_to(self.head_seq + skipped_seqs, self.now_ms)

    def lose_unlogged(self, head_seq: int | None = None) -> None:
        """Continue after seqs that were reserved for records only in memory.

        A cursor is told of them, unless records from before the topic was ephemeral are kept: a
        tombstone would hide those.
        """
        head_seq = self.reserved_seq if head_seq is None else head_seq
        self.logged_seq = self.head_seq  # everything here is from the log
        if head_seq > self.head_seq and self.count:
            self.row.skip_to(head_seq, self.now_ms)
            self._enforce_caps()  # records evicted by the lost ones must not come back
        elif head_seq > self.head_seq:
            self.row = RecordRow(head_seq)
            self.floors = self.floors._replace(evicted=head_seq, lost=head_seq)
            self.removals += 1
            self._recount()

    def _enforce_caps(self) -> None:
        """Evict what exceeds the caps; a topic that rejects refuses writes instead."""
        config = self.config
        if config.discard == "reject":
            return
        floor = self.head_seq - config.cap_records if config.cap_records else 0
        if floor > self.floors.evicted:
            self._evict_through(floor)
        if config.cap_bytes and self.size_bytes > config.cap_bytes:
            seq = self.row.seq_to_shed(config.cap_bytes)
            if seq is not None and seq > self.floors.evicted:
                self._evict_through(seq)

    def _evict_through(self, seq: int) -> None:
        self.floors = self.floors._replace(evicted=seq)
        self._drop_through(seq)

    def _drop_through(self, seq: int) -> None:
        self.row.drop_through(seq)
        self.removals += 1
        self._recount()

    def _recount(self) -> None:
        if self.totals is not None:
            self.totals.recount(self)


def check_selector(before_seq: int | None, match: Predicate | None) -> None:
    """Refuse a delete without a selector."""
    if before_seq is None and match is None:
        raise InvalidRequest("say which records to delete: by before_seq, match or both")


def _is_simple(config: TopicConfig) -> bool:
    """Whether a write without a key can neither be refused nor make another record expire."""
    refuses = config.discard == "reject" and bool(config.cap_records or config.cap_bytes)
    is_plain = config.type != "space" and config.durability != "ephemeral"
    return is_plain and not (refuses or config.ttl_ms)


def _over(config: TopicConfig, count: int, size_bytes: int) -> bool:
    """Whether this much exceeds a cap."""
    over_count = 0 < config.cap_records < count
    return over_count or 0 < config.cap_bytes < size_bytes


def _answer(entry: Appended) -> KeyedAnswer:
    return KeyedAnswer(entry.first_seq, entry.first_seq + entry.batch.count - 1, entry.now_ms)
