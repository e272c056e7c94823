"""What an engine shows of itself: its topics, what waits and why, its log and its files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.flow.fairqueue import Standing
from penstock.log.executor import Phase
from penstock.protocol.config import TopicConfig
from penstock.protocol.values import begins
from penstock.topics.core.queue import JobCounts
from penstock.topics.core.topic import Topic

if TYPE_CHECKING:
    from penstock.topics.engine.engine import Engine

_WAITS: Final = (
    "watchers yet to have their turn in this round: {}",
    "watchers that do not read what they were sent: {}",
    "watchers whose records are read from disk: {}",
)
"""What watchers wait for, as `Behind` counts them."""


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
    queue: JobCounts | None


async def show_topic(engine: Engine, name: str, *, touch: bool = True) -> TopicView:
    """The state of a topic, after its routers have delivered everything."""
    await engine.forwarder.drain(name)
    return _topic_view(engine, engine.topic(name), touch=touch)


def list_topics(
    engine: Engine,
    prefix: str,
    after: str | None,
    page_size: int,
    *,
    touch: bool = False,
    allowed: Callable[[str], bool] = lambda _name: True,
) -> tuple[list[TopicView], bool]:
    """A page of topics in the order of their names, and whether there are more.

    The server's own topics are listed only if the prefix asks for them.
    """
    names_from = engine.registry.names_from(prefix, after)
    found = (name for name in names_from if begins(name, (prefix,)) and allowed(name))
    names = list(islice(found, page_size + 1))
    topics = [engine.registry.topics[name] for name in names[:page_size]]
    views = [_topic_view(engine, topic, touch=touch) for topic in topics]
    return views, len(names) > page_size


def _topic_view(engine: Engine, topic: Topic, *, touch: bool) -> TopicView:
    name, now_ms = topic.name, engine.clock.now_ms()
    live = topic.at(now_ms)
    if touch:
        engine.recency.touch(name)
    queue = engine.writer(name).partition.queues.get(name)
    return TopicView(
        name,
        topic.config,
        topic.head_seq,
        live.earliest_seq,
        topic.head_seq + 1,
        live.count,
        live.size_bytes,
        topic.told_epoch,
        engine.recency.priority(name),
        topic.last_write_ms,
        engine.recency.last_ms(name),
        queue.counts(now_ms) if queue is not None else None,
    )


def scheduler_view(
    engine: Engine, topic: str | None = None, shown: Callable[[str], bool] = lambda _name: True
) -> dict[str, Any]:
    """What waits to be pushed, and why; details for one topic, or `TopicNotFound`.

    Routers to topics that may not be shown are omitted.
    """
    if topic is not None:
        engine.topic(topic)
    view = engine.turns.view(topic)
    journal = engine.journal
    view["log"] = {
        "queue_depth": journal.queue_depth,
        "waiting_bytes": engine.waiting_bytes,
        "written_by": journal.written_by,
        "failures": journal.counters.failures,
        "last_failure": journal.counters.last_failure,
    }
    view["storage"] = storage_view(engine)
    view["partitions"] = partitions_view(engine)
    if engine.snapshotter is not None:
        view["compaction"] = engine.snapshotter.view()
    if topic is not None:
        routers = [each for each in engine.forwarder.view(topic) if shown(each["dest"])]
        view["topic"] |= _push_of(engine, topic, view["topic"], routers)
    return view


def partitions_view(engine: Engine) -> dict[str, Any]:
    """How many partitions serve, and why others do not: the damaged file and position."""
    statuses = engine.partitions()
    serving = sum(status.phase is Phase.SERVING for status in statuses)
    failed = [
        {
            "partition": status.partition,
            "reason": status.reason,
            "file": status.file,
            "offset": status.offset,
        }
        for status in statuses
        if status.phase is Phase.FAILED
    ]
    return {"total": len(statuses), "serving": serving, "failed": failed}


def storage_view(engine: Engine) -> dict[str, int]:
    """The bytes of records in memory, and the damage found since the start."""
    return {
        "hot_bytes": engine.registry.hot_bytes,
        "hot_bytes_limit": engine.hot.bytes_max,
        "spilled_bytes": engine.hot.spilled_bytes,
        "damaged_snapshots": len(engine.recovery.damaged_snapshots),
        "missing_segments": len(engine.recovery.missing_segments),
        "unreadable_reads": engine.cold.failures,
        "failed_partitions": sum(each.phase is Phase.FAILED for each in engine.partitions()),
    }


def _push_of(
    engine: Engine, topic: str, turn: dict[str, Any], routers: list[dict[str, Any]]
) -> dict[str, Any]:
    """The watchers a topic is pushed to, and their progress."""
    behind = engine.watchers.behind(topic)
    waits = [text.format(count) for text, count in zip(_WAITS, behind, strict=True) if count]
    waits += [f"router {each['router']}: {each['reason']}" for each in routers if each["behind"]]
    reason = turn["reason"]
    if waits and turn["standing"] == Standing.ABSENT.value:
        reason = "; ".join(waits)
    return {
        "reason": reason,
        "watchers": engine.watchers.count(topic),
        "watchers_behind": sum(behind),
        "routers": routers,
    }
