"""Everything that waits, the longest first, each with its reason and what would help.

One function for each kind of thing: topics that wait for their turn, routers, queues, tables, the
ingest pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.kernel.units import format_ms
from penstock.protocol.part_answers import PipelineState, Waiting
from penstock.server.push.readers import Pushed
from penstock.topics.core.cold_row import NotLoaded
from penstock.topics.core.partition import Partition
from penstock.topics.core.queue import Queue
from penstock.topics.engine.engine import Engine

if TYPE_CHECKING:  # a server without tables does not load them
    from penstock.tables.core.freshness import Freshness
    from penstock.tables.core.health import TableHealth

TOPIC_MS: Final = 100
"""A topic that waits for its turn for a shorter time is not worth a line."""
JOB_MS: Final = 1_000
"""The same for the first job of a queue."""
EACH_MAX: Final = 100
"""How many things of each kind are listed."""
_SHOWN: Final = frozenset({"waiting", "late", "error", "paused", "away"})
_HELP: Final = {
    "draining": "penstock table drain --off",
    "gated": "penstock table gate RELATION --open",
    "paused": "penstock table resume {0}",
    "suspended": "mend what failed, then: penstock table resume {0}",
    "error": "mend what failed, then: penstock table resume {0}",
    "source_missing": "make the source, or drop the table",
    "engine_away": "start the engine again; the table is tried again by itself",
    "backing_off": "it is tried again by itself; to try now: penstock table refresh {0}",
    "on_demand": "penstock table refresh {0}",
    "no_coordinator": "penstock table run",
    "upstream_failed": "mend the table above it",
    "upstream_empty": "fill the table above it",
    "no_budget": "raise max_concurrent_refreshes or max_workers of [tables]",
}
"""What would help a table; time alone does otherwise."""


def longest_first(found: Iterable[Waiting]) -> list[Waiting]:
    """The order of the list: those that have waited longest first, unknown times last."""
    return sorted(found, key=lambda each: (each.for_ms is None, -(each.for_ms or 0), each.name))


# Topics, routers and queues ----------------------------------------------------------------------


def waiting_topics(engine: Engine, now_ms: int) -> Iterator[Waiting]:
    """Topics whose push waits for its turn."""
    for name in engine.turns.longest(EACH_MAX):
        place = engine.turns.place(name)
        if place["waited_ms"] < TOPIC_MS:
            return  # so has every topic behind it
        yield Waiting(
            kind="topic",
            name=name,
            since=now_ms - place["waited_ms"],
            for_ms=place["waited_ms"],
            state="waiting",
            reason=place["standing"],
            text=place["reason"],
            help="raise its priority: penstock topic create " + name + " --priority N",
            link=f"/topics/{name}",
        )


def waiting_routers(engine: Engine) -> Iterator[Waiting]:
    """Routers whose destination takes no more."""
    for config, reason in engine.forwarder.stopped(EACH_MAX):
        yield Waiting(
            kind="router",
            name=config.name,
            since=None,
            for_ms=None,
            state="waiting",
            reason="destination_full",
            text=reason,
            help=f"read and delete records of {config.dest}, or raise its cap",
            link=f"/topics/{config.source}",
        )


def waiting_watchers(streams: Iterable[object], now_ms: int) -> Iterator[Waiting]:
    """Watchers that do not read what they were sent; each at the first topic that waits for it."""
    for stream in streams:
        if not isinstance(stream, Pushed) or (stuck := stream.stuck()) is None:
            continue
        who = stream.identity()
        yield Waiting(
            kind="watcher",
            name=stuck.topic,
            since=stuck.since_ms,
            for_ms=max(0, now_ms - stuck.since_ms),
            state="waiting",
            reason="not_read",
            text=f"watcher {who.name or who.peer or who.id} does not read what it was sent",
            help="look after the client: it is let go if it goes on",
            link=f"/topics/{stuck.topic}",
        )


class WaitingJobs(NamedTuple):
    """A queue whose jobs wait to be claimed."""

    queue: str
    ready: int
    in_flight: int
    oldest_ms: int | None
    """When the next job was written, if known."""


def queues_with_jobs(partition: Partition, now_ms: int) -> Iterator[WaitingJobs | None]:
    """The queues of a partition that have jobs waiting; None for each that has not."""
    for name, queue in list(partition.queues.items()):
        if partition.queues.get(name) is not queue or not queue.topic.count:
            yield None
            continue
        ready, in_flight, _ = queue.counts(now_ms)
        oldest_ms = _oldest_ms(queue, now_ms) if ready else now_ms
        old = oldest_ms is None or now_ms - oldest_ms >= JOB_MS
        yield WaitingJobs(name, ready, in_flight, oldest_ms) if old else None


def _oldest_ms(queue: Queue, now_ms: int) -> int | None:
    """When the next job of a queue was written; None if that is not in memory."""
    seq = queue.first_ready(now_ms)
    try:
        slot = None if seq is None else queue.topic.slot(seq)
    except NotLoaded:
        return None
    return None if slot is None else slot.ts_ms


def waiting_queue(jobs: WaitingJobs, now_ms: int) -> Waiting:
    """A queue whose jobs wait to be claimed."""
    ready = "One job waits" if jobs.ready == 1 else f"{jobs.ready:,} jobs wait"
    busy = jobs.in_flight > 0
    return Waiting(
        kind="queue",
        name=jobs.queue,
        since=jobs.oldest_ms,
        for_ms=None if jobs.oldest_ms is None else now_ms - jobs.oldest_ms,
        state="waiting",
        reason="workers_busy" if busy else "no_worker",
        text=f"{ready}; {jobs.in_flight:,} are leased" if busy else f"{ready}, no worker has any",
        help="start more workers" if busy else f'start a worker: client.work("{jobs.queue}")',
        link=f"/queues/{jobs.queue}",
    )


# Tables ------------------------------------------------------------------------------------------


def waiting_table(row: TableHealth, fresh: Freshness, now_ms: int) -> Waiting | None:
    """A table that waits, or None if it does not."""
    if fresh.state not in _SHOWN:
        return None
    for_ms = fresh.stale_by_ms or None
    return Waiting(
        kind="table",
        name=row.table,
        since=None if for_ms is None else now_ms - for_ms,
        for_ms=for_ms,
        state=fresh.state,
        reason=row.reason.value,
        text=row.waiting_for,
        help=_HELP.get(row.reason.value, "").format(row.table),
        link=f"/tables/{row.table}",
    )


# Ingest ------------------------------------------------------------------------------------------


def waiting_ingest(pipeline: PipelineState) -> Iterator[Waiting]:
    """What holds the pipeline up."""
    name = pipeline.part or "ingest"
    if pipeline.state == "away" and pipeline.away_since is not None:
        silent_ms = pipeline.at - pipeline.away_since
        text = f"it has not reported for {format_ms(silent_ms)}"
        yield _ingest(name, "away", "away", text, "penstock ingest run", silent_ms, pipeline.at)
        return
    if pipeline.trouble is not None:
        helps = "it is tried again by itself"
        yield _ingest(name, "error", "trouble", pipeline.trouble, helps, None, pipeline.at)
    for stage in pipeline.stages:
        stuck_ms = stage.stuck_ms or None
        if stage.held:
            helps = f"penstock ingest go {stage.name}"
            yield _ingest(
                stage.name, "paused", "held", "held by hand", helps, stuck_ms, pipeline.at
            )
        elif stage.name == pipeline.bottleneck:
            text = "the stages before it wait for it"
            text += f"; the planner: {stage.note}" if stage.note else ""
            yield _ingest(stage.name, "late", "bottleneck", text, "", stuck_ms, pipeline.at)


def _ingest(
    name: str, state: str, reason: str, text: str, helps: str, for_ms: int | None, at: int
) -> Waiting:
    return Waiting(
        kind="ingest", name=name, since=None if for_ms is None else at - for_ms, for_ms=for_ms,
        state=state, reason=reason, text=text, help=helps, link="/pipeline",
    )  # fmt: skip
