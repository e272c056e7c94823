"""The same rules of permits on a real PostgreSQL, where there is one on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from penstock.tables.coordinator.tokens import SqlTokenPool
from tests.integration.postgres import PROGRAMS
from tests.tokens import Permits
from tests.unit.tables.coordinator import test_tokens as shared

NAMES = count()

if PROGRAMS:
    # Where PostgreSQL is installed these run; where it is not there is nothing to collect.
    test_permits_are_bounded = shared.test_permits_are_all_or_nothing_and_bounded
    test_giving_back_more = shared.test_giving_back_more_than_held_is_an_error_and_changes_nothing
    test_reconcile = shared.test_reconcile_restores_exactly_the_permits_of_the_dead
    test_moving_no_permit = shared.test_moving_no_permit_is_refused

    def test_racing_connections_never_hold_more_than_the_pool(transact: Any) -> None:
        shared.race_for_permits(SqlTokenPool(transact, "race", 3, parameter="%s"))


@pytest.fixture
def transact(postgres: str) -> Callable[[], Any]:
    import psycopg

    @contextmanager
    def transaction() -> Iterator[Any]:
        with psycopg.connect(postgres) as connection, connection.cursor() as cursor:
            yield cursor

    return transaction


@pytest.fixture
def make_pool(transact: Callable[[], Any]) -> Callable[[int], Permits]:
    name = f"pool-{next(NAMES)}"
    return lambda size: SqlTokenPool(transact, name, size, parameter="%s")
