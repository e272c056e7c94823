"""What the log holds of topics, spaces, queues and routers: decided changes, nothing to choose.

The letters are what stands in files: a new kind of entry takes a new one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.protocol.config import TopicConfig
from penstock.topics.core.batch import Batch
from penstock.topics.core.leases import Lease
from penstock.topics.core.predicate import Predicate


class Created(Struct, frozen=True, array_like=True, tag="c"):
    """Entry: a topic began, empty. `epoch` tells it from others that had its name."""

    topic: str
    now_ms: int
    epoch: int
    config: TopicConfig


class Dropped(Struct, frozen=True, array_like=True, tag="d"):
    """Entry: a topic is gone with all it had."""

    topic: str


class Feed(NamedTuple):
    """How far a router has come in its source, carried by the entry that appends its copies.

    `trimmed` counts seqs that left the source before the router came to them. `unlogged` counts
    copies that memory alone has, where the log has an entry without them.
    """

    router: str
    source_epoch: int
    source_seq: int
    trimmed: int = 0
    unlogged: int = 0


class Appended(Struct, frozen=True, array_like=True, tag="a"):
    """Entry: records were appended, all of them or none."""

    topic: str
    first_seq: int
    now_ms: int
    batch: Batch
    key: str | None = None
    feed: Feed | None = None

    @property
    def seqs(self) -> int:
        """How many seqs it takes: its records, and the hole that a feed leaves."""
        return self.batch.count + (self.feed.trimmed if self.feed else 0)


class Deleted(Struct, frozen=True, array_like=True, tag="x"):
    """Entry: records before `bound_seq` were deleted, by prefix, by tag, or by both at once."""

    topic: str
    now_ms: int
    bound_seq: int
    before_seq: int | None
    match: Predicate | None


class Configured(Struct, frozen=True, array_like=True, tag="p"):
    """Entry: named keys of the configuration changed."""

    topic: str
    now_ms: int
    changes: dict[str, Any]


class Advanced(Struct, frozen=True, array_like=True, tag="h"):
    """Entry: seqs up to `head_seq` are or may be taken by records that the log has not.

    The last one counts, also if it is lower: a clean end gives back what was only set aside.
    Records up to `evicted_seq` have left to make room for some that the log has not.
    """

    topic: str
    head_seq: int
    evicted_seq: int = 0


class Skipped(Struct, frozen=True, array_like=True, tag="s"):
    """Entry: seqs up to `head_seq` may have been given out before the machine crashed."""

    topic: str
    head_seq: int


TopicEntry = Appended | Deleted | Configured | Advanced | Skipped


class Claimed(Struct, frozen=True, array_like=True, tag="l"):
    """Entry: jobs were leased, and those in `dead`, delivered too often, became dead letters.

    The dead letters must be in the log before this is, or with it. If their topic refuses them,
    `without_dead_letters` is what to apply: those jobs wait on.
    """

    topic: str
    now_ms: int
    leases: tuple[Lease, ...]
    dead: tuple[int, ...] = ()

    def without_dead_letters(self) -> Claimed:
        """The same claim, with the worn jobs left in the queue."""
        return replace(self, dead=())


class Acked(Struct, frozen=True, array_like=True, tag="k"):
    """Entry: jobs were finished and are deleted."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]


class Nacked(Struct, frozen=True, array_like=True, tag="n"):
    """Entry: jobs were given back, to be had again at a time.

    `unseen`: nobody ever got them, and so their claim counts as no delivery.
    """

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    due_ms: int
    unseen: bool = False


class Extended(Struct, frozen=True, array_like=True, tag="e"):
    """Entry: leases end at another time."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    deadline_ms: int


QueueEntry = Claimed | Acked | Nacked | Extended


class Committed(Struct, frozen=True, array_like=True, tag="m"):
    """Entry: a commit took effect in a space. Its one record tells what it wrote.

    `digest` is the hash of all that was asked, by which it is known when it is sent again.
    """

    topic: str
    seq: int
    now_ms: int
    batch: Batch
    digest: int
