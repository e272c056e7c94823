"""Warehouses on each database, all on one Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark.one import one_spark
from tests.integration.spark.refresh.place import SparkPlace

NUMBERS = count()


@pytest.fixture(scope="session", autouse=True)
def started_spark() -> None:
    """Start the shared Spark before the first test.

    In a fresh checkout that builds the class archive as well, for a minute or two. It looked as if
    the first test were slow, and only on SQLite, whose tests come first.
    """
    one_spark()


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
