"""What is worth an event: parts that are lost and back, refreshes that failed, other tariffs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from penstock.protocol.own_topics import part_topic
from penstock.protocol.part_answers import AWAY_AFTER_MS, STATUS_TAG, PartReport, PartState
from penstock.protocol.server_events import ServerEvent
from penstock.server.overview.news import FAILED_MS, PartTeller, RefreshTeller
from penstock.tables.core.history import ReasonCode, RefreshOutcome, RefreshRecord
from penstock.tables.core.model import Mode
from penstock.topics.core.batch import parse_write
from tests.unit.server.fakes import Client, run, serving


def part(state: str = "ok", name: str = "ingest.a", **facts: Any) -> PartState:
    kind, _, node = name.partition(".")
    return PartState(part=name, kind=kind, node=node, state=state, text="", facts=facts)


def kinds(teller: PartTeller, *parts: PartState) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in teller.look(parts)]


def test_a_part_is_lost_once_and_back_once() -> None:
    teller = PartTeller()
    states = ("ok", "away", "away", "failing", "ok", "away", "ok")
    told = [kinds(teller, part(state)) for state in states]
    lost, back = [("part_lost", "ingest.a")], [("part_back", "ingest.a")]
    assert told == [[], lost, [], back, [], lost, back]


def test_a_part_that_ended_in_good_order_or_was_away_before_is_not_told_of() -> None:
    teller = PartTeller()
    assert [kinds(teller, part(state)) for state in ("ok", "ended", "ok")] == [[], [], []]
    away = "worker.a-1"
    assert [kinds(teller, part("away", away)) for _ in range(2)] == [[], []]
    assert kinds(teller, part("ok", away)) == [("part_back", away)]


def test_nothing_is_kept_of_what_is_listed_no_more() -> None:
    teller = PartTeller()
    lost = [{"part": "worker.a-1", "pid": 2, "unit": None, "at": 9}]
    for n in range(3):
        kinds(teller, part(name=f"tables.{n}"), part(name="worker.a-1"))
        kinds(teller, part(name=f"tables.{n}", lost=lost), part(name="worker.a-1"))
    assert kinds(teller) == []
    assert [teller._seen, teller._lost_ms, teller._missing] == [{}, {}, {}]
    tables = RefreshTeller(0)
    for n in range(1, 4):
        tables.look([refresh(f"t{n}", n * FAILED_MS)])
    assert list(tables._failing) == ["t3"]


def test_a_worker_that_died_is_told_and_the_one_in_its_place() -> None:
    teller = PartTeller()

    def look(pid: int, *lost: dict[str, Any], ready: bool = True) -> list[tuple[str, str]]:
        worker = structs.replace(part(name="worker.a-1", ready=ready), pid=pid)
        told = teller.look([part(name="tables.a", lost=list(lost)), worker])
        return [(each.kind, each.text) for each in told]

    before = {"part": "worker.a-1", "pid": 1, "unit": None, "at": 5}
    assert look(2, before) == [], "that was before the first look"
    died = {"part": "worker.a-1", "pid": 2, "unit": "table:t", "at": 9}
    lost = "worker.a-1 ended while it refreshed table:t, process 2: another takes its place."
    assert look(2, before, died) == [("part_lost", lost)]
    assert look(3, before, died, ready=False) == []
    assert look(3, before, died) == [("part_back", "worker.a-1 works again, as process 3.")]
    assert look(3, before, died) == []
    assert look(3, {"at": "unlike"}) == []


def test_other_tariffs_are_told_once_whichever_parts_work_with_them() -> None:
    teller = PartTeller()
    both = ("ingest.a", "ingest.b")

    def look(seq: int | None) -> list[tuple[str, str]]:
        tariffs = None if seq is None else {"space": "prices", "epoch": 1, "seq": seq}
        return kinds(teller, *[part(name=name, tariffs=tariffs) for name in both])

    changed = [("tariff_changed", "prices")]
    assert [look(seq) for seq in (None, 3, 3, 4, None, 4)] == [[], changed, [], changed, [], []]
    fresh = PartTeller()
    first = part(tariffs={"space": "prices", "epoch": 1, "seq": 9})
    assert kinds(fresh, first) == [], "what a part begins with is not a change"


def refresh(
    table: str, at_ms: int, outcome: RefreshOutcome = RefreshOutcome.FAILED, job: int = 1
) -> RefreshRecord:
    return RefreshRecord(
        table=table, unit_key=table, job_id=job, outcome=outcome, configured=Mode.FULL,
        executed=Mode.FULL, reason=next(iter(ReasonCode)), started_at_ms=at_ms - 10,
        finished_at_ms=at_ms, reason_text="no such column\nat line 3",
    )  # fmt: skip


def test_a_refresh_that_failed_is_told_once_with_its_reason() -> None:
    teller = RefreshTeller(since_ms=100)
    old, new = refresh("a", 100, job=0), refresh("a", 101)
    (told,) = teller.look([new, old][:1])
    assert (told.kind, told.name, told.level) == ("refresh_failed", "a", "bad")
    assert told.text == "The refresh of a failed after 10 ms: no such column at line 3"
    assert teller.look([new]) == []
    same_time = refresh("b", 101)
    assert [each.name for each in teller.look([same_time, new])] == ["b"]


def test_what_failed_before_the_server_started_is_not_told() -> None:
    assert RefreshTeller(since_ms=100).look([refresh("a", 99)]) == []


def test_a_table_that_keeps_failing_is_told_of_once_a_minute_and_again_after_a_success() -> None:
    teller = RefreshTeller(since_ms=0)
    steps = [(1, "failed"), (2, "failed"), (3, "succeeded"), (4, "failed"), (5, "skipped"),
             (6, "failed"), (4 + FAILED_MS, "failed")]  # fmt: skip
    told = [
        at_ms
        for at_ms, outcome in steps
        if teller.look([refresh("a", at_ms, RefreshOutcome(outcome), job=at_ms)])
    ]
    assert told == [1, 4, 4 + FAILED_MS]


class FakeDesk:
    """A warehouse with a history, open already."""

    is_open = True

    def __init__(self, *records: RefreshRecord) -> None:
        self.records = [*records]

    async def do(self, work: Callable[[Any], Any]) -> Any:
        return work(self)

    def history(self, *, limit: int) -> list[RefreshRecord]:
        return self.records[:limit]


async def report(client: Client, seq: int) -> None:
    """A report of an ingest part."""
    facts = {"tariffs": {"space": "prices", "epoch": 1, "seq": seq}}
    told = PartReport(at=1, since=1, pid=1, host="h", version="1", facts=facts)
    body = msgspec.json.encode({"records": [{"data": told, "tag": STATUS_TAG}]})
    await client.engine.append(part_topic("ingest.a"), parse_write(body))


def test_the_server_tells_what_it_learns_of_parts_and_tables() -> None:
    async def test() -> None:
        async with serving() as client:
            context = client.application.context
            context.sampler.stop()
            now_ms = context.engine.clock.now_ms()
            desk = FakeDesk(refresh("t", now_ms + 10_000))
            context.find_tables = lambda: desk  # type: ignore[assignment,return-value]

            def told() -> list[ServerEvent]:
                return [event for event in context.events.page().events if event.name]

            await report(client, 1)
            context.news.look(0)
            await report(client, 2)
            context.news.look(0)
            await asyncio.gather(*context.tasks)
            assert [event.kind for event in told()] == ["refresh_failed", "tariff_changed"]
            clock = context.engine.clock
            clock.go_on_from(clock.now_ms() + AWAY_AFTER_MS + 1)
            context.news.look(0)
            await report(client, 2)
            context.news.look(0)
            assert [event.kind for event in told()][:2] == ["part_back", "part_lost"]
            assert told()[0].facts == {"node": "a"}

    run(test)
