from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client
from penstock.lake.catalog import Catalog, open_catalog
from penstock.spark.link import SparkLink, connect
from penstock.spark.options import SparkOptions
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import WITH_OUR_CLASSES, one_spark
from tests.integration.spark.topics.place import new_topic, topic_server, url_of


@pytest.fixture(scope="session")
def spark_url(request: pytest.FixtureRequest) -> str:
    return one_spark(getattr(request, "param", WITH_OUR_CLASSES)).url


@pytest.fixture(scope="session")
def spark(spark_url: str) -> Iterator[Any]:
    with connect(spark_url) as session:
        yield session


@pytest.fixture
def link(spark_url: str) -> Iterator[SparkLink]:
    made = SparkLink(SparkOptions(remote=spark_url))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    with topic_server() as server:
        yield url_of(server)


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[Client]:
    with Client(url) as opened:
        yield opened


@pytest.fixture
def topic(client: Client) -> str:
    name = new_topic()
    client.put_topic(name)
    return name


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
        yield opened
