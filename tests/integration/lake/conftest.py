"""A lake on each database, and DuckDB beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.lake.shell import Catalog, open_catalog
from tests.integration.lake.duck import Duck
from tests.integration.postgres import PROGRAMS, postgres_server

KINDS = ("sqlite", "postgres") if PROGRAMS else ("sqlite",)
NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres_server() as words:
        yield words


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def new_address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes the address of a catalog that does not exist yet."""

    def make() -> str:
        number = next(NUMBERS)
        if kind == "sqlite":
            return f"sqlite:{tmp_path}/{number}/catalog.sqlite"
        import psycopg

        words = request.getfixturevalue("server")
        name = f"lake_{number}"
        with psycopg.connect(words, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgres:{words.replace('dbname=postgres', f'dbname={name}')}"

    return make


@pytest.fixture
def address(new_address: Callable[[], str]) -> str:
    return new_address()


@pytest.fixture
def catalog(address: str, tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(address, str(tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
def duck(catalog: Catalog, address: str) -> Iterator[Duck]:
    with Duck(address) as opened:
        yield opened
