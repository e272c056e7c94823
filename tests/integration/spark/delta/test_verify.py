"""Spark compares tables with their queries: over a topic, with ties, and rows that differ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client import Client, Record
from tests.conformance.servers import ServerProcess
from tests.integration.spark.delta.shop import Shop


@pytest.fixture
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    process = ServerProcess(tmp_path_factory.mktemp("topics"))
    try:
        with Client(process.start().address.url) as client:
            yield client
    finally:
        process.close()


@pytest.mark.slow
def test_contents_are_compared_with_the_query_at_their_frontier(shop: Shop, topics: Client) -> None:
    shop.warehouse.declare_topic("meters", "id BIGINT, n BIGINT", url=topics.settings.url)
    shop.run(
        "CREATE TABLE a AS SELECT i AS id, i % 3 AS k, i / 7.0::DOUBLE AS x FROM range(60) t(i)"
    )
    shop.create(
        "spread", "WITH b AS (SELECT k, x FROM a) SELECT k, sum(x), stddev(x) FROM b GROUP BY k"
    )
    shop.create("first", "SELECT id, k FROM a ORDER BY k LIMIT 5")
    shop.create("read", "SELECT m.id, m.n, a.k FROM topics.meters m JOIN a ON a.id = m.id")
    topics.write("meters", [Record({"id": i, "n": i}) for i in range(9)], create=True)
    shop.refresh()
    shop.run("DELETE FROM a WHERE id < 4", "UPDATE a SET x = x * 3 WHERE id % 7 = 0")
    topics.write("meters", [Record({"id": 9, "n": 1})])
    shop.refresh()
    topics.write("meters", [Record({"id": 11, "n": 1})])
    shop.run("DELETE FROM a WHERE id = 8")
    for name in shop.names:
        found = shop.warehouse.verify(name)
        assert found.is_same, (name, found)
    shop.run("UPDATE read SET n = 100 WHERE id = 5")
    found = shop.warehouse.verify("read")
    assert (found.missing_rows, found.surplus_rows) == (((5, 5, 2),), ((5, 100, 2),))
