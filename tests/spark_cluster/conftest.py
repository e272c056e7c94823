"""One cluster for all tests here, and one Connect server on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.spark.link import connect
from tests.spark_cluster.cluster import Cluster, Connect, one_cluster, one_connect


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return one_cluster()


@pytest.fixture(scope="session")
def server() -> Connect:
    """The Connect server that all tests share: a test that kills one starts its own."""
    return one_connect()


@pytest.fixture
def spark(server: Connect) -> Iterator[Any]:
    with connect(server.url) as session:
        yield session
