from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Client
from penstock.spark.link import connect
from penstock.spark.topics.source import register
from tests.integration.spark.one import one_spark
from tests.integration.spark.topics.place import new_topic, topic_server, url_of


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    with connect(one_spark().url) as session:
        register(session)
        yield session


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
