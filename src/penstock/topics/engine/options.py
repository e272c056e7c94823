"""The options of an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.kernel.units import MIB
from penstock.protocol.limits import TopicLimits
from penstock.raft.journal import GroupOptions
from penstock.topics.persist.segments import SealOptions


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
    memory holds, over all topics; 0: all of them. `member` is the id that a node alone writes into
    its log; `group` is a node's place in its cluster.
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
    member: int = 0
    group: GroupOptions | None = None
    hot_bytes_max: int = 256 * MIB
