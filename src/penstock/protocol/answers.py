"""Every answer of the protocol as a struct. Fields that a newer server adds are ignored.

A record's `data` and `meta` are decoded on access: a program that looks only at tags and seqs, or
passes the text on, does not pay for decoding the payloads, and one that knows their type decodes to
it directly, without dicts (`data_as`). The text is `data_json`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from penstock.protocol.commits import CommitWrite
from penstock.protocol.config import TopicConfig

T = TypeVar("T")

_ANY: Final = msgspec.json.Decoder()
_NULL: Final = b"null"


class TopicPut(Struct, frozen=True, kw_only=True):
    """A topic after a put; `created` if it did not exist before."""

    topic: str
    created: bool
    config: TopicConfig
    performance: dict[str, float] = {}


class QueueCounts(Struct, frozen=True, kw_only=True):
    """The jobs of a queue: ready, claimed, and given up."""

    ready: int
    in_flight: int
    dead_lettered: int


class TopicFlow(Struct, frozen=True, kw_only=True):
    """What flows through a topic, and what its push waits for.

    Rates are records a second, an exponentially weighted mean over 5 s: written, and given to
    readers, watchers and workers. `ready` and `in_flight` count the jobs of a queue.
    """

    type: str = "log"
    durability: str = "disk"
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    watchers: int = 0
    watchers_behind: int = 0
    band: str = ""
    reason: str = ""
    ready: int | None = None
    in_flight: int | None = None


class TopicState(TopicFlow, frozen=True, kw_only=True):
    """A topic: its contents and configuration. `queue` is None on a log."""

    topic: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    size_bytes: int = field(name="bytes")
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    queue: QueueCounts | None = None
    epoch: int | None = None
    performance: dict[str, float] = {}


class TopicRow(TopicFlow, frozen=True, kw_only=True):
    """A topic in a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    size_bytes: int = field(name="bytes")
    durable: bool
    effective_priority: int


class TopicPage(Struct, frozen=True, kw_only=True):
    """One page of a list of topics; `next_cursor` is None on the last."""

    topics: list[TopicRow]
    next_cursor: str | None = None
    performance: dict[str, float] = {}


class TopicDeletion(Struct, frozen=True, kw_only=True):
    """Whether the topic existed, and the routers that were deleted with it."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: dict[str, float] = {}


class TopicWritten(Struct, frozen=True, kw_only=True):
    """Where the records for one topic are. `deduped`: an earlier try had written them."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool


class Written(TopicWritten, frozen=True, kw_only=True):
    """Where the records of a write are."""

    seqs: list[int] | None = None
    performance: dict[str, float] = {}


class Payload:
    """The data and meta of a record: decoded on access, or as they were written."""

    __slots__ = ()
    raw_data: Raw | UnsetType
    raw_meta: Raw | UnsetType

    @property
    def data(self) -> Any:
        """The payload, decoded on each access; None if it was not asked for."""
        return _ANY.decode(_NULL if self.raw_data is UNSET else self.raw_data)

    def data_as(self, kind: type[T]) -> T:
        """The payload as a type that msgspec knows: a Struct, a dataclass, `list[int]` …"""
        return cast(
            T,
            _decoder(cast(Hashable, kind)).decode(
                _NULL if self.raw_data is UNSET else self.raw_data
            ),
        )

    @property
    def meta(self) -> Any:
        """The meta object, or None."""
        return _ANY.decode(_NULL if self.raw_meta is UNSET else self.raw_meta)

    @property
    def data_json(self) -> bytes:
        """The payload, byte for byte as it was written; `null` if it was not asked for."""
        return _NULL if self.raw_data is UNSET else bytes(self.raw_data)

    @property
    def meta_json(self) -> bytes:
        """The meta object, byte for byte as it was written; `null` if there is none."""
        return _NULL if self.raw_meta is UNSET else bytes(self.raw_meta)


class StoredRecord(Payload, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record as a reader gets it. `tag` is present only if it was requested."""

    seq: int = field(name="$seq")
    ts_ms: int = field(name="$ts")
    node: str | None = field(name="$node", default=None)
    tag: str | None = field(name="$tag", default=None)
    raw_data: Raw | UnsetType = field(name="data", default=UNSET)
    raw_meta: Raw | UnsetType = field(name="meta", default=UNSET)

    def __repr__(self) -> str:
        tag = f", tag={self.tag!r}" if self.tag is not None else ""
        node = f", node={self.node!r}" if self.node is not None else ""
        return f"StoredRecord(seq={self.seq}, ts_ms={self.ts_ms}{tag}{node}, data={self.data!r})"


class Gap(Struct, frozen=True, kw_only=True):
    """Seqs that a reader can no longer get, and why."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Diff(Struct, frozen=True, kw_only=True):
    """One page of a topic. Continue from `next_from_seq`; `tombstone` reports lost records.

    `behind`: this node of a cluster does not have what the cursor has seen elsewhere yet.
    """

    topic: str
    records: list[StoredRecord]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Gap | None = None
    lag: int = 0
    epoch: int | None = None
    behind: bool | None = None
    performance: dict[str, float] = {}


class RecordDeletion(Struct, frozen=True, kw_only=True):
    """How many records a delete removed, and what is left."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    size_bytes: int = field(name="bytes")
    performance: dict[str, float] = {}


class RouterPut(Struct, frozen=True, kw_only=True):
    """A router after a put; `created` if it did not exist before."""

    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: str
    performance: dict[str, float] = {}


class RouterState(Struct, frozen=True, kw_only=True):
    """A router and how many records it has forwarded."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: list[str] | None
    allow_cycle: bool
    guarantee: str
    forwarded_total: int
    performance: dict[str, float] = {}


class RouterRow(Struct, frozen=True, kw_only=True):
    """A router in a list."""

    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int


class RouterPage(Struct, frozen=True, kw_only=True):
    """One page of a list of routers; `next_cursor` is None on the last."""

    routers: list[RouterRow]
    next_cursor: str | None = None
    performance: dict[str, float] = {}


class RouterDeletion(Struct, frozen=True, kw_only=True):
    """Whether the router existed."""

    router: str
    deleted: bool
    performance: dict[str, float] = {}


class ClaimedJob(Payload, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job leased to this node until `deadline_ms`; `lease_id` proves it at settlement."""

    seq: int = field(name="$seq")
    lease_id: str
    deadline_ms: int = field(name="deadline")
    ts_ms: int = field(name="$ts")
    deliveries: int
    tag: str | None = field(name="$tag", default=None)
    raw_data: Raw | UnsetType = field(name="data", default=UNSET)
    raw_meta: Raw | UnsetType = field(name="meta", default=UNSET)


class Claims(Struct, frozen=True, kw_only=True):
    """The jobs that a claim got, and how many more are ready."""

    topic: str
    claimed: list[ClaimedJob]
    count: int
    ready: int
    performance: dict[str, float] = {}


class Acked(Struct, frozen=True, kw_only=True):
    """How many jobs are done; `skipped` were not held by this lease (any more)."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: dict[str, float] = {}


class Nacked(Struct, frozen=True, kw_only=True):
    """How many jobs were returned; `skipped` were not held by this lease (any more)."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: dict[str, float] = {}


class Extended(Struct, frozen=True, kw_only=True):
    """The new deadlines by seq; `skipped` were not held by this lease (any more)."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]
    performance: dict[str, float] = {}


class Health(Struct, frozen=True, kw_only=True):
    """A server that answers."""

    status: str
    version: str
    uptime_ms: float


class FailedPartition(Struct, frozen=True, kw_only=True):
    """A partition that is out of service: the reason, the damaged file and the position in it."""

    partition: int
    reason: str
    file: str | None = None
    offset: int | None = None

    def text(self) -> str:
        """What is wrong with it, in one clause.

        >>> FailedPartition(partition=3, reason="damaged", file="1.segment", offset=512).text()
        'partition 3 is out of service: 1.segment is damaged at offset 512'
        """
        if self.file is None:
            return f"partition {self.partition} is out of service: {self.reason}"
        place = "" if self.offset is None else f" at offset {self.offset}"
        return f"partition {self.partition} is out of service: {self.file} is damaged{place}"


class Ready(Struct, frozen=True, kw_only=True):
    """A server that has replayed its log and takes requests.

    `status` is "degraded" where partitions are damaged: all others are served.
    """

    status: str
    wal_replay_complete: bool
    topics: int
    failed_partitions: tuple[FailedPartition, ...] | None = None


@lru_cache(maxsize=256)
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cast(Any, kind))


class ErrorFacts(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error: a stable code, a text for people, and details for programs.

    `outcome` is "unknown" if the request may have taken effect. Without it, nothing was changed.
    """

    code: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None
    outcome: str | None = None


class ErrorAnswer(Struct, frozen=True):
    """The envelope of every error."""

    error: ErrorFacts


class BackupMade(Struct, frozen=True, kw_only=True):
    """A copy of everything, on the server's machine."""

    directory: str
    files: int
    size_bytes: int = field(name="bytes")
    performance: dict[str, float] = {}


class WrittenMany(Struct, frozen=True, kw_only=True):
    """Where the records of an atomic write are, topic by topic."""

    writes: list[TopicWritten]
    performance: dict[str, float] = {}


class WatchSession(Struct, frozen=True, kw_only=True):
    """A watch session, and where each of its topics begins."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, dict[str, int]]
    performance: dict[str, float] = {}


class CommitAccepted(Struct, frozen=True, kw_only=True):
    """A commit took effect at a seq of its space; `replayed` if that was at an earlier try."""

    seq: int
    ts: int | None = None
    replayed: bool = False
    epoch: int | None = None
    performance: dict[str, float] = {}


class SpaceRow(Struct, frozen=True, kw_only=True):
    """A space in a list: how many entities it has, its last seq, and when that was committed.

    `entities` does not count the deleted ones. `last_commit` is None before the first commit.
    """

    space: str
    entities: int
    seq: int
    last_commit: int | None = None


class SpacePage(Struct, frozen=True, kw_only=True):
    """A page of spaces by name; `count` is that of all pages."""

    spaces: list[SpaceRow]
    count: int
    next_cursor: str | None = None
    performance: dict[str, float] = {}


class EntityRow(Struct, frozen=True, kw_only=True):
    """An entity in a list, last written at `seq`."""

    entity: str
    seq: int
    doc: Any


class EntityState(Struct, frozen=True, kw_only=True):
    """An entity as of `head`, last written at `seq`."""

    entity: str
    seq: int
    doc: Any
    head: int = 0
    performance: dict[str, float] = {}


class EntityPage(Struct, frozen=True, kw_only=True):
    """A page of entities, all as of `head`; `next` is None on the last."""

    entities: list[EntityRow]
    head: int
    next: str | None = None
    performance: dict[str, float] = {}

    def states(self) -> Iterator[EntityState]:
        """The entities, each with the seq of the page."""
        for each in self.entities:
            yield EntityState(entity=each.entity, seq=each.seq, doc=each.doc, head=self.head)


class EntityCommit(Struct, frozen=True, kw_only=True):
    """A commit that wrote an entity, and its writes to that entity."""

    seq: int
    ts: int
    session: str
    local_seq: int
    writes: list[CommitWrite]
    event_id: str | None = None


class EntityHistory(Struct, frozen=True, kw_only=True):
    """Commits that wrote an entity, oldest first. Not `complete` if older ones were removed.

    With `last`, `base` is the document before them, null if there was none; it is missing if the
    commits that made it were removed.
    """

    entity: str
    commits: list[EntityCommit]
    head: int
    complete: bool
    next: int | None = None
    base: Any = UNSET
    performance: dict[str, float] = {}


class SchedulerView(Struct, frozen=True, kw_only=True):
    """What the scheduler is about to do, and why; further fields are for people."""

    performance: dict[str, float] = {}
