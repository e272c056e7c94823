"""What an engine shows of itself: its topics, what waits and why, its log and its files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.flow.fairqueue import Standing
from penstock.log.executor import Phase

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
        view["topic"] |= push_of(engine, topic, view["topic"], shown)
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


def push_of(
    engine: Engine, topic: str, turn: dict[str, Any], shown: Callable[[str], bool]
) -> dict[str, Any]:
    """The watchers a topic is pushed to, their progress, and what its push waits for."""
    routers = [each for each in engine.forwarder.view(topic) if shown(each["dest"])]
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
