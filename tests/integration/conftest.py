"""Databases for catalogs, for every test that asks: files, and databases of one PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.integration.postgres import KINDS, new_database, postgres_server

NUMBERS = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection words of the one PostgreSQL of this run, started by the first who asks."""
    with postgres_server() as words:
        yield words


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes the address of a catalog of some kind that does not exist yet."""

    def make(kind: str) -> str:
        number = next(NUMBERS)
        if kind == "sqlite":
            (tmp_path / str(number)).mkdir()
            return f"sqlite:{tmp_path}/{number}/catalog.sqlite"
        return f"postgres:{new_database(request.getfixturevalue('postgres'), f'test_{number}')}"

    return make
