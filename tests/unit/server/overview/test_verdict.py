"""The verdict as a table of cases: facts, and the sentence that a colleague would say."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.protocol.answers import FailedPartition
from penstock.protocol.part_answers import LEVELS
from penstock.server.overview.verdict import (
    NAMED_MAX,
    Facts,
    PartFacts,
    PipelineFacts,
    ServerFacts,
    TableFacts,
    WarehouseFacts,
    verdict,
)

STEADY = ServerFacts()
WIDE = ServerFacts(rung="widen", pressure=0.5, coalesce_ms=7.5, commit_window_ms=2.1)
FRESH = TableFacts("hours", "fresh")
FAILING = TableFacts("weather", "error", "failed, trying again in 24 s: no column temp")
LATE = TableFacts("forecast", "late", "waiting for table:weather", 60_000)
FAILED = FailedPartition(partition=3, reason="damaged", file="1.segment", offset=512)
AWAY = TableFacts("hours", "away", "no coordinator is running")


def tables(*rows: TableFacts, state: str = "ok", text: str = "") -> WarehouseFacts:
    return WarehouseFacts(state, text, rows)


@dataclass(frozen=True)
class Case:
    facts: Facts
    level: str
    sentence: str
    codes: tuple[str, ...] = ()
    line: str = ""


CASES = {
    "nothing but a server": Case(
        Facts(0, STEADY), "ok", "All is well.", line="Pushes go out at once."
    ),
    "the first rung is not felt": Case(
        Facts(0, ServerFacts(rung="coalesce", pressure=0.3)), "ok", "All is well."
    ),
    "tables that are fresh": Case(
        Facts(0, STEADY, warehouse=tables(FRESH, TableFacts("days", "running"))),
        "ok",
        "All is well.",
        line="2 of 2 tables are fresh or being refreshed.",
    ),
    "a pipeline that keeps up": Case(
        Facts(0, STEADY, pipeline=PipelineFacts(behind=1_200, behind_ms=400)),
        "ok",
        "All is well.",
        line="1,200 messages are durable and not in the lake, 400 ms of work.",
    ),
    "a paused table is what somebody wanted": Case(
        Facts(0, STEADY, warehouse=tables(TableFacts("hours", "paused"))), "ok", "All is well."
    ),
    "pressure": Case(
        Facts(0, WIDE),
        "slow",
        "Slower, and nothing is lost.",
        ("pressure",),
        "Commits wait 2.1 ms to carry more, pushes 7.5 ms; nothing is refused and nothing is lost.",
    ),
    "pressure and a bottleneck": Case(
        Facts(0, WIDE, pipeline=PipelineFacts(bottleneck="store")),
        "slow",
        "Slower, and nothing is lost. The bottleneck is store.",
        ("pressure", "bottleneck"),
    ),
    "a bottleneck alone": Case(
        Facts(0, STEADY, pipeline=PipelineFacts(bottleneck="parse")),
        "slow",
        "Slower, and nothing is lost. The bottleneck is parse.",
        ("bottleneck",),
        "",
    ),
    "what the sentence says already is not said again below it": Case(
        Facts(
            0,
            WIDE,
            pipeline=PipelineFacts(bottleneck="parse", behind=7),
            warehouse=tables(FRESH),
        ),
        "slow",
        "Slower, and nothing is lost. The bottleneck is parse.",
        ("pressure", "bottleneck"),
        "Commits wait 2.1 ms to carry more, pushes 7.5 ms; nothing is refused and nothing is lost. "
        "1 of 1 tables are fresh or being refreshed. "
        "7 messages are durable and not in the lake.",
    ),
    "low bands wait": Case(
        Facts(0, WIDE._replace(rung="defer")),
        "slow",
        "Slower, and nothing is lost.",
        ("pressure",),
    ),
    "a held stage, which is then the bottleneck": Case(
        Facts(0, STEADY, pipeline=PipelineFacts(bottleneck="store", held=("store",))),
        "slow",
        "Store is held, and nothing is lost.",
        ("held",),
    ),
    "a stage that is held, and more pressure for it": Case(
        Facts(0, WIDE, pipeline=PipelineFacts(held=("store",))),
        "slow",
        "Store is held, and nothing is lost.",
        ("pressure", "held"),
    ),
    "a late table": Case(
        Facts(0, STEADY, warehouse=tables(FRESH, LATE)),
        "slow",
        "Everything flows. One table is late.",
        ("tables_late",),
        "forecast is late: waiting for table:weather. 1 of 2 tables are fresh or being refreshed.",
    ),
    "watchers that do not read": Case(
        Facts(0, ServerFacts(watchers_stuck=2)),
        "slow",
        "Everything flows. 2 watchers do not keep up.",
        ("watchers_stuck",),
    ),
    "a worker that is silent": Case(
        Facts(0, STEADY, parts=(PartFacts("worker.a-1", "worker", "away", silent_ms=9_000),)),
        "slow",
        "Everything flows. A worker is away.",
        ("part_away",),
    ),
    "more units than workers": Case(
        Facts(0, STEADY, warehouse=tables(FRESH, state="saturated", text="3 units wait")),
        "slow",
        "Everything flows. Tables wait for workers.",
        ("tables_saturated",),
    ),
    "a failing table": Case(
        Facts(0, STEADY, warehouse=tables(FRESH, FAILING)),
        "failing",
        "Everything flows. One table is failing.",
        ("tables_failing",),
        "weather fails: failed, trying again in 24 s: no column temp. "
        "1 of 2 tables are fresh or being refreshed.",
    ),
    "failing tables under load": Case(
        Facts(0, WIDE, warehouse=tables(FAILING, FAILING._replace(name="rain"), LATE)),
        "failing",
        "Slower, and nothing is lost. 2 tables are failing.",
        ("tables_failing", "pressure", "tables_late"),
    ),
    "a partition that failed without a file": Case(
        Facts(0, ServerFacts(failed=(FailedPartition(partition=1, reason="no entry 7"),))),
        "failing",
        "Everything flows. A part of the log is out of service.",
        ("partition_failed",),
        "Partition 1 is out of service: no entry 7.",
    ),
    "a failed partition": Case(
        Facts(0, ServerFacts(partitions=4, failed=(FAILED,))),
        "failing",
        "Everything flows. A part of the log is out of service.",
        ("partition_failed",),
        "Partition 3 is out of service: 1.segment is damaged at offset 512.",
    ),
    "many failed partitions": Case(
        Facts(0, ServerFacts(partitions=8, failed=(FAILED,) * (NAMED_MAX + 1))),
        "failing",
        "Everything flows. A part of the log is out of service.",
        (*("partition_failed",) * NAMED_MAX, "partitions_failed"),
    ),
    "ingest in trouble": Case(
        Facts(0, STEADY, pipeline=PipelineFacts(trouble="Spark is away")),
        "failing",
        "Everything flows. Ingest has trouble.",
        ("pipeline_trouble",),
        "Ingest: Spark is away.",
    ),
    "a part that reports an error": Case(
        Facts(0, STEADY, parts=(PartFacts("ingest.a", "ingest", "failing", "disk full"),)),
        "failing",
        "Everything flows. A part reports an error.",
        ("part_failing",),
    ),
    "writes are refused": Case(
        Facts(0, ServerFacts(rung="refuse", refusing=True, retry_after_ms=800)),
        "refusing",
        "New writes are refused. Nothing that was acknowledged is lost.",
        ("refusing",),
        "New writes are refused and told to try again in 800 ms.",
    ),
    "a full disk": Case(
        Facts(0, ServerFacts(read_only="no space left", refusing=True)),
        "refusing",
        "New writes are refused. Nothing that was acknowledged is lost.",
        ("read_only",),
        "The log takes no writes: no space left.",
    ),
    "a silent part": Case(
        Facts(0, STEADY, parts=(PartFacts("ingest.a", "ingest", "away", silent_ms=12_000),)),
        "away",
        "ingest.a is away. Nothing that was acknowledged is lost.",
        ("part_away",),
        "ingest.a has not reported for 12 s.",
    ),
    "two silent parts, and worse than a failing table": Case(
        Facts(
            0,
            STEADY,
            parts=(
                PartFacts("ingest.a", "ingest", "away", silent_ms=12_000),
                PartFacts("tables.a", "tables", "away", silent_ms=6_000),
                PartFacts("tables.b", "tables", "ended"),
            ),
            warehouse=tables(FAILING),
        ),
        "away",
        "2 parts are away. Nothing that was acknowledged is lost.",
        ("part_away", "part_away", "tables_failing"),
    ),
    "no coordinator": Case(
        Facts(0, STEADY, warehouse=tables(AWAY, state="not_running", text="none holds the lease")),
        "away",
        "Topics are served. Tables are not refreshed.",
        ("tables_away",),
        "Tables are not refreshed: none holds the lease.",
    ),
    "no coordinator, and no table that needs one": Case(
        Facts(0, STEADY, warehouse=tables(FRESH, state="not_running")), "ok", "All is well."
    ),
    "the warehouse does not answer": Case(
        Facts(0, STEADY, warehouse_away="the warehouse has not answered for 2 s"),
        "away",
        "Topics are served. Tables are not refreshed.",
        ("warehouse_away",),
    ),
    "the server replays its log": Case(
        Facts(0, ServerFacts(replay_progress=0.4)),
        "away",
        "The server reads its log: 40% done.",
        ("replaying",),
    ),
    "the server ends": Case(
        Facts(0, ServerFacts(draining=True)),
        "away",
        "The server is shutting down.",
        ("draining",),
    ),
    "the server does not answer": Case(
        Facts(0, None, "connection refused", warehouse=tables(FAILING)),
        "away",
        "The server does not answer.",
        ("server_away",),
        "The server does not answer: connection refused.",
    ),
}


def test_a_failed_partition_is_in_the_facts_as_data() -> None:
    (fact,) = verdict(Facts(0, ServerFacts(failed=(FAILED,)))).facts
    assert fact.failed == FAILED


@pytest.mark.parametrize("name", CASES)
def test_the_sentence_of_each_case(name: str) -> None:
    case = CASES[name]
    found = verdict(case.facts)
    assert (found.level, found.sentence) == (case.level, case.sentence)
    assert tuple(fact.code for fact in found.facts) == case.codes
    if case.line:
        assert found.line == case.line


def test_facts_have_the_worst_first_and_every_level_occurs() -> None:
    levels = [[fact.level for fact in verdict(case.facts).facts] for case in CASES.values()]
    for found in levels:
        assert found == sorted(found, key=LEVELS.index, reverse=True)
    assert {level for found in levels for level in found} | {"ok"} == set(LEVELS)


@pytest.mark.parametrize("more", [0, 1])
def test_many_tables_are_named_up_to_a_number(more: int) -> None:
    rows = tuple(TableFacts(f"t{number}", "error") for number in range(NAMED_MAX + more))
    text = verdict(Facts(0, STEADY, warehouse=WarehouseFacts(tables=rows))).facts[0].text
    assert text == f"t0, t1, t2{' and 1 more' if more else ''} fail."
