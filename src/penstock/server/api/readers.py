"""Handlers about a topic's readers, and where it is kept."""

from __future__ import annotations

from penstock.protocol.errors import TopicNotFound
from penstock.protocol.routes import NUMBER, READ, Param
from penstock.protocol.watchers import (
    WATCHERS_SHOWN,
    WATCHERS_SHOWN_MAX,
    LogGroup,
    TopicPartition,
    TopicWatchers,
)
from penstock.server.api.call import ROUTES, Call
from penstock.server.http.message import Answer
from penstock.server.push.readers import topic_watchers
from penstock.topics.engine.engine import Engine


@ROUTES.get(
    "/v0/topics/{name}/watchers",
    answer=TopicWatchers,
    scope=READ,
    named="topic",
    query=(
        Param(
            "limit",
            NUMBER,
            f"Readers to list, 1 to {WATCHERS_SHOWN_MAX}; {WATCHERS_SHOWN} if not said.",
        ),
    ),
    errors=(TopicNotFound,),
)
async def list_watchers(call: Call) -> Answer:
    """The readers of a topic, furthest behind first: watchers, routers and workers."""
    limit = min(max(call.query.number("limit", WATCHERS_SHOWN), 1), WATCHERS_SHOWN_MAX)
    return call.tell(topic_watchers(call.context.engine, call.name, limit, call.shown))


@ROUTES.get(
    "/v0/topics/{name}/partitions",
    answer=TopicPartition,
    scope=READ,
    named="topic",
    errors=(TopicNotFound,),
)
async def show_partition(call: Call) -> Answer:
    """Of which log partition a topic is, and what waits there."""
    return call.tell(partition_of_topic(call.context.engine, call.name))


def partition_of_topic(engine: Engine, name: str) -> TopicPartition:
    """Of which log partition a topic is, and what waits there."""
    engine.topic(name)
    writer, journal = engine.writer(name), engine.journal
    status = writer.executor.status
    return TopicPartition(
        topic=name,
        partition=writer.number,
        partitions=len(engine.partitions()),
        topics=len(writer.partition.topics),
        phase=status.phase.value,
        executor_queue=sum(status.queued.values()),
        log_queue=journal.wal.depth_of(writer.number),
        log_index=journal.last_index(writer.number),
        waiting_bytes=engine.waiting_bytes,
        written_by=journal.written_by,
        last_group=_last_group(engine),
    )


def _last_group(engine: Engine) -> LogGroup | None:
    last = engine.journal.wal.last_group
    if last is None:
        return None
    return LogGroup(
        operations=last.operations,
        took_ms=round(last.took_ns / 1e6, 3),
        synced=last.syncs > 0,
        ago_ms=max(0, engine.clock.monotonic_ns() - last.ended_ns) // 1_000_000,
    )
