"""What the log holds of topics and queues: decided changes, to be applied without a choice."""

from __future__ import annotations

from typing import NamedTuple

from penstock.topics.config import Changes, TopicConfig
from penstock.topics.leases import Lease
from penstock.topics.model import Record
from penstock.topics.predicate import Predicate


class Created(NamedTuple):
    """Entry: a topic began, empty. `epoch` tells it from others that had its name."""

    topic: str
    now_ms: int
    epoch: int
    config: TopicConfig


class Dropped(NamedTuple):
    """Entry: a topic is gone with all it had, and with it the routers at its ends."""

    topic: str
    routers: tuple[str, ...]


class Feed(NamedTuple):
    """How far a router has come in its source, carried by the entry that appends its copies.

    `trimmed` counts seqs that left the source before the router came to them.
    """

    router: str
    source_epoch: int
    source_seq: int
    trimmed: int = 0


class Appended(NamedTuple):
    """Entry: records were appended, all of them or none."""

    topic: str
    first_seq: int
    now_ms: int
    records: tuple[Record, ...]
    size_bytes: int
    key: str | None = None
    feed: Feed | None = None

    @property
    def seqs(self) -> int:
        """How many seqs it takes: its records, and the hole that a feed leaves."""
        return len(self.records) + (self.feed.trimmed if self.feed else 0)


class Deleted(NamedTuple):
    """Entry: records before `bound_seq` were deleted, by prefix, by tag, or by both at once."""

    topic: str
    now_ms: int
    bound_seq: int
    before_seq: int | None
    match: Predicate | None


class Configured(NamedTuple):
    """Entry: named keys of the configuration changed."""

    topic: str
    now_ms: int
    changes: Changes


class Advanced(NamedTuple):
    """Entry: seqs up to `head_seq` were assigned to records that memory alone kept."""

    topic: str
    head_seq: int


TopicEntry = Appended | Deleted | Configured | Advanced


class Claimed(NamedTuple):
    """Entry: jobs were leased; those that had been delivered too often were buried.

    The dead letters must be in the same log entry as this; `without_dead_letters` is what to
    apply when their topic refuses them: those jobs wait on.
    """

    topic: str
    now_ms: int
    leases: tuple[Lease, ...]
    buried: tuple[int, ...] = ()
    dead_letters: tuple[Record, ...] = ()

    def without_dead_letters(self) -> Claimed:
        """The same claim with nobody buried."""
        return self._replace(buried=(), dead_letters=())


class Acked(NamedTuple):
    """Entry: jobs were finished and are deleted."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]


class Nacked(NamedTuple):
    """Entry: jobs were given back, to be had again at a time."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    due_ms: int


class Extended(NamedTuple):
    """Entry: leases end at another time."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    deadline_ms: int


QueueEntry = Claimed | Acked | Nacked | Extended
