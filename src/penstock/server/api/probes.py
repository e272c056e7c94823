"""Handlers that tell of the server itself: probes, metrics, the scheduler, the document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import penstock
from penstock.protocol import answers
from penstock.protocol.errors import NotReady, NotWritable, Replaying, ShuttingDown, TopicNotFound
from penstock.protocol.routes import READ, Param
from penstock.server.api.answers import encode
from penstock.server.api.call import Call, Context
from penstock.server.api.metrics import (
    CONTENT_TYPE,
    TOPICS_SHOWN_MAX,
    FirstNames,
    Sample,
    StorageSample,
    TopicSample,
    WalSample,
    json_values,
    prometheus,
    prometheus_lines,
)
from penstock.server.api.openapi import document
from penstock.server.api.routes import FLAG, ROUTES, TEXT
from penstock.server.api.slices import in_slices
from penstock.server.http.message import Answer
from penstock.topics.core.topic import Topic
from penstock.topics.engine.scheduler_view import scheduler_view, storage_view


@ROUTES.get("/v0/health", "/healthz", answer=answers.Health, guard="probe", is_data=False)
def health(call: Call) -> Answer:
    """Whether the server runs."""
    uptime_ms = call.context.clock.monotonic_ms() - call.context.started_ms
    return Answer(
        200, encode({"status": "ok", "version": penstock.__version__, "uptime_ms": uptime_ms})
    )


@ROUTES.get(
    "/v0/ready", "/readyz", answer=answers.Ready, errors=(NotReady,), guard="probe", is_data=False
)
def ready(call: Call) -> Answer:
    """Whether the log is replayed and takes writes."""
    context = call.context
    if context.draining:
        raise ShuttingDown
    if not context.engine.ready:
        raise Replaying(context.engine.replay_progress)
    reason = context.engine.journal.store.status().read_only_reason
    if reason is not None:
        raise NotWritable(context.hide(reason, 503))
    topics = len(context.engine.registry.topics)
    return Answer(200, encode({"status": "ready", "wal_replay_complete": True, "topics": topics}))


@ROUTES.get(
    "/v0/metrics",
    answer=dict[str, Any],
    scope=READ,
    query=(
        Param("topics", FLAG, "Also the numbers of single topics, of 1000 at most."),
        Param("prefix", TEXT, "Of those whose names begin like this only."),
    ),
    is_data=False,
    also=("text/plain",),
)
async def metrics(call: Call) -> Answer:
    """Numbers, for Prometheus or as JSON."""
    context = call.context
    engine, clock = context.engine, context.clock
    now_ms = engine.clock.now_ms()
    await in_slices(engine.registry.totals.pass_time(now_ms), clock)
    found = sample(context)
    if "application/json" in call.request.headers.get("accept", ""):
        return call.answer(**json_values(found))
    if call.query.flag("topics", False):
        prefix = call.query.text("prefix") or ""
        first = FirstNames(TOPICS_SHOWN_MAX)
        parts = ([topic.name for topic in part] for part in engine.registry.totals.topics.parts())
        await in_slices(first.look_at(parts, prefix, call.reaches), clock)
        topics = await in_slices(_topic_samples(context, first.names, now_ms), clock)
        found = replace(found, topics=topics, is_truncated=first.found > len(first.names))
    return Answer(200, prometheus(await in_slices(prometheus_lines(found), clock)), CONTENT_TYPE)


@ROUTES.get("/v0/openapi.json", answer=dict[str, Any], is_data=False)
def openapi(_call: Call) -> Answer:
    """This document."""
    return Answer(200, _document())


@cache
def _document() -> bytes:
    return encode(document(ROUTES, penstock.__version__))


@ROUTES.get(
    "/v0/scheduler",
    answer=answers.SchedulerView,
    scope=READ,
    query=(Param("topic", TEXT, "Explain this topic."),),
    errors=(TopicNotFound,),
)
def scheduler(call: Call) -> Answer:
    """What the scheduler is about to do, and why."""
    topic = call.query.text("topic") or None
    if topic is not None:
        call.check_topic(topic)
    return call.answer(**scheduler_view(call.context.engine, topic, call.reaches))


def sample(context: Context) -> Sample:
    """Every number of the node at this moment; none is made by a walk over the topics."""
    engine = context.engine
    totals = engine.registry.totals
    return Sample(
        topics_total=len(engine.registry.topics),
        by_class=dict(totals.by_class),
        routers=len(engine.registry.routers),
        records_live=totals.records,
        bytes_live=totals.size_bytes,
        queue_topics=totals.by_type["queue"],
        queue_leases_in_flight=totals.leases,
        sse_connections=context.caps.streams,
        watch_sessions=len(context.sessions),
        ready=engine.ready,
        replay_progress=round(engine.replay_progress, 4),
        uptime_ms=context.clock.monotonic_ms() - context.started_ms,
        wal=_wal_sample(context),
        storage=StorageSample(**storage_view(engine)),
    )


def _topic_samples(context: Context, names: Iterable[str], now_ms: int) -> Iterator[TopicSample]:
    topics = context.engine.registry.topics
    for name in names:
        topic = topics.get(name)
        if topic is not None:  # it may have gone since
            topic.expire(now_ms)
            yield _topic_sample(context, topic, now_ms)


def _topic_sample(context: Context, topic: Topic, now_ms: int) -> TopicSample:
    shown = TopicSample(
        topic.name, topic.head_seq, topic.earliest_seq, topic.count, topic.size_bytes
    )
    queue = context.engine.writer(topic.name).partition.queues.get(topic.name)
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
