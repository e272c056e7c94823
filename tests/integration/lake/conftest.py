"""A lake on each database, and DuckDB beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.lake.catalog import Catalog, open_catalog
from tests.integration.lake.duck import Duck


@pytest.fixture
def address(new_address: Callable[[str], str], kind: str) -> str:
    return new_address(kind)


@pytest.fixture
def catalog(address: str, tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(address, str(tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
def duck(catalog: Catalog, address: str) -> Iterator[Duck]:
    with Duck(address) as opened:
        yield opened
