"""Requests for tables while the catalog is away: refused, unless they were already taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def desk() -> TablesDesk:
    return TablesDesk(WarehousePlace("sqlite:nowhere"), object)  # type: ignore[arg-type,return-value]


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
