"""The log entries of topics, spaces, queues and routers: changes that are already decided.

The letters are stored in files: a new kind of entry needs a new letter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.protocol.config import TopicConfig
from penstock.raft.members import Members
from penstock.topics.core.batch import Batch
from penstock.topics.core.leases import JobLease
from penstock.topics.core.predicate import Predicate


class Created(Struct, frozen=True, array_like=True, tag="c"):
    """Entry: a topic was created, empty.

    `epoch` distinguishes it from earlier topics of that name.
    """

    topic: str
    now_ms: int
    epoch: int
    config: TopicConfig


class Dropped(Struct, frozen=True, array_like=True, tag="d"):
    """Entry: a topic was removed with everything in it."""

    topic: str


class FeedMark(NamedTuple):
    """A router's position in its source, carried by the entry that appends its copies.

    `trimmed` counts seqs that were evicted from the source before the router reached them.
    `unlogged` counts copies kept only in memory, where the logged entry omits them.
    """

    router: str
    source_epoch: int
    source_seq: int
    trimmed: int = 0
    unlogged: int = 0


class Appended(Struct, frozen=True, array_like=True, tag="a"):
    """Entry: records were appended, all or none."""

    topic: str
    first_seq: int
    now_ms: int
    batch: Batch
    key: str | None = None
    feed: FeedMark | None = None

    @property
    def seqs(self) -> int:
        """How many seqs it takes: its records, and the hole left by a feed."""
        return self.batch.count + (self.feed.trimmed if self.feed else 0)


class Deleted(Struct, frozen=True, array_like=True, tag="x"):
    """Entry: records before `bound_seq` were deleted, by prefix, by tag, or by both at once."""

    topic: str
    now_ms: int
    bound_seq: int
    before_seq: int | None
    match: Predicate | None


class Removed(Struct, frozen=True, array_like=True, tag="o"):
    """Entry: single records were taken out, such as dead letters that became jobs again."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]


class Configured(Struct, frozen=True, array_like=True, tag="p"):
    """Entry: the named configuration keys changed."""

    topic: str
    now_ms: int
    changes: dict[str, Any]


class Advanced(Struct, frozen=True, array_like=True, tag="h"):
    """Entry: seqs up to `head_seq` are or may be used by records that are not in the log.

    The last such entry counts, even if it is lower: a clean shutdown returns unused seqs. Records
    up to `evicted_seq` were evicted to make room for records that are not in the log.
    """

    topic: str
    head_seq: int
    evicted_seq: int = 0


class Skipped(Struct, frozen=True, array_like=True, tag="s"):
    """Entry: seqs up to `head_seq` may have been assigned before the machine crashed."""

    topic: str
    head_seq: int


TopicEntry = Appended | Deleted | Removed | Configured | Advanced | Skipped


class JobsClaimed(Struct, frozen=True, array_like=True, tag="l"):
    """Entry: jobs were leased; jobs in `dead`, delivered too often, became dead letters.

    The dead letters must be logged before this entry or with it. If their topic refuses them, apply
    `without_dead_letters` instead: those jobs keep waiting.
    """

    topic: str
    now_ms: int
    leases: tuple[JobLease, ...]
    dead: tuple[int, ...] = ()

    def without_dead_letters(self) -> JobsClaimed:
        """The same claim, with the jobs in `dead` left in the queue."""
        return replace(self, dead=())


class JobsAcked(Struct, frozen=True, array_like=True, tag="k"):
    """Entry: jobs were finished and are deleted."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]


class JobsNacked(Struct, frozen=True, array_like=True, tag="n"):
    """Entry: jobs were returned, available again from a given time.

    `unseen`: they never reached a client, so their claim does not count as a delivery. `reason` is
    why the client did not finish them; empty if it did not say.
    """

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    due_ms: int
    unseen: bool = False
    reason: str = ""


class JobsExtended(Struct, frozen=True, array_like=True, tag="e"):
    """Entry: leases got a new deadline."""

    topic: str
    now_ms: int
    seqs: tuple[int, ...]
    deadline_ms: int


QueueEntry = JobsClaimed | JobsAcked | JobsNacked | JobsExtended


class Passed(Struct, frozen=True, array_like=True, tag="t"):
    """Entry: the time is now this or later; records that are too old leave, leases end.

    Where topics are written to, the times of those entries do the same.
    """

    now_ms: int


class Began(Struct, frozen=True, array_like=True, tag="b"):
    """Entry: a member began to lead the partition. The first entry of each start.

    What only its predecessor's memory held is over: leases that need not survive are ended, and
    seqs set aside for records that were never logged are skipped. After a crash of the machine
    `skipped_seqs` more are skipped where records may have been assigned seqs and lost.
    """

    term: int
    member: int
    now_ms: int
    skipped_seqs: int = 0


class MembersChanged(Struct, frozen=True, array_like=True, tag="v"):
    """Entry: the members of the partition's group changed. See `raft.members` for its bytes."""

    members: Members


class SpaceCommitted(Struct, frozen=True, array_like=True, tag="m"):
    """Entry: a commit took effect in a space. Its one record contains what it wrote.

    `digest` is the hash of the whole request, used to recognise a retry.
    """

    topic: str
    seq: int
    now_ms: int
    batch: Batch
    digest: int
