"""The server's metrics, each declared once: a line here is a metric in text, JSON and docs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from penstock.log.store import StoreStatus
from penstock.protocol.config import DURABILITIES
from penstock.protocol.metrics import Metrics
from penstock.raft.heartbeats import LATE_BOUNDS_MS
from penstock.server.api.call import Context
from penstock.topics.core.topic import Topic
from penstock.topics.core.totals import Overdue
from penstock.topics.engine.views import storage_view

TOPICS_SHOWN_MAX: Final = 1_000
FSYNC_BOUNDS_US: Final = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)


class TopicNumbers(NamedTuple):
    """The numbers of one topic; queue numbers are None on a log."""

    topic: str
    head_seq: int
    earliest_seq: int
    records_live: int
    bytes_live: int
    queue_ready: int | None = None
    queue_in_flight: int | None = None


@dataclass
class Scrape:
    """The server at the moment of a scrape. No number requires a walk over the topics.

    `overdue` is what readers no longer see, though it has not left the totals yet.
    `topics` holds the topics shown individually, if any were requested; `is_truncated`: more were
    requested than are shown.
    """

    context: Context
    overdue: Overdue = field(default_factory=Overdue)
    topics: Sequence[TopicNumbers] = ()
    is_truncated: bool = False

    @cached_property
    def engine(self) -> Any:
        """The engine that holds the topics."""
        return self.context.engine

    @cached_property
    def totals(self) -> Any:
        """Sums over all topics, maintained incrementally."""
        return self.engine.registry.totals

    @cached_property
    def log(self) -> Any:
        """The log's counters since the start."""
        return self.engine.journal.counters

    @cached_property
    def store(self) -> StoreStatus:
        """The state of the log's store."""
        status: StoreStatus = self.engine.journal.store.status()
        return status

    @cached_property
    def storage(self) -> dict[str, Any]:
        """Records held in memory, and damage found since the start."""
        return storage_view(self.engine)

    @cached_property
    def cluster(self) -> dict[str, Any] | None:
        """The cluster as this node sees it; None on a node alone."""
        cluster = self.context.cluster
        return cluster.view() if cluster is not None else None

    @property
    def groups(self) -> list[dict[str, Any]] | None:
        """The group of each partition; None on a node alone."""
        return None if self.cluster is None else self.cluster["partitions"]

    def of_groups(self, number: str) -> dict[str, int] | None:
        """A number of each partition's group."""
        if self.groups is None:
            return None
        return {str(each["partition"]): int(each[number]) for each in self.groups}

    def leads(self) -> dict[str, int] | None:
        """Of which partitions this node is the leader."""
        if self.cluster is None:
            return None
        own, groups = self.cluster["member"], self.cluster["partitions"]
        return {str(each["partition"]): int(each["leader"] == own) for each in groups}

    def lags(self) -> dict[tuple[str, str], int] | None:
        """How many entries each follower is behind in the groups that this node leads."""
        if self.groups is None:
            return None
        return {
            (str(each["partition"]), follower["name"]): follower["lag"]
            for each in self.groups
            for follower in each["followers"]
        }

    def heartbeats(self) -> tuple[tuple[int, ...], float] | None:
        """How late heartbeats were heard; None on a node alone."""
        if self.context.cluster is None:
            return None
        found = self.engine.journal.heartbeats
        return tuple(found.counts), round(found.late_ms_total, 3)

    def failed(self) -> dict[tuple[str, str], int]:
        """Where each partition that is out of service is damaged, by partition and file."""
        return {
            (str(each.partition), each.file or ""): -1 if each.offset is None else each.offset
            for each in self.context.failed_partitions()
        }

    def of_cluster(self, part: str, number: str) -> int | None:
        """A number that the node counts for all groups."""
        return None if self.cluster is None else int(self.cluster[part][number])

    def of_topics(self, name: str) -> dict[str, float] | None:
        """One number of the topics shown individually; None if there are none."""
        if not self.topics:
            return None
        found = {topic.topic: getattr(topic, name) for topic in self.topics}
        return {topic: value for topic, value in found.items() if value is not None}


METRICS: Final[Metrics[Scrape]] = Metrics()
"""Every metric of the server."""

_gauge, _counter = METRICS.gauge, METRICS.counter

_gauge("topics_topics", "Topics.", lambda s: s.totals.count, key="topics")
METRICS.gauges(
    "topics_topics_by_class",
    "Topics of each durability class.",
    lambda s: {name: s.totals.by_class.get(name, 0) for name in DURABILITIES},
    label="class",
    key="topics",
)
_gauge("topics_routers", "Routers.", lambda s: len(s.engine.registry.routers), key="routers")
_gauge(
    "topics_records_live",
    "Live records.",
    lambda s: s.totals.records - s.overdue.records,
    key="records_live",
)
_gauge(
    "topics_bytes_live",
    "Live bytes of data and meta.",
    lambda s: s.totals.size_bytes - s.overdue.size_bytes,
    key="bytes_live",
)

for _name, _text in (
    ("head_seq", "Last seq of a topic."),
    ("earliest_seq", "First seq of a topic that can be read."),
    ("records_live", "Live records of a topic."),
    ("bytes_live", "Live bytes of data and meta of a topic."),
    ("queue_ready", "Jobs of a queue that can be claimed."),
    ("queue_in_flight", "Jobs of a queue that are leased."),
):
    METRICS.gauges(
        f"topics_topic_{_name}", _text, partial(Scrape.of_topics, name=_name), label="topic"
    )
_gauge(
    "topics_topic_metrics_truncated",
    "1 if more topics were asked for than are shown one by one.",
    lambda s: s.is_truncated,
)

_gauge(
    "topics_queue_topics",
    "Topics that are queues.",
    lambda s: s.totals.by_type["queue"],
    key="queue_topics",
)
_gauge(
    "topics_queue_leases_in_flight",
    "Leased jobs.",
    lambda s: s.totals.leases - s.overdue.leases,
    key="queue_leases_in_flight",
)
_gauge(
    "topics_sse_connections",
    "Open push streams.",
    lambda s: s.context.caps.streams,
    key="sse_connections",
)
_gauge(
    "topics_watch_sessions",
    "Watch sessions.",
    lambda s: len(s.context.sessions),
    key="watch_sessions",
)
_gauge("topics_ready", "1 once the log is replayed.", lambda s: s.engine.ready, key="ready")
_gauge(
    "topics_recovery_progress",
    "Share of the log replayed.",
    lambda s: round(s.engine.replay_progress, 4),
    key="replay_progress",
)
_gauge(
    "topics_uptime_ms",
    "Milliseconds since the start.",
    lambda s: s.context.clock.monotonic_ms() - s.context.started_ms,
    key="uptime_ms",
)

_counter(
    "topics_wal_frames_total",
    "Entries written to the log.",
    lambda s: s.log.frames,
    key="wal.frames",
)
_counter(
    "topics_wal_batches_total",
    "Groups written to the log.",
    lambda s: s.log.batches,
    key="wal.batches",
)
_counter("topics_wal_fsyncs_total", "Syncs of the log.", lambda s: s.log.fsyncs, key="wal.fsyncs")
_counter(
    "topics_wal_bytes_written_total",
    "Bytes written to the log.",
    lambda s: s.log.bytes_written,
    key="wal.bytes_written",
)
_counter(
    "topics_wal_rotations_total",
    "Segments begun.",
    lambda s: s.store.rotations,
    key="wal.rotations",
)
_counter(
    "topics_wal_submit_full_total",
    "Writes refused because the log's queue was full.",
    lambda s: s.log.submit_full,
    key="wal.submit_full_total",
)
_counter(
    "topics_wal_failures_total",
    "Times that the log took no write, as on a full disk.",
    lambda s: s.log.failures,
)
_gauge(
    "topics_wal_queue_depth",
    "Writes in the log's queue.",
    lambda s: s.engine.journal.queue_depth,
    key="wal.queue_depth",
)
_gauge(
    "topics_wal_queue_depth_peak",
    "Longest the log's queue was.",
    lambda s: s.log.queue_depth_peak,
    key="wal.queue_depth_peak",
)
_gauge(
    "topics_wal_read_only",
    "1 if the log takes no writes after an error.",
    lambda s: s.store.read_only_reason is not None,
    key="wal.read_only",
)
METRICS.histogram(
    "topics_wal_fsync_latency_us",
    "How long syncs of the log took, in microseconds.",
    lambda s: (tuple(s.log.fsync_buckets), s.log.fsync_us_total),
    bounds=FSYNC_BOUNDS_US,
    key="wal.fsync",
)

_gauge(
    "topics_hot_bytes",
    "Bytes of records in memory.",
    lambda s: s.storage["hot_bytes"],
    key="storage.hot_bytes",
)
_gauge(
    "topics_hot_bytes_limit",
    "Bytes of records that memory holds at most; 0: any number.",
    lambda s: s.storage["hot_bytes_limit"],
    key="storage.hot_bytes_limit",
)
_counter(
    "topics_spilled_bytes_total",
    "Bytes of records that were moved out of memory to its limit.",
    lambda s: s.storage["spilled_bytes"],
    key="storage.spilled_bytes",
)
_gauge(
    "topics_storage_damaged_snapshots",
    "Snapshots that were damaged at the start; older ones were used in their place.",
    lambda s: s.storage["damaged_snapshots"],
    key="storage.damaged_snapshots",
)
_gauge(
    "topics_storage_missing_segments",
    "Files of cold records that were missing at the start; reads of them fail.",
    lambda s: s.storage["missing_segments"],
    key="storage.missing_segments",
)
_gauge(
    "topics_partitions_failed",
    "Partitions that are out of service because they are damaged.",
    lambda s: s.storage["failed_partitions"],
    key="storage.failed_partitions",
)
METRICS.gauges(
    "topics_partition_failed_offset",
    "Where the file of a partition that is out of service is damaged; -1: not known.",
    Scrape.failed,
    label="partition,file",
    key="storage.failed_offset",
)
_counter(
    "topics_storage_unreadable_reads_total",
    "Reads of cold records that found their file damaged.",
    lambda s: s.storage["unreadable_reads"],
    key="storage.unreadable_reads",
)

METRICS.gauges(
    "topics_group_leads",
    "1 if this node leads the partition.",
    Scrape.leads,
    label="partition",
    key="cluster.leads",
)
for _name, _number, _text in (
    ("term", "term", "Term of the partition's group."),
    ("last_index", "last", "Last entry of the partition's log on this node."),
    ("commit_index", "committed", "Last entry that is known to be on a majority."),
    ("applied_index", "applied", "Last entry in the partition's state on this node."),
):
    METRICS.gauges(
        f"topics_group_{_name}",
        _text,
        partial(Scrape.of_groups, number=_number),
        label="partition",
        key=f"cluster.{_name}",
    )
METRICS.gauges(
    "topics_group_lag_entries",
    "Entries that a follower of a partition led here has not synced.",
    Scrape.lags,
    label="partition,member",
    key="cluster.lag",
)
METRICS.histogram(
    "topics_group_heartbeat_late_ms",
    "How late this node took in heartbeats of its partitions' leaders, in milliseconds. One that "
    "is late counts for all that were due meanwhile.",
    Scrape.heartbeats,
    bounds=LATE_BOUNDS_MS,
)
for _name, _part, _number, _text in (
    ("elections", "elections", "seen", "Times that a partition got another leader or term."),
    ("links_refused", "links", "refused", "Peers that were not let in, or did not let in."),
    ("links_bad_letters", "links", "bad_letters", "Connections closed for bytes not of a letter."),
    ("links_dropped", "links", "dropped", "Items that were not sent, as too much waited."),
    ("calls_forwarded", "calls", "sent", "Requests passed on to another node."),
    ("calls_served", "calls", "served", "Requests of other nodes answered."),
    ("calls_lost", "calls", "lost", "Requests passed on whose answer did not come."),
):
    _counter(
        f"topics_{_name}_total",
        _text,
        partial(Scrape.of_cluster, part=_part, number=_number),
        key=f"cluster.{_name}_total",
    )


def topic_numbers(context: Context, names: Iterable[str], now_ms: int) -> Iterator[TopicNumbers]:
    """The numbers of individual topics, one in each step."""
    topics = context.engine.registry.topics
    for name in names:
        topic = topics.get(name)
        if topic is not None:  # it may have been deleted since
            yield _numbers(context, topic, now_ms)


def _numbers(context: Context, topic: Topic, now_ms: int) -> TopicNumbers:
    live = topic.at(now_ms)
    shown = TopicNumbers(topic.name, topic.head_seq, live.earliest_seq, live.count, live.size_bytes)
    queue = context.engine.writer(topic.name).partition.queues.get(topic.name)
    if queue is None:
        return shown
    counts = queue.counts(now_ms)
    return shown._replace(queue_ready=counts.ready, queue_in_flight=counts.in_flight)


class FirstNames:
    """The first of very many names, in order; looked at in parts, as that takes long.

    >>> first = FirstNames(2)
    >>> for _ in first.look_at([["t.c", "t.a"], ["x", "t.b"]], "t.", lambda name: True):
    ...     pass
    >>> first.names, first.found
    (['t.a', 't.b'], 3)
    """

    def __init__(self, most: int) -> None:
        self.names: list[str] = []
        self.found = 0
        """How many names match in total."""
        self._most = most

    def look_at(
        self, parts: Iterable[Iterable[str]], prefix: str, is_shown: Callable[[str], bool]
    ) -> Iterator[None]:
        """Choose among names that begin with a prefix and may be shown, a part in each step."""
        for names in parts:
            part = [name for name in names if name.startswith(prefix) and is_shown(name)]
            self.found += len(part)
            if len(self.names) == self._most:
                last = self.names[-1]
                part = [name for name in part if name < last]
            if part:
                self.names = sorted(self.names + part)[: self._most]
            yield
