"""Handlers that tell of the server itself: probes, metrics, the scheduler, the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any, Final

import penstock
from penstock.server.answers import Answer, encode
from penstock.server.call import Call, Context
from penstock.server.errors import NotReady, ShuttingDown
from penstock.server.metrics import (
    CONTENT_TYPE,
    TOPICS_SHOWN_MAX,
    Sample,
    StorageSample,
    TopicSample,
    WalSample,
    json_values,
    prometheus,
)
from penstock.server.openapi import document
from penstock.server.routes import ROUTES
from penstock.topics.shell.scheduler_view import scheduler_view, storage_view
from penstock.topics.topic import Topic


def health(call: Call) -> Answer:
    """The server runs."""
    uptime_ms = call.context.clock.monotonic_ms() - call.context.started_ms
    return Answer(
        200, encode({"status": "ok", "version": penstock.__version__, "uptime_ms": uptime_ms})
    )


def ready(call: Call) -> Answer:
    """The log is replayed, or not yet."""
    context = call.context
    if context.draining:
        raise ShuttingDown
    if not context.engine.ready:
        raise NotReady(context.engine.replay_progress)
    topics = len(context.engine.registry.topics)
    return Answer(200, encode({"status": "ready", "wal_replay_complete": True, "topics": topics}))


def metrics(call: Call) -> Answer:
    """Numbers, for Prometheus or as JSON."""
    found = sample(call.context, call.reaches)
    if "application/json" in call.request.headers.get("accept", ""):
        return call.answer(**json_values(found))
    return Answer(200, prometheus(found), CONTENT_TYPE)


def openapi(_call: Call) -> Answer:
    """The document of all routes."""
    return Answer(200, _document())


@cache
def _document() -> bytes:
    return encode(document(ROUTES, penstock.__version__))


def scheduler(call: Call) -> Answer:
    """What the scheduler is about to do; why, for one topic."""
    topic = call.query.text("topic") or None
    if topic is not None:
        call.check_topic(topic)
    return call.answer(**scheduler_view(call.context.engine, topic, call.reaches))


HANDLERS: Final[dict[str, Callable[[Call], Any]]] = {
    "health": health,
    "ready": ready,
    "metrics": metrics,
    "openapi": openapi,
    "scheduler": scheduler,
}


def sample(context: Context, shown: Callable[[str], bool] = lambda _name: True) -> Sample:
    """Every number at this moment; numbers of single topics for those that may be shown."""
    engine = context.engine
    topics = engine.registry.topics
    queues = [topic for topic in topics.values() if topic.config.type == "queue"]
    now_ms = engine.clock.now_ms()
    engine.registry.expire_all(now_ms)
    return Sample(
        topics_total=len(topics),
        by_class=dict(Counter(topic.config.durability for topic in topics.values())),
        routers=len(engine.registry.routers),
        records_live=sum(topic.count for topic in topics.values()),
        bytes_live=sum(topic.size_bytes for topic in topics.values()),
        topics=[
            _topic_sample(context, topics[name], now_ms)
            for name in islice(filter(shown, sorted(topics)), TOPICS_SHOWN_MAX)
        ],
        queue_topics=len(queues),
        queue_leases_in_flight=sum(
            engine.lane(topic.name).partition.queues[topic.name].counts(now_ms).in_flight
            for topic in queues
        ),
        sse_connections=context.caps.streams,
        watch_sessions=len(context.sessions),
        ready=engine.ready,
        replay_progress=round(engine.replay_progress, 4),
        uptime_ms=context.clock.monotonic_ms() - context.started_ms,
        wal=_wal_sample(context),
        storage=StorageSample(**storage_view(engine)),
    )


def _topic_sample(context: Context, topic: Topic, now_ms: int) -> TopicSample:
    shown = TopicSample(
        topic.name, topic.head_seq, topic.earliest_seq, topic.count, topic.size_bytes
    )
    queue = context.engine.lane(topic.name).partition.queues.get(topic.name)
    if queue is None:
        return shown
    counts = queue.counts(now_ms)
    return shown._replace(queue_ready=counts.ready, queue_in_flight=counts.in_flight)


def _wal_sample(context: Context) -> WalSample:
    journal = context.engine.journal
    counters = journal.counters
    status = journal.store.status()
    return WalSample(
        frames=counters.frames,
        batches=counters.batches,
        fsyncs=counters.fsyncs,
        bytes_written=counters.bytes_written,
        submit_full=counters.submit_full,
        rotations=status.rotations,
        failures=counters.failures,
        queue_depth=journal.queue_depth,
        queue_depth_peak=counters.queue_depth_peak,
        read_only=status.read_only_reason is not None,
        fsync_micros_total=counters.fsync_us_total,
        fsync_counts=tuple(counters.fsync_buckets),
    )
