"""The readers of a topic, and where it is kept: answers."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

WATCHERS_SHOWN: Final = 100
WATCHERS_SHOWN_MAX: Final = 1_000
"""Rows of one answer; the counts beside them are complete."""
NAME_HEADER: Final = "X-Penstock-Name"
NAME_BYTES_MAX: Final = 128
"""The name that a client gives itself."""

ReaderState = Literal["ok", "waiting", "slow", "loading", "held"]


class TopicWatcher(Struct, frozen=True, kw_only=True):
    """One reader of a topic: a watcher, a router or a worker.

    `place` is the last seq it has; `behind` counts the records after that, and `behind_ms` is the
    age of the oldest of them, None if that is not in memory. `key` is a part of the digest of its
    API key, as a session names it, never the key. `state` is ok, waiting (its turn comes), slow
    (it does not read what it was sent), loading (its records are read from disk), or held (its
    destination is full, or it holds as many jobs as it asked for).
    """

    id: str
    kind: Literal["sse", "websocket", "router", "worker"]
    name: str | None = None
    """What it calls itself; the name of a router, the node of a worker."""
    peer: str | None = None
    key: str | None = None
    since: int | None = None
    place: int | None = None
    behind: int
    behind_ms: int | None = None
    state: ReaderState
    reason: str
    dest: str | None = None
    """Where a router copies to."""
    held: int | None = None
    """How many jobs a worker holds."""


class TopicWatchers(Struct, frozen=True, kw_only=True):
    """The readers of a topic, furthest behind first. The counts include those that are not listed.

    A worker is not behind: the jobs of a queue belong to whichever worker takes them.
    """

    topic: str
    head_seq: int
    watchers: list[TopicWatcher]
    count: int
    routers: int
    """How many of them are routers."""
    behind: int
    """How many of them are behind."""
    performance: dict[str, float] = {}


class LogGroup(Struct, frozen=True, kw_only=True):
    """The last group that the log wrote, of all partitions."""

    operations: int
    took_ms: float
    synced: bool
    ago_ms: int


class TopicPartition(Struct, frozen=True, kw_only=True):
    """The log partition of a topic, the queue of its executor, and the log behind it.

    `executor_queue` and `log_queue` are what waits of this partition: commands to be decided, and
    entries to be durable. `waiting_bytes` and `last_group` are those of all partitions, which share
    one log. `last_group` is None until the first.
    """

    topic: str
    partition: int
    partitions: int
    topics: int
    """Topics of the partition."""
    phase: str
    executor_queue: int
    log_queue: int
    log_index: int
    """The last entry of the partition, durable or not."""
    waiting_bytes: int
    written_by: str
    last_group: LogGroup | None = None
    performance: dict[str, float] = {}
