"""The server's numbers, as Prometheus text and as JSON, from one sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CONTENT_TYPE: Final = b"text/plain; version=0.0.4"
TOPICS_SHOWN_MAX: Final = 1_000
FSYNC_BOUNDS_US: Final = (50, 100, 250, 500, 1_000, 5_000, 10_000, 50_000, 100_000)
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")


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
        """How many names there are in all."""
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


class TopicSample(NamedTuple):
    """The numbers of one topic; those of a queue are None on a log."""

    topic: str
    head_seq: int
    earliest_seq: int
    records_live: int
    bytes_live: int
    queue_ready: int | None = None
    queue_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class WalSample:
    """The numbers of the log. `fsync_counts` has one count for each bound and one beyond."""

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    submit_full: int = 0
    failures: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    read_only: bool = False
    fsync_micros_total: int = 0
    fsync_counts: Sequence[int] = (0,) * (len(FSYNC_BOUNDS_US) + 1)


class StorageSample(NamedTuple):
    """What memory holds of records, and what was found damaged since the start."""

    hot_bytes: int = 0
    hot_bytes_limit: int = 0
    spilled_bytes: int = 0
    damaged_snapshots: int = 0
    missing_segments: int = 0
    unreadable_reads: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """Every number at one moment. `topics` holds those that are shown one by one, if any.

    `is_truncated`: more were asked for than are shown.
    """

    topics_total: int = 0
    by_class: dict[str, int] = field(default_factory=dict)
    routers: int = 0
    records_live: int = 0
    bytes_live: int = 0
    topics: Sequence[TopicSample] = ()
    is_truncated: bool = False
    queue_topics: int = 0
    queue_leases_in_flight: int = 0
    sse_connections: int = 0
    watch_sessions: int = 0
    ready: bool = False
    replay_progress: float = 0.0
    uptime_ms: int = 0
    wal: WalSample = field(default_factory=WalSample)
    storage: StorageSample = field(default_factory=StorageSample)


_TOPIC_GAUGES: Final = (
    ("head_seq", "Last seq of a topic."),
    ("earliest_seq", "First seq of a topic that can be read."),
    ("records_live", "Live records of a topic."),
    ("bytes_live", "Live bytes of data and meta of a topic."),
    ("queue_ready", "Jobs of a queue that can be claimed."),
    ("queue_in_flight", "Jobs of a queue that are leased."),
)


def prometheus(lines: Iterable[str]) -> bytes:
    """Lines of a sample as one text."""
    return ("\n".join(lines) + "\n").encode()


def json_values(sample: Sample) -> dict[str, Any]:
    """The sample as plain values."""
    wal = sample.wal
    return {
        "topics": sample.topics_total,
        **{f"topics_{name}": sample.by_class.get(name, 0) for name in CLASSES},
        "routers": sample.routers,
        "records_live": sample.records_live,
        "bytes_live": sample.bytes_live,
        "queue_topics": sample.queue_topics,
        "queue_leases_in_flight": sample.queue_leases_in_flight,
        "sse_connections": sample.sse_connections,
        "watch_sessions": sample.watch_sessions,
        "ready": sample.ready,
        "replay_progress": sample.replay_progress,
        "uptime_ms": sample.uptime_ms,
        "wal": {
            "fsyncs": wal.fsyncs,
            "frames": wal.frames,
            "batches": wal.batches,
            "bytes_written": wal.bytes_written,
            "rotations": wal.rotations,
            "queue_depth": wal.queue_depth,
            "queue_depth_peak": wal.queue_depth_peak,
            "submit_full_total": wal.submit_full,
            "read_only": wal.read_only,
            "fsync_count": sum(wal.fsync_counts),
            "fsync_micros_total": wal.fsync_micros_total,
        },
        "storage": sample.storage._asdict(),
    }


def prometheus_lines(sample: Sample) -> Iterator[str]:
    """The sample in Prometheus' text format, made one by one."""
    yield from _gauge("topics_topics", "Topics.", sample.topics_total)
    yield from _head("topics_topics_by_class", "gauge", "Topics of each durability class.")
    for name in CLASSES:
        yield f'topics_topics_by_class{{class="{name}"}} {sample.by_class.get(name, 0)}'
    yield from _gauge("topics_routers", "Routers.", sample.routers)
    yield from _gauge("topics_records_live", "Live records.", sample.records_live)
    yield from _gauge("topics_bytes_live", "Live bytes of data and meta.", sample.bytes_live)
    yield from _topic_lines(sample)
    yield from _gauge("topics_queue_topics", "Topics that are queues.", sample.queue_topics)
    yield from _gauge(
        "topics_queue_leases_in_flight", "Leased jobs.", sample.queue_leases_in_flight
    )
    yield from _gauge("topics_sse_connections", "Open push streams.", sample.sse_connections)
    yield from _gauge("topics_watch_sessions", "Watch sessions.", sample.watch_sessions)
    yield from _gauge("topics_ready", "1 once the log is replayed.", int(sample.ready))
    yield from _gauge(
        "topics_recovery_progress", "Share of the log replayed.", sample.replay_progress
    )
    yield from _gauge("topics_uptime_ms", "Milliseconds since the start.", sample.uptime_ms)
    yield from _wal_lines(sample.wal)
    yield from _storage_lines(sample.storage)


def _topic_lines(sample: Sample) -> Iterator[str]:
    for name, text in _TOPIC_GAUGES if sample.topics else ():
        yield from _head(f"topics_topic_{name}", "gauge", text)
        for topic in sample.topics:
            value = getattr(topic, name)
            if value is not None:
                yield f'topics_topic_{name}{{topic="{topic.topic}"}} {value}'
    yield from _gauge(
        "topics_topic_metrics_truncated",
        "1 if more topics were asked for than are shown one by one.",
        int(sample.is_truncated),
    )


def _wal_lines(wal: WalSample) -> Iterator[str]:
    for name, text in (
        ("frames", "Entries written to the log."),
        ("batches", "Groups written to the log."),
        ("fsyncs", "Syncs of the log."),
        ("bytes_written", "Bytes written to the log."),
        ("rotations", "Segments begun."),
        ("submit_full", "Writes refused because the log's line was full."),
        ("failures", "Times that the log took no write, as on a full disk."),
    ):
        yield from _head(f"topics_wal_{name}_total", "counter", text)
        yield f"topics_wal_{name}_total {getattr(wal, name)}"
    yield from _gauge("topics_wal_queue_depth", "Writes in the log's line.", wal.queue_depth)
    yield from _gauge(
        "topics_wal_queue_depth_peak", "Longest the log's line was.", wal.queue_depth_peak
    )
    yield from _gauge(
        "topics_wal_read_only", "1 if the log takes no writes after an error.", int(wal.read_only)
    )
    yield from _fsync_histogram(wal)


def _storage_lines(storage: StorageSample) -> Iterator[str]:
    yield from _gauge("topics_hot_bytes", "Bytes of records in memory.", storage.hot_bytes)
    yield from _gauge(
        "topics_hot_bytes_limit",
        "Bytes of records that memory holds at most; 0: any number.",
        storage.hot_bytes_limit,
    )
    name = "topics_spilled_bytes_total"
    yield from _head(
        name, "counter", "Bytes of records that were moved out of memory to its limit."
    )
    yield f"{name} {storage.spilled_bytes}"
    yield from _gauge(
        "topics_storage_damaged_snapshots",
        "Snapshots that were damaged at the start; older ones were used in their place.",
        storage.damaged_snapshots,
    )
    yield from _gauge(
        "topics_storage_missing_segments",
        "Files of cold records that were missing at the start; reads of them fail.",
        storage.missing_segments,
    )
    name = "topics_storage_unreadable_reads_total"
    yield from _head(name, "counter", "Reads of cold records that found their file damaged.")
    yield f"{name} {storage.unreadable_reads}"


def _fsync_histogram(wal: WalSample) -> Iterator[str]:
    name = "topics_wal_fsync_latency_us"
    yield from _head(name, "histogram", "How long syncs of the log took, in microseconds.")
    total = 0
    for bound, count in zip((*FSYNC_BOUNDS_US, "+Inf"), wal.fsync_counts, strict=True):
        total += count
        yield f'{name}_bucket{{le="{bound}"}} {total}'
    yield f"{name}_sum {wal.fsync_micros_total}"
    yield f"{name}_count {total}"


def _gauge(name: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, "gauge", text)
    yield f"{name} {value}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
