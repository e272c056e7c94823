"""What the log holds of a topic: decided changes, to be applied without a choice."""

from __future__ import annotations

from typing import NamedTuple

from penstock.topics.config import Changes
from penstock.topics.model import Record
from penstock.topics.predicate import Predicate


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
