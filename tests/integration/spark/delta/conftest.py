"""A warehouse on the Spark of all tests, with DuckDB as the writer of its sources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.lake.catalog import Catalog
from penstock.spark.jvm.embedded import EmbeddedSpark
from tests.integration.lake.duck import Duck
from tests.integration.spark.delta.shop import Shop


@pytest.fixture
def shop(embedded: EmbeddedSpark, address: str, lake: Catalog, duck: Duck) -> Iterator[Shop]:
    made = Shop(address, lake, duck, {"remote": embedded.url})
    yield made
    made.close()
