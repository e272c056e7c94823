"""Handlers about the server itself: probes, metrics, the scheduler, the document, a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import penstock
from penstock.kernel.clock import Clock
from penstock.protocol import answers, requests
from penstock.protocol.errors import (
    InvalidRequest,
    NotReady,
    NotWritable,
    Replaying,
    ShuttingDown,
    TopicNotFound,
)
from penstock.protocol.metrics import CONTENT_TYPE, as_text
from penstock.protocol.routes import ADMIN, FLAG, READ, TEXT, Param
from penstock.protocol.values import RESERVED_PREFIX, is_reserved
from penstock.server.api.answers import encode
from penstock.server.api.call import ROUTES, Call
from penstock.server.api.metrics import METRICS, TOPICS_SHOWN_MAX, FirstNames, Scrape, topic_numbers
from penstock.server.api.openapi import document
from penstock.server.http.message import Answer
from penstock.topics.core.totals import Overdue
from penstock.topics.engine.views import scheduler_view

SLICE_NS: Final = 500_000
"""How long a slice may take, excluding its last step."""
T = TypeVar("T")


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
    topics = context.engine.registry.totals.count
    body = {"status": "ready", "wal_replay_complete": True, "topics": topics}
    failed = context.failed_partitions()
    if failed:  # the other partitions serve: it is ready, but degraded
        body["status"] = "degraded"
        body["failed_partitions"] = failed
    return Answer(200, encode(body))


@ROUTES.get(
    "/v0/metrics",
    answer=dict[str, Any],
    scope=READ,
    query=(
        Param("topics", FLAG, "Also the numbers of single topics, of 1000 at most."),
        Param("prefix", TEXT, "Of those whose names begin like this only."),
        Param(
            "names",
            TEXT,
            "Of the JSON only these numbers, joined by commas: `topics,wal.queue_depth`.",
        ),
    ),
    is_data=False,
    also=("text/plain",),
)
async def metrics(call: Call) -> Answer:
    """Numbers, for Prometheus or as JSON."""
    context = call.context
    engine, clock = context.engine, context.clock
    now_ms = engine.clock.now_ms()
    overdue = Overdue()
    await in_slices(engine.registry.totals.overdue(now_ms, overdue), clock)
    scrape = Scrape(context, overdue)
    if "application/json" in call.request.headers.get("accept", ""):
        names = frozenset(filter(None, (call.query.text("names") or "").split(",")))
        return call.answer(**METRICS.values(scrape, names))
    if call.query.flag("topics", False):
        prefix = call.query.text("prefix") or ""
        first = FirstNames(TOPICS_SHOWN_MAX)
        parts = ([topic.name for topic in part] for part in engine.registry.totals.topics.parts())
        is_own = prefix.startswith(RESERVED_PREFIX)
        await in_slices(
            first.look_at(
                parts, prefix, lambda name: call.reaches(name) and is_own == is_reserved(name)
            ),
            clock,
        )
        scrape.topics = await in_slices(topic_numbers(context, first.names, now_ms), clock)
        scrape.is_truncated = first.found > len(first.names)
    return Answer(200, as_text(await in_slices(METRICS.lines(scrape), clock)), CONTENT_TYPE)


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


async def in_slices(steps: Iterable[T], clock: Clock) -> list[T]:
    """Collect the results of all steps, a few in each iteration of the event loop."""
    found: list[T] = []
    until_ns = clock.monotonic_ns() + SLICE_NS
    for step in steps:
        found.append(step)
        if clock.monotonic_ns() >= until_ns:
            await asyncio.sleep(0)
            until_ns = clock.monotonic_ns() + SLICE_NS
    return found


@ROUTES.post("/v0/backup", answer=answers.BackupMade, scope=ADMIN, body=requests.BackupBody)
async def make_backup(call: Call) -> Answer:
    """Copy everything to a directory of the server."""
    call.check_unbounded()
    dest = place_of(call.read(requests.BackupBody).directory, call.context.backup_dir)
    made = await call.context.engine.backup(dest)
    return call.answer(directory=str(dest), files=len(made.files), bytes=made.size_bytes)


def place_of(wanted: str, root: Path | None) -> Path:
    """Where a backup goes: below the one directory that the operator configured for backups."""
    if root is None:
        raise InvalidRequest("the server does not say where backups may go: set backup_dir")
    if not wanted or "\0" in wanted:
        raise InvalidRequest(f"directory must be a path, not {wanted!r}")
    allowed = root.resolve()
    dest = (allowed / wanted).resolve()
    if dest == allowed or not dest.is_relative_to(allowed):
        raise InvalidRequest(f"{wanted} is not below the server's backup_dir")
    return dest
