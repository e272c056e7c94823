"""Requests for tables while the catalog is away: refused, unless they were already taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from penstock.kernel.errors import Unknown
from penstock.lake.database import CatalogAway
from penstock.protocol.errors import Outcome, WarehouseAway
from penstock.server.api.errors import error_answer
from penstock.server.api.warehouse import TablesDesk, WarehousePlace, wait_for


class Parked:
    """A call whose task is cancelled when the server stops."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None

    @contextmanager
    def parked(self) -> Iterator[None]:
        self.task = asyncio.current_task()
        yield


class Nothing:
    """A warehouse that has nothing."""

    together = nullcontext


def desk() -> TablesDesk:
    return TablesDesk(WarehousePlace("sqlite:nowhere"), Nothing)  # type: ignore[arg-type]


def raises(error: Exception) -> Callable[[Any], Any]:
    def work(_warehouse: Any) -> Any:
        raise error

    return work


def test_a_catalog_that_is_away_surely_took_nothing() -> None:
    tables = desk()
    with pytest.raises(WarehouseAway) as caught:
        asyncio.run(tables.do(raises(CatalogAway("the catalog cannot be reached"))))
    assert caught.value.outcome is Outcome.DEFINITE
    assert error_answer(caught.value).status == 503


def test_a_commit_of_the_catalog_whose_connection_broke_is_unknown() -> None:
    with pytest.raises(Unknown) as caught:
        asyncio.run(desk().do(raises(Unknown("whether the commit landed is unknown"))))
    assert error_answer(caught.value).status == 504


async def never(_timeout_s: float) -> None:
    await asyncio.Event().wait()


def test_a_wait_for_what_was_asked_for_does_not_fail_with_the_catalog() -> None:
    away = raises(CatalogAway("the catalog cannot be reached"))
    found = asyncio.run(wait_for(Parked(), desk(), away, 1_000, never))  # type: ignore[arg-type]
    assert found is None


def test_a_wait_that_the_servers_end_cuts_short_is_not_a_refusal() -> None:
    async def main() -> Any:
        call = Parked()
        wait = wait_for(call, desk(), lambda _: None, 60_000, never)  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(wait)
        while call.task is None:
            await asyncio.sleep(0)
        call.task.cancel()
        return await waiting

    assert asyncio.run(main()) is None


class Turns(TablesDesk):
    """Counts how often a thread is asked."""

    def __init__(self) -> None:
        super().__init__(WarehousePlace("sqlite:nowhere"), Nothing)  # type: ignore[arg-type]
        self.turns = 0

    def _do(self, work: Callable[[Any], Any]) -> Any:
        self.turns += 1
        return super()._do(work)


def test_what_is_looked_at_at_the_same_time_takes_one_turn_of_a_thread() -> None:
    async def look() -> tuple[int, list[Any]]:
        tables = Turns()
        wrong = raises(CatalogAway("the catalog cannot be reached"))
        found = await asyncio.gather(
            tables.look(lambda _: 1),
            tables.look(wrong),
            tables.look(lambda _: 3),
            return_exceptions=True,
        )
        return tables.turns, found

    turns, (one, away, three) = asyncio.run(look())
    assert (turns, one, three) == (1, 1, 3)
    assert isinstance(away, WarehouseAway)


def test_a_look_that_is_given_up_leaves_the_others_their_answers() -> None:
    async def look() -> int:
        tables = desk()
        given_up = tables.look(raises(CatalogAway("not asked for any more")))
        given_up.send(None)
        other = asyncio.ensure_future(tables.look(lambda _: 2))
        given_up.close()
        return await other

    assert asyncio.run(look()) == 2
