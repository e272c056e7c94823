"""The verdict: one sentence about everything, from plain facts, by one pure function.

`GET /v0/verdict`, `penstock status`, `penstock top` and the dashboard show its answer.

>>> verdict(Facts(at=0, server=ServerFacts())).sentence
'All is well.'
>>> slow = ServerFacts(rung="widen", pressure=0.55, commit_window_ms=3.2)
>>> verdict(Facts(at=0, server=slow, pipeline=PipelineFacts(bottleneck="store"))).sentence
'Slower, and nothing is lost. The bottleneck is store.'
>>> verdict(Facts(at=0, server=None, away="connection refused")).level
'away'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.kernel.units import format_ms
from penstock.protocol.answers import FailedPartition
from penstock.protocol.part_answers import LEVELS, Verdict, VerdictFact

NAMED_MAX: Final = 3
"""How many names a fact lists; the others are counted."""
_LATE_STATES: Final = frozenset({"stalled", "not_running"})


class ServerFacts(NamedTuple):
    """The server itself. `replay_progress` is below 1 while it reads its log."""

    rung: str = "steady"
    pressure: float = 0.0
    coalesce_ms: float = 0.0
    commit_window_ms: float = 0.0
    refusing: bool = False
    retry_after_ms: int | None = None
    read_only: str | None = None
    """Why the log takes no writes."""
    replay_progress: float = 1.0
    draining: bool = False
    partitions: int = 1
    failed: tuple[FailedPartition, ...] = ()
    """Partitions that are out of service."""
    watchers_stuck: int = 0
    """Watchers that do not read what they were sent."""


class PartFacts(NamedTuple):
    """A part other than the server."""

    part: str
    kind: str
    state: str
    text: str = ""
    silent_ms: int = 0


class PipelineFacts(NamedTuple):
    """The ingest pipeline, if one runs."""

    bottleneck: str | None = None
    behind: int | None = None
    behind_ms: int | None = None
    held: tuple[str, ...] = ()
    trouble: str | None = None


class TableFacts(NamedTuple):
    """A stream table: its state as the graph has it, and why."""

    name: str
    state: str
    text: str = ""
    stale_by_ms: int | None = None


class WarehouseFacts(NamedTuple):
    """The stream tables and their coordinator; `state` is that of `GET /v0/warehouse`."""

    state: str = "ok"
    text: str = ""
    tables: tuple[TableFacts, ...] = ()


class Facts(NamedTuple):
    """All that the verdict depends on. `server` is None if it does not answer; `away` says why."""

    at: int
    server: ServerFacts | None
    away: str = ""
    parts: tuple[PartFacts, ...] = ()
    pipeline: PipelineFacts | None = None
    warehouse: WarehouseFacts | None = None
    warehouse_away: str | None = None


def verdict(facts: Facts) -> Verdict:
    """How things stand."""
    found = sorted(_facts(facts), key=lambda fact: -LEVELS.index(fact.level))
    level = found[0].level if found else "ok"
    sentence = _sentence(level, found, facts)
    return Verdict(
        at=facts.at,
        level=level,
        sentence=sentence,
        line=_line(sentence, found, facts),
        facts=found,
    )


# Facts -------------------------------------------------------------------------------------------


def _facts(facts: Facts) -> Iterator[VerdictFact]:
    if facts.server is None:
        yield _fact("server_away", "away", f"The server does not answer: {facts.away}.", "/cluster")
        return
    yield from _of_server(facts.server)
    for part in facts.parts:
        yield from _of_part(part)
    if facts.pipeline is not None:
        yield from _of_pipeline(facts.pipeline)
    if facts.warehouse_away is not None:
        yield _fact("warehouse_away", "away", f"{facts.warehouse_away}.", "/tables")
    if facts.warehouse is not None:
        yield from _of_warehouse(facts.warehouse)


def _of_server(server: ServerFacts) -> Iterator[VerdictFact]:
    if server.draining:
        yield _fact("draining", "away", "The server is shutting down.", "/cluster")
    if server.replay_progress < 1.0:
        text = f"The server reads its log: {server.replay_progress:.0%} done."
        yield _fact("replaying", "away", text, "/cluster")
    if server.read_only is not None:
        text = f"The log takes no writes: {server.read_only}."
        yield _fact("read_only", "refusing", text, "/cluster")
    elif server.refusing:
        again = server.retry_after_ms
        when = "" if again is None else f" and told to try again in {format_ms(again)}"
        yield _fact("refusing", "refusing", f"New writes are refused{when}.", "/topics")
    for failed in server.failed[:NAMED_MAX]:
        text = _sentence_of(failed.text())
        yield _fact("partition_failed", "failing", text, "/cluster", failed=failed)
    if len(server.failed) > NAMED_MAX:
        text = f"{len(server.failed)} of {server.partitions} partitions are out of service."
        yield _fact("partitions_failed", "failing", text, "/cluster")
    if server.rung in _RUNGS:
        yield _fact("pressure", "slow", _RUNGS[server.rung](server), "/")
    if server.watchers_stuck:
        watchers = _count(server.watchers_stuck, "watcher does", "watchers do")
        text = f"{watchers} not read what was sent."
        yield _fact("watchers_stuck", "slow", text, "/topics")


def _commits_wait(server: ServerFacts) -> str:
    return (
        f"Commits wait {format_ms(server.commit_window_ms)} to carry more, pushes "
        f"{format_ms(server.coalesce_ms)}; nothing is refused and nothing is lost."
    )


_RUNGS: Final[dict[str, Callable[[ServerFacts], str]]] = {
    "widen": _commits_wait,
    "defer": lambda server: f"{_commits_wait(server)} Topics of low priority wait.",
}
"""The rungs that are called slow: `coalesce` is not felt."""


def _of_part(part: PartFacts) -> Iterator[VerdictFact]:
    if part.state == "away":
        level = "slow" if part.kind == "worker" else "away"
        text = f"{part.part} has not reported for {format_ms(part.silent_ms)}."
        yield _fact("part_away", level, text, "/cluster")
    elif part.state == "failing":
        yield _fact("part_failing", "failing", f"{part.part}: {part.text}.", "/cluster")


def _of_pipeline(pipeline: PipelineFacts) -> Iterator[VerdictFact]:
    if pipeline.trouble is not None:
        yield _fact("pipeline_trouble", "failing", f"Ingest: {pipeline.trouble}.", "/pipeline")
    for stage in pipeline.held:
        yield _fact("held", "slow", f"Stage {stage} is held by hand.", "/pipeline")
    if pipeline.bottleneck is not None and pipeline.bottleneck not in pipeline.held:
        text = f"The bottleneck is {pipeline.bottleneck}."
        yield _fact("bottleneck", "slow", text, "/pipeline")


def _of_warehouse(warehouse: WarehouseFacts) -> Iterator[VerdictFact]:
    by_state: dict[str, list[TableFacts]] = {}
    for table in warehouse.tables:
        by_state.setdefault(table.state, []).append(table)
    if warehouse.state in _LATE_STATES and by_state.get("away"):
        text = f"Tables are not refreshed: {warehouse.text}."
        yield _fact("tables_away", "away", text, "/tables")
    if failing := by_state.get("error"):
        yield _fact("tables_failing", "failing", _told(failing, "fail"), _link(failing))
    if late := by_state.get("late"):
        yield _fact("tables_late", "slow", _told(late, "late"), _link(late))
    if warehouse.state in ("saturated", "draining"):
        yield _fact(f"tables_{warehouse.state}", "slow", f"Tables: {warehouse.text}.", "/tables")


def _told(tables: Sequence[TableFacts], word: str) -> str:
    """The tables with their reasons, or only their names if there are many."""
    if len(tables) == 1:
        return f"{tables[0].name} {'fails' if word == 'fail' else 'is late'}: {tables[0].text}."
    names = ", ".join(table.name for table in tables[:NAMED_MAX])
    more = f" and {len(tables) - NAMED_MAX} more" if len(tables) > NAMED_MAX else ""
    return f"{names}{more} {'fail' if word == 'fail' else 'are late'}."


def _link(tables: Sequence[TableFacts]) -> str:
    return f"/tables/{tables[0].name}" if len(tables) == 1 else "/tables"


def _fact(
    code: str, level: str, text: str, link: str, *, failed: FailedPartition | None = None
) -> VerdictFact:
    return VerdictFact(code=code, level=level, text=text, link=link, failed=failed)


def _sentence_of(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:].rstrip('.')}."


# The sentence ------------------------------------------------------------------------------------


def _sentence(level: str, found: Sequence[VerdictFact], facts: Facts) -> str:
    """What a colleague would say: how it flows, then the worst thing."""
    codes = {fact.code for fact in found}
    match level:
        case "away":
            return _away(found, facts)
        case "refusing":
            return "New writes are refused. Nothing that was acknowledged is lost."
        case "failing":
            flows = "Slower, and nothing is lost." if codes & _FELT else "Everything flows."
            return f"{flows} {_failing(facts)}"
        case "slow":
            return _slower(codes, facts)
    return "All is well."


_FELT: Final = frozenset({"pressure", "bottleneck", "held"})
"""Facts of level slow that hold records up."""


def _away(found: Sequence[VerdictFact], facts: Facts) -> str:
    if facts.server is None:
        return "The server does not answer."
    code = next(fact.code for fact in found if fact.level == "away")
    if code in ("draining", "replaying"):
        return found[0].text
    if code == "part_away":
        gone = [part.part for part in facts.parts if part.state == "away" and part.kind != "worker"]
        what = gone[0] if len(gone) == 1 else f"{len(gone)} parts"
        verb = "is" if len(gone) == 1 else "are"
        return f"{what} {verb} away. Nothing that was acknowledged is lost."
    return "Topics are served. Tables are not refreshed."


def _failing(facts: Facts) -> str:
    tables = [] if facts.warehouse is None else facts.warehouse.tables
    failing = sum(table.state == "error" for table in tables)
    if facts.server is not None and facts.server.failed:
        return "A part of the log is out of service."
    if facts.pipeline is not None and facts.pipeline.trouble is not None:
        return "Ingest has trouble."
    if failing:
        return f"{_count(failing, 'table is', 'tables are')} failing."
    return "A part reports an error."


def _slower(codes: set[str], facts: Facts) -> str:
    pipeline = facts.pipeline
    if pipeline is not None and pipeline.held:
        return f"{' and '.join(pipeline.held).capitalize()} is held, and nothing is lost."
    if "pressure" in codes or "bottleneck" in codes:
        text = "Slower, and nothing is lost."
        if pipeline is not None and "bottleneck" in codes:
            return f"{text} The bottleneck is {pipeline.bottleneck}."
        return text
    late = 0 if facts.warehouse is None else sum(t.state == "late" for t in facts.warehouse.tables)
    if late:
        return f"Everything flows. {_count(late, 'table is', 'tables are')} late."
    if facts.server is not None and facts.server.watchers_stuck:
        stuck = _count(facts.server.watchers_stuck, "watcher does", "watchers do")
        return f"Everything flows. {stuck} not keep up."
    if "part_away" in codes:
        return "Everything flows. A worker is away."
    return "Everything flows. Tables wait for workers."


def _line(sentence: str, found: Sequence[VerdictFact], facts: Facts) -> str:
    """The line below: what the sentence leaves out in its own words, then how the rest flows."""
    told = [fact.text for fact in found if fact.text not in sentence][:NAMED_MAX]
    if found and found[0].level == "away":
        return " ".join(told)
    rest = filter(None, (_tables_line(facts), _behind_line(facts.pipeline)))
    parts = [*told, *rest][:NAMED_MAX]
    return " ".join(parts) or ("" if found else "Pushes go out at once.")


def _tables_line(facts: Facts) -> str:
    tables = () if facts.warehouse is None else facts.warehouse.tables
    if not tables:
        return ""
    fresh = sum(table.state in ("fresh", "running") for table in tables)
    return f"{fresh} of {len(tables)} tables are fresh or being refreshed."


def _behind_line(pipeline: PipelineFacts | None) -> str:
    if pipeline is None or pipeline.behind is None:
        return ""
    text = f"{_count(pipeline.behind, 'message is', 'messages are')} durable and not in the lake"
    if pipeline.behind and pipeline.behind_ms is not None:
        text += f", {format_ms(pipeline.behind_ms)} of work"
    return f"{text}."


def _count(number: int, one: str, many: str) -> str:
    """A number with its noun.

    >>> _count(1, "table is", "tables are"), _count(1_200, "table is", "tables are")
    ('One table is', '1,200 tables are')
    """
    return f"One {one}" if number == 1 else f"{number:,} {many}"
