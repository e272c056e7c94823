"""Warehouses on each database, all on one Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.postgres import PROGRAMS, postgres_server
from tests.integration.tables_spark.place import SparkPlace

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
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    def make(kind: str) -> str:
        number = next(NUMBERS)
        if kind == "sqlite":
            return f"sqlite:{tmp_path}/{number}/catalog.sqlite"
        import psycopg

        words = request.getfixturevalue("server")
        name = f"tables_spark_{number}"
        with psycopg.connect(words, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgres:{words.replace('dbname=postgres', f'dbname={name}')}"

    return make


@pytest.fixture
def places(
    new_address: Callable[[str], str], tmp_path: Path
) -> Iterator[Callable[..., SparkPlace]]:
    """Makes warehouses, each at its own place."""
    made: list[SparkPlace] = []

    def make(kind: str = "sqlite", **settings: Any) -> SparkPlace:
        home = tmp_path / f"place-{next(NUMBERS)}"
        made.append(SparkPlace(new_address(kind), home, **settings))
        return made[-1]

    yield make
    for place in made:
        place.close()
