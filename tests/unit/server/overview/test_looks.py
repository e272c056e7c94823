"""What is shown of a warehouse that answers late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.kernel.errors import PenstockError
from penstock.protocol.errors import NoWarehouse
from penstock.protocol.own_topics import part_topic
from penstock.protocol.part_answers import AWAY_AFTER_MS
from penstock.server.overview import looks
from penstock.server.overview.looks import TablesLook
from penstock.testing import ManualClock
from tests.unit.server.fakes import run, serving


class Desk:
    """A warehouse that answers while it is let."""

    is_open = True

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.trouble: PenstockError | None = None

    async def look(self, _work: Any) -> TablesLook:
        await self.answers.wait()
        if self.trouble is not None:
            raise self.trouble
        return TablesLook(1, "ok")


def test_a_short_delay_shows_the_last_answer_and_a_long_one_that_it_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looks, "WAREHOUSE_S", 0.01)

    async def test() -> None:
        clock = ManualClock(now_ms=5_000_000)
        async with serving(clock=clock) as client:
            context, desk = client.application.context, Desk()
            context.find_tables = lambda: desk  # type: ignore[assignment, return-value]
            soon = context.looks.tables_soon
            assert await soon() is None, "it was not asked for long"
            desk.answers.set()
            first = await soon()
            assert first is not None
            assert first.trouble is None
            desk.answers.clear()
            clock.advance(3_600_000)
            assert await soon() == first, "nobody asked for an hour"
            clock.advance(AWAY_AFTER_MS)
            late = await soon()
            assert late is not None
            assert late.trouble == "the warehouse has not answered for 5 s"
            desk.answers.set()
            assert await soon() == first

    run(test)


def test_a_warehouse_that_says_what_is_wrong_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "WAREHOUSE_S", 0.01)

    async def test() -> None:
        clock = ManualClock(now_ms=5_000_000)
        async with serving(clock=clock) as client:
            context, desk = client.application.context, Desk()
            context.find_tables = lambda: desk  # type: ignore[assignment, return-value]
            desk.trouble = NoWarehouse()
            desk.answers.set()
            told = await context.looks.tables_soon()
            assert told is not None
            assert told.trouble == NoWarehouse().message
            desk.trouble = None
            desk.answers.clear()
            clock.advance(AWAY_AFTER_MS)
            assert await context.looks.tables_soon() is None, "it was not asked for long"

    run(test)


def test_nothing_is_kept_of_parts_whose_topics_are_gone() -> None:
    async def test() -> None:
        async with serving() as client:
            found = client.application.context.looks
            for name in ("ingest.a", "ingest.b"):
                await client.engine.put_topic(part_topic(name), {})
                assert await found.ledger(name) is not None
            await client.engine.routers.drop_topic(part_topic("ingest.a"), if_empty=False)
            await client.engine.put_topic(part_topic("ingest.c"), {})
            await found.ledger("ingest.c")
            assert set(found.ledgers) == {"ingest.b", "ingest.c"}

    run(test)
