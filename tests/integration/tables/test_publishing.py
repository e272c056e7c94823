"""Tables that push: what a topic holds is the table, change by change, each snapshot once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.lake.expire import expire
from penstock.protocol.errors import InvalidTable, PublishRefused, TableCycle
from penstock.tables.coordinator import publisher
from penstock.tables.coordinator.publisher import publications
from penstock.tables.coordinator.upkeep import forget_feeds
from penstock.tables.store import TableStore
from tests.conformance.servers import ServerProcess
from tests.integration.tables.place import Place
from tests.integration.tables.published import parts, records, replayed

COUNTS = "SELECT id % 3 AS k, count(*) AS n FROM raw GROUP BY id % 3"


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
        client.put_topic("out")
        yield client


@pytest.fixture
def serial(places: Callable[..., Place]) -> Place:
    return places("sqlite", parallel_refresh_mode="off", delta=True)


def create(place: Place, topics: Client, name: str = "counts", query: str = COUNTS) -> None:
    url = topics.settings.url
    place.warehouse.create(name, query, schedule="20ms", publish="out", publish_url=url)


def published(place: Place, topics: Client, name: str = "counts") -> None:
    """Wait until the topic stands for the table's contents."""
    place.until(lambda: name in place.frontiers())
    place.until(lambda: replayed(records(topics, "out")) == place.rows(name), "the topic to follow")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_topic_follows_a_table_change_by_change(
    kind: str, places: Callable[..., Place], topics: Client
) -> None:
    place = places(kind, parallel_refresh_mode="off", delta=True)
    place.write("raw", range(10))
    create(place, topics)
    with place.warehouse.coordinator():
        published(place, topics)
        for number in range(10, 14):
            place.write("raw", [number])
            place.until(place.fresh)
            published(place, topics)
        place.until(lambda: "published to topic 'out'" in place.warehouse.why("counts").text)
    found = records(topics, "out")
    update = [record.data for record in found][-2:]
    assert [data["weight"] for data in update] == [-1, 1]
    assert update[0]["key"] == update[1]["key"] == {"k": 1}
    assert [data["row"]["n"] for data in update] == [4, 5]
    assert found[-1].meta["table"] == "counts"
    assert (
        update[0]["frontier"]
        == update[1]["frontier"]
        == {"raw": [place.frontiers()["counts"][0]["raw"].snapshot]}
    )
    snapshots = [record.data["snapshot"] for record in found]
    assert snapshots == sorted(snapshots)
    assert snapshots[-1] == place.frontiers()["counts"][1].snapshot
    assert len(set(snapshots)) == 5


def test_rows_without_a_key_and_rows_that_are_there_twice(serial: Place, topics: Client) -> None:
    serial.write("raw", [1, 1, 2])
    create(serial, topics, "copy", "SELECT id FROM raw")
    with serial.warehouse.coordinator():
        published(serial, topics, "copy")
        serial.write("raw", [1])
        serial.until(serial.fresh)
        published(serial, topics, "copy")
    found = [record.data for record in records(topics, "out")]
    assert [data["weight"] for data in found] == [1, 1, 1, 1]
    assert all("key" not in data for data in found)


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_publisher_killed_between_a_write_and_its_mark_repeats_nothing(
    serial: Place, topics: Client, tmp_path: Path, writes: int
) -> None:
    """Three parts; killed after each of them. The idempotency window is over when it comes back."""
    topics.put_topic("out", idempotency_window_ms=0)
    serial.write("raw", range(1_300))
    create(serial, topics, "copy", "SELECT id FROM raw")
    place = {"address": serial.address, "data_path": serial.data_path, "options": serial.options}
    command = [sys.executable, "-m", "tests.integration.tables.published", json.dumps(place)]
    ended = subprocess.run([*command, str(writes)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    (mark,) = publications(TableStore(serial.lake))
    assert mark.snapshot == -1
    assert sorted(set(parts(records(topics, "out")))) == [
        (parts(records(topics, "out"))[0][0], number) for number in range(writes)
    ]
    process = subprocess.Popen(command)
    try:
        published(serial, topics, "copy")
        serial.write("raw", [5_000])
        serial.until(serial.fresh)
        published(serial, topics, "copy")
    finally:
        process.kill()
        process.wait()
    found = records(topics, "out")
    assert len(found) == 1_301
    assert parts(found) == sorted(parts(found))


def test_a_server_that_is_away_is_told_and_what_it_missed_comes_later(
    serial: Place, tmp_path: Path
) -> None:
    process = ServerProcess(tmp_path).start()
    process.stay()
    with Client(process.address.url) as topics:
        topics.put_topic("out", durable=True)
        serial.write("raw", range(5))
        create(serial, topics)
        with serial.warehouse.coordinator():
            published(serial, topics)
            process.kill()
            for number in range(5, 9):
                serial.write("raw", [number])
                serial.until(serial.fresh)
            serial.until(lambda: "waits: " in serial.warehouse.why("counts").text)
            (row,) = serial.warehouse.status()
            assert row.publishing is not None
            assert "cannot be asked" in row.publishing
            store = TableStore(serial.lake)
            (mark,) = publications(store)
            forget_feeds(store)
            process.start()
            published(serial, topics)
            serial.until(lambda: "waits" not in serial.warehouse.why("counts").text)
        assert mark.snapshot > 0
        snapshots = {record.data["snapshot"] for record in records(topics, "out")}
        assert len(snapshots) == 5
    process.close()


def test_what_cannot_be_told_begins_again_and_says_why(
    serial: Place, topics: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial.write("raw", range(5))
    create(serial, topics)
    with serial.warehouse.coordinator():
        published(serial, topics)
    # History and feeds are gone, as after a long time without a coordinator.
    for number in range(5, 8):
        serial.write("raw", [number])
        assert serial.warehouse.refresh("counts", here=True).ok
    serial.lake.retrying(lambda cursor: cursor.execute("DELETE FROM penstock_lake_feeds"))
    expire(serial.lake, older_than=datetime.now(UTC) + timedelta(seconds=1))
    with serial.warehouse.coordinator():
        published(serial, topics)
    resets = [r.data for r in records(topics, "out") if r.data.get("op") == "reset"]
    assert [(data["reason"], data["complete"]) for data in resets] == [("history_expired", True)]
    # A topic that is recreated gets the contents, without a reset: it has nothing to forget.
    topics.delete_topic("out")
    topics.put_topic("out")
    with serial.warehouse.coordinator():
        serial.write("raw", [100])
        serial.until(serial.fresh)
        published(serial, topics)
    assert not [r for r in records(topics, "out") if r.data.get("op") == "reset"]
    # Contents of many rows are not sent whole.
    monkeypatch.setattr(publisher, "CONTENTS_ROWS_MAX", 2)
    serial.warehouse.alter("counts", publish="")
    topics.put_topic("other")
    url = topics.settings.url
    serial.warehouse.alter("counts", publish="other", publish_url=url)
    with serial.warehouse.coordinator():
        serial.until(lambda: records(topics, "other"))
    (record,) = records(topics, "other")
    assert (record.data["op"], record.data["complete"]) == ("reset", False)
    assert "3 rows are too many" in record.data["message"]


def test_topics_that_cannot_take_changes_are_refused_at_creation(
    serial: Place, topics: Client
) -> None:
    warehouse, url = serial.warehouse, topics.settings.url
    serial.write("raw", [1])
    topics.put_topic("jobs", type="queue")

    def refuse(match: str, kind: type[Exception] = PublishRefused, **options: str) -> None:
        given = {"publish_url": url, **options}
        with pytest.raises(kind, match=match):
            warehouse.create("t", "SELECT id FROM raw", **given)
        assert not warehouse.tables()

    refuse("there is no topic 'nosuch'", publish="nosuch")
    refuse("is a queue, and changes need a log", publish="jobs")
    refuse("cannot be asked about", publish="out", publish_url="http://127.0.0.1:9")
    refuse("cannot name a topic", InvalidTable, publish="no topic")
    refuse("is not the address", InvalidTable, publish="out", publish_url="ftp://here")
    warehouse.declare_topic("out", "id BIGINT", url=url)
    with pytest.raises(TableCycle):
        warehouse.create("t", "SELECT id FROM topics.out", publish="out", publish_url=url)
    warehouse.create("t", "SELECT id FROM raw", publish="out", publish_url=url)
    with pytest.raises(PublishRefused):
        warehouse.alter("t", publish="nosuch")
    assert warehouse.table("t").publish == "out"
    warehouse.drop("t")
    assert publications(TableStore(serial.lake)) == []


def test_a_folder_publishes_to_the_server_it_is_applied_with(
    serial: Place, topics: Client, tmp_path: Path
) -> None:
    serial.write("raw", [1])
    (tmp_path / "t.sql").write_text("-- publish: out\nSELECT id FROM raw\n")
    plan = serial.warehouse.apply(tmp_path, url=topics.settings.url)
    assert [table.publish_url for table in plan.create] == [topics.settings.url]
    assert serial.warehouse.apply(tmp_path, url=topics.settings.url).empty
    (tmp_path / "t.sql").write_text("-- publish: nosuch\nSELECT id FROM raw\n")
    with pytest.raises(PublishRefused):
        serial.warehouse.plan(tmp_path, url=topics.settings.url)
    (tmp_path / "t.sql").write_text("SELECT id FROM raw\n")
    plan = serial.warehouse.apply(tmp_path, url=topics.settings.url)
    assert plan.alter[0].changes == ("publish", "publish_url")
    assert serial.warehouse.table("t").publish == ""
