"""The options of an engine, and its views of topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.kernel.units import MIB
from penstock.protocol.config import TopicConfig
from penstock.protocol.limits import TopicLimits
from penstock.topics.core.queue import QueueCounts
from penstock.topics.persist.sealing import SealOptions


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of an engine, and where it keeps what is not in its log.

    `waiting_bytes_max` is how many bytes may wait for the log in a partition before writes are
    refused, and `log_wait_ms_max` how long the whole queue may take to be written; 0: no limit.
    Without a `data_dir` there are no snapshots: the log is never truncated, and every record stays
    in memory. Snapshots are made when the log since the last ones is larger than
    `compact_bytes_min` and larger than they are; four times as large while the loop is busy.
    `cold_dir` is in the data directory by default. `identity` is added to the epochs shown to
    readers where no data directory provides one. `hot_bytes_max` is how many bytes of records
    memory holds, over all topics; 0: all of them.
    """

    partitions: int = 2
    limits: TopicLimits = field(default_factory=TopicLimits)
    disk_sync_ms: int = 100
    waiting_bytes_max: int = 256 * MIB
    log_wait_ms_max: int = 2_000
    data_dir: Path | None = None
    cold_dir: Path | None = None
    seal: SealOptions = field(default_factory=SealOptions)
    compact_bytes_min: int = 64 * MIB
    cold_cache_bytes: int = 128 * MIB
    identity: int = 0
    hot_bytes_max: int = 256 * MIB


class Deletion(NamedTuple):
    """The answer to a delete."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int  # type: ignore[assignment]
    size_bytes: int


class TopicView(NamedTuple):
    """A topic for people. `queue` only for queues."""

    topic: str
    config: TopicConfig
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int  # type: ignore[assignment]
    size_bytes: int
    epoch: int
    effective_priority: int
    last_write_ms: int | None
    last_read_ms: int | None
    queue: QueueCounts | None
