"""Warehouses on each database, all on one Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.tables_spark.place import SparkPlace

NUMBERS = count()


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
