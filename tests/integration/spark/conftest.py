"""One Spark for all tests here, two for those that write, and a lake with DuckDB beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.catalog import Catalog, open_catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from penstock.spark.link import connect
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import WITH_OUR_CLASSES, one_spark


@pytest.fixture(scope="session")
def embedded(request: pytest.FixtureRequest) -> EmbeddedSpark:
    return one_spark(getattr(request, "param", WITH_OUR_CLASSES))


@pytest.fixture(scope="session")
def spark(embedded: EmbeddedSpark) -> Iterator[Any]:
    with connect(embedded.url) as session:
        yield session


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/catalog.sqlite"


@pytest.fixture
def lake(address: str, tmp_path: Path) -> Iterator[Catalog]:
    with open_catalog(address, str(tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
def duck(lake: Catalog, address: str) -> Iterator[Duck]:
    with Duck(address) as opened:
        opened.run("CALL lake.set_option('data_inlining_row_limit', 3)")
        yield opened
