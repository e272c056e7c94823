"""The parts of a deployment, as they last reported themselves.

A part that is silent for five seconds is away. A part that ended in good order said so, and is not
missed. After a restart of the server every part gets five seconds to report again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

import penstock
from penstock.kernel.units import format_ms
from penstock.protocol.own_topics import PARTS_PREFIX
from penstock.protocol.part_answers import (
    AWAY_AFTER_MS,
    GOODBYE_TAG,
    PartReport,
    PartState,
)
from penstock.topics.core.topic import Topic

if TYPE_CHECKING:
    from penstock.server.api.call import Context

SERVER: Final = "server"
_decode: Final = msgspec.json.Decoder(PartReport).decode


class Reported(NamedTuple):
    """The last record of a part's topic: when it came, and what it says."""

    part: str
    at: int | None = None
    report: PartReport | None = None
    ended: bool = False


def parts_of(context: Context) -> list[PartState]:
    """Every part, the server itself first."""
    now_ms = context.engine.clock.now_ms()
    up_ms = context.clock.monotonic_ms() - context.started_ms
    found = [_server(context, now_ms, up_ms)]
    for reported in last_reports(context):
        state = part_state(reported, now_ms=now_ms, up_ms=up_ms)
        if state is not None:
            found.append(state)
    return found


def last_reports(context: Context) -> Iterator[Reported]:
    """What each part said last."""
    registry = context.engine.registry
    for name in list(registry.names_from(PARTS_PREFIX)):
        topic = registry.topics[name]
        yield last_report(topic)


def last_report(topic: Topic) -> Reported:
    """The newest record of a part's topic; anything else than a report counts as silence."""
    part = topic.name.removeprefix(PARTS_PREFIX)
    slot = topic.slot(topic.head_seq)
    if slot is None:
        return Reported(part)
    try:
        report = _decode(slot.record.data)
    except msgspec.DecodeError:
        return Reported(part, slot.ts_ms)
    return Reported(part, slot.ts_ms, report, slot.record.tag == GOODBYE_TAG)


def part_state(reported: Reported, *, now_ms: int, up_ms: int) -> PartState | None:
    """A part by its last report; None while it may still report after the server's start.

    >>> state = part_state(Reported("ingest.a"), now_ms=90_000, up_ms=60_000)
    >>> state.state, state.away_since
    ('away', 30000)
    """
    kind, _, node = reported.part.partition(".")
    report, seen = reported.report, reported.at
    age_ms = up_ms if seen is None else max(0, now_ms - seen)
    if seen is None and up_ms <= AWAY_AFTER_MS:
        return None
    state, text, away_since = _judge(reported, age_ms, now_ms)
    if report is None:
        return PartState(
            part=reported.part, kind=kind, node=node, state=state, text=text, seen=seen,
            age_ms=age_ms, away_since=away_since,
        )  # fmt: skip
    return PartState(
        part=reported.part, kind=kind, node=node, state=state, text=text, pid=report.pid,
        host=report.host, version=report.version, since=report.since, seen=seen, age_ms=age_ms,
        away_since=away_since, behind=report.behind, facts=report.facts,
    )  # fmt: skip


def _judge(reported: Reported, age_ms: int, now_ms: int) -> tuple[str, str, int | None]:
    if reported.ended:
        return "ended", f"ended in good order {format_ms(age_ms)} ago", None
    if age_ms > AWAY_AFTER_MS or reported.report is None:
        since = "since the server started" if reported.at is None else f"for {format_ms(age_ms)}"
        return "away", f"has not reported {since}", now_ms - age_ms
    return reported.report.state, reported.report.text, None


@cache
def _host() -> str:
    return socket.gethostname()


def _server(context: Context, now_ms: int, up_ms: int) -> PartState:
    host = _host()
    rung = context.engine.turns.rung
    return PartState(
        part=f"{SERVER}.{host}", kind=SERVER, node=host, state="ok",
        text=f"pressure {rung.pressure:.2f}, {rung.level.name.lower()}", pid=os.getpid(),
        host=host, version=penstock.__version__, since=now_ms - up_ms, seen=now_ms, age_ms=0,
        facts={"partitions": context.engine.options.partitions, "streams": context.caps.streams},
    )  # fmt: skip
