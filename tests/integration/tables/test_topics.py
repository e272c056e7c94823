"""Tables that read topics of a real server: contents equal the query at the recorded seq."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.app.tables import TOPICS, Warehouse
from penstock.client import Client, Record
from penstock.kernel.errors import Conflict, Rejected
from penstock.protocol.errors import InvalidTable, SourceExists, SourceNotFound, TableInUse
from penstock.tables.core.frontier import TopicPosition
from penstock.tables.core.history import ReasonCode
from penstock.tables.engine import Factory
from tests.conformance.servers import ServerProcess
from tests.integration.tables.place import Place

SCHEMA = "id BIGINT, plant STRING, kwh DOUBLE"


@pytest.fixture(scope="module")
def topic_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path_factory.mktemp("topics"))
    try:
        yield process.start()
    finally:
        process.close()


@pytest.fixture
def topics(topic_server: ServerProcess) -> Iterator[Client]:
    with Client(topic_server.address.url) as client:
        for row in list(client.list_topics()):
            client.delete_topic(row.topic)
        yield client


@pytest.fixture
def serial(places: Callable[..., Place]) -> Place:
    return places("sqlite", parallel_refresh_mode="off", topics_poll_ms=20)


def write(topics: Client, topic: str, *rows: Any, meta: Any = None) -> int:
    records = [Record(row, meta=meta) for row in rows]
    return topics.write(topic, records, create=True).last_seq


def declare(warehouse: Warehouse, topics: Client, topic: str, **more: Any) -> None:
    warehouse.declare_topic(topic, SCHEMA, url=topics.settings.url, **more)


def position(place: Place, table: str, topic: str) -> TopicPosition:
    found = place.frontiers()[table][0][f"topics.{topic}"]
    assert isinstance(found, TopicPosition)
    return found


def reach(place: Place, table: str, topic: str, seq: int) -> None:
    place.until(lambda: position(place, table, topic).seq == seq, f"seq {seq}")


def test_a_table_follows_a_topic_and_records_up_to_where(serial: Place, topics: Client) -> None:
    warehouse = serial.warehouse
    declare(warehouse, topics, "readings")
    warehouse.create(
        "per_plant", "SELECT plant, sum(kwh) AS kwh FROM topics.readings GROUP BY plant",
        schedule="20ms",
    )  # fmt: skip
    last_seq = write(topics, "readings", {"id": 1, "plant": "a", "kwh": 2.5})
    with warehouse.coordinator():
        serial.until(lambda: "per_plant" in serial.frontiers() and serial.rows("per_plant"))
        assert serial.rows("per_plant") == {("a", 2.5): 1}
        assert position(serial, "per_plant", "readings").seq == last_seq
        for number in range(2, 6):
            last_seq = write(topics, "readings", {"id": number, "plant": "a", "kwh": 1})
            reach(serial, "per_plant", "readings", last_seq)
            assert serial.rows("per_plant") == {("a", 1.5 + number): 1}
        refreshes = len(warehouse.history())
        serial.until(lambda: warehouse.health().state.value == "ok")
        assert warehouse.refresh("per_plant").detail == "nothing it reads has changed"
        assert len(warehouse.history()) == refreshes


def test_with_a_key_the_last_record_counts_and_deletes_delete(
    serial: Place, topics: Client
) -> None:
    warehouse = serial.warehouse
    declare(warehouse, topics, "meters", key="id")
    warehouse.create("meters", "SELECT * FROM topics.meters")
    write(topics, "meters", {"id": 1, "plant": "a"}, {"id": 2, "plant": "b"}, {"plant": "nobody"})
    assert warehouse.refresh("meters").ok
    assert serial.rows("meters") == {(1, "a", None): 1, (2, "b", None): 1}
    write(topics, "meters", {"id": 2, "plant": "c", "kwh": "much"})
    write(topics, "meters", {"id": 1}, meta={"op": "delete"})
    assert warehouse.refresh("meters").ok
    assert serial.rows("meters") == {(2, "c", None): 1}


def test_a_topic_that_is_not_there_yet_is_empty_and_one_made_again_starts_anew(
    serial: Place, topics: Client
) -> None:
    warehouse = serial.warehouse
    declare(warehouse, topics, "late")
    warehouse.create("copy", "SELECT id FROM topics.late")
    assert warehouse.refresh("copy").ok
    assert serial.rows("copy") == {}
    assert position(serial, "copy", "late") == TopicPosition(0, 0)
    write(topics, "late", {"id": 1}, {"id": 2})
    assert warehouse.refresh("copy").ok
    assert serial.rows("copy") == {(1,): 1, (2,): 1}
    first = position(serial, "copy", "late")
    topics.delete_topic("late")
    write(topics, "late", {"id": 3}, {"id": 4})
    assert warehouse.refresh("copy").ok
    assert serial.rows("copy") == {(3,): 1, (4,): 1}
    again = position(serial, "copy", "late")
    assert (again.seq, again.epoch == first.epoch) == (first.seq, False)
    assert warehouse.history("copy", limit=1)[0].reason is ReasonCode.SOURCE_RECREATED


def test_what_left_the_topic_leaves_the_table_with_the_next_refresh_which_says_so(
    serial: Place, topics: Client
) -> None:
    warehouse = serial.warehouse
    declare(warehouse, topics, "short")
    warehouse.create("kept", "SELECT id FROM topics.short", mode="full")
    write(topics, "short", {"id": 1}, {"id": 2}, {"id": 3})
    assert warehouse.refresh("kept").ok
    topics.delete_records("short", before_seq=3)
    write(topics, "short", {"id": 4})
    assert warehouse.refresh("kept").ok
    assert serial.rows("kept") == {(3,): 1, (4,): 1}
    (record, before) = warehouse.history("kept", limit=2)
    assert record.reason_text == "topics.short holds records from seq 3 on"
    assert before.reason_text == ""


def test_a_topic_server_that_is_away_is_retried_and_told(
    places: Callable[..., Place], topics: Client
) -> None:
    hasty = Factory(TOPICS, {"timeout_s": 0.2})
    place = places("sqlite", parallel_refresh_mode="off", topics_poll_ms=20, topics=hasty)
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.declare_topic("far", SCHEMA, url="http://127.0.0.1:9")
    warehouse.create("near", "SELECT id FROM raw", schedule="20ms")
    warehouse.create("far", "SELECT id FROM topics.far", schedule="20ms")
    with warehouse.coordinator():
        place.until(lambda: warehouse.why("far").reason.value == "suspended")
        place.until(lambda: "near" in place.frontiers())
        place.until(lambda: warehouse.pool().topics_trouble)
        assert warehouse.health().state.value == "degraded"
    assert warehouse.history("near")[0].outcome.value == "succeeded"


def test_a_declaration_is_checked_kept_and_taken_back(place: Place, topics: Client) -> None:
    warehouse = place.warehouse
    with pytest.raises(InvalidTable, match=r"topic 'orders' .line 1, column 15. was not declared"):
        warehouse.create("a", "SELECT * FROM topics.orders")
    declare(warehouse, topics, "orders")
    with pytest.raises(SourceExists):
        declare(warehouse, topics, "orders")
    assert [source.name for source in warehouse.topics()] == ["topics.orders"]
    warehouse.create("a", "SELECT * FROM topics.orders")
    with pytest.raises(TableInUse, match=r"a read .*orders.: drop"):
        warehouse.forget_topic("orders")
    warehouse.drop("a")
    warehouse.forget_topic("orders")
    for missing in (lambda: warehouse.topic("orders"), lambda: warehouse.forget_topic("orders")):
        with pytest.raises(SourceNotFound):
            missing()


def test_other_columns_make_the_tables_that_read_them_anew(place: Place, topics: Client) -> None:
    warehouse = place.warehouse
    declare(warehouse, topics, "orders")
    warehouse.create("a", "SELECT * FROM topics.orders")
    write(topics, "orders", {"id": 1, "plant": "x", "note": "hello"})
    assert warehouse.refresh("a").ok
    warehouse.declare_topic(
        "orders", "id BIGINT, note STRING", url=topics.settings.url, replace=True
    )
    assert warehouse.refresh("a").ok
    assert place.rows("a") == {(1, "hello"): 1}
    assert warehouse.history("a", limit=1)[0].reason is ReasonCode.QUERY_CHANGED
    assert issubclass(SourceExists, Conflict)
    assert issubclass(SourceNotFound, Rejected)


def test_a_diamond_over_a_topic_reads_one_seq_in_both_branches(
    serial: Place, topics: Client
) -> None:
    warehouse = serial.warehouse
    declare(warehouse, topics, "orders")
    warehouse.create("left_side", "SELECT id, kwh FROM topics.orders")
    warehouse.create("right_side", "SELECT id, plant FROM topics.orders")
    warehouse.create(
        "joined", "SELECT count(*) AS n FROM left_side JOIN right_side USING (id)",
        schedule="20ms",
    )  # fmt: skip
    with warehouse.coordinator():
        for number in range(1, 6):
            write(topics, "orders", {"id": number})
            serial.until(lambda: "joined" in serial.frontiers())
            reach(serial, "left_side", "orders", number)
    known = serial.frontiers()
    left, right = known["left_side"][0], known["right_side"][0]
    assert left == right
    assert serial.rows("joined") == {(5,): 1}
