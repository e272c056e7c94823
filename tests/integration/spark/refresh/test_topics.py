"""A table of a topic and a lake table, by Spark: equal to its query at the seq it was read to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.client import Client, Record
from penstock.tables.core.frontier import TopicPosition
from tests.conformance.servers import ServerProcess
from tests.integration.spark.refresh.place import SparkPlace


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    process = ServerProcess(tmp_path_factory.mktemp("topics"))
    try:
        with Client(process.start().address.url) as client:
            yield client
    finally:
        process.close()


def test_a_topic_is_a_source_like_any_other(
    places: Callable[..., SparkPlace], topics: Client
) -> None:
    place = places(topics_poll_ms=20)
    warehouse = place.warehouse
    place.write("raw", range(5))
    warehouse.declare_topic("readings", "id BIGINT, kwh DOUBLE", url=topics.settings.url)
    warehouse.declare_topic("state", "id BIGINT, lit BOOLEAN", key="id", url=topics.settings.url)
    warehouse.create(
        "used",
        "SELECT r.id, sum(t.kwh) AS kwh FROM raw r JOIN topics.readings t ON t.id = r.id "
        "GROUP BY r.id",
        schedule="20ms",
    )
    warehouse.create("is_lit", "SELECT id FROM topics.state WHERE lit", schedule="20ms")

    def tell(topic: str, *rows: object, meta: object = None) -> None:
        topics.write(topic, [Record(row, meta=meta) for row in rows], create=True)

    with warehouse.coordinator():
        tell("readings", *({"id": n % 7, "kwh": 0.5} for n in range(70)))
        tell("state", {"id": 1, "lit": True}, {"id": 2, "lit": True}, {"id": 1, "lit": False})
        place.until(lambda: seq(place, "used", "readings") == 70, "70 readings")
        assert place.rows("used") == {(n, 5.0): 1 for n in range(5)}
        place.until(lambda: seq(place, "is_lit", "state") == 3, "3 states")
        assert place.rows("is_lit") == {(2,): 1}
        assert rows_read(place, "used", "readings", 70) == 5 + 70
        assert rows_read(place, "is_lit", "state", 3) == 3
        place.write("raw", [6])
        tell("state", {"id": 2}, meta={"op": "delete"})
        place.until(lambda: (6, 5.0) in place.rows("used"), "the lake's part to move")
        place.until(lambda: seq(place, "is_lit", "state") == 4, "the delete")
        assert not place.rows("is_lit")


def seq(place: SparkPlace, table: str, topic: str) -> int:
    known = place.frontiers()
    if table not in known:
        return 0
    found = known[table][0][f"topics.{topic}"]
    assert isinstance(found, TopicPosition)
    return found.seq


def rows_read(place: SparkPlace, table: str, topic: str, seq: int) -> int:
    """What the history says of the refresh that read a topic up to a seq."""
    (found,) = {
        record.rows_read
        for record in place.warehouse.history(table)
        if record.frontier[f"topics.{topic}"][1] == seq
    }
    return found
