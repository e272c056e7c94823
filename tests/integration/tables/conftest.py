"""A warehouse on each database, with DuckDB as the engine and sources that tests write to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.app.tables import Warehouse
from tests.integration.tables.place import Place

NUMBERS = count()


@pytest.fixture
def places(new_address: Callable[[str], str], tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Makes warehouses, each at its own place."""
    made: list[Place] = []

    def make(kind: str = "sqlite", **settings: Any) -> Place:
        home = tmp_path / f"place-{next(NUMBERS)}"
        made.append(Place(new_address(kind), home, **settings))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def place(places: Callable[..., Place], kind: str) -> Place:
    return places(kind)


@pytest.fixture
def warehouse(place: Place) -> Warehouse:
    return place.warehouse
