"""What an engine is told when it is made, and what it tells of topics."""

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

    `waiting_bytes_max` is what may wait for the log in a partition before writes are refused, and
    `log_wait_ms_max` how long all that waits may take to be written; 0: any time. Without a
    `data_dir` there are no snapshots: the log is never cut, and every record stays in memory.
    Snapshots are made when the log since the last ones has more than `compact_bytes_min`, and
    more than they have; four times as much while the loop is busy. `cold_dir` is in the data
    directory unless it is named. `identity` is added to the epochs that readers are told, where
    there is no data directory that has one of its own. `hot_bytes_max` is how much of the records
    memory holds, of all topics; 0: all of it.
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
    """What a delete is told."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int  # type: ignore[assignment]
    size_bytes: int


class TopicView(NamedTuple):
    """A topic as people see it. `queue` only for queues."""

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
