"""A Spark table that pushes: its topic and its watchers hold the table after every refresh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.client import Client
from penstock.protocol.events import TableCaughtUp, TableChanges, TableRows
from penstock.tables.core.model import Mode
from tests.conformance.servers import ServerProcess
from tests.integration.lake.duck import Duck
from tests.integration.spark.refresh.place import SparkPlace
from tests.integration.tables.published import records, replayed

QUERY = "SELECT plant, sum(kwh) AS kwh, count(*) AS n FROM topics.readings GROUP BY plant"


def test_changes_of_a_differential_refresh_reach_a_topic_and_a_watcher(
    places: Callable[..., SparkPlace], tmp_path: Path
) -> None:
    place = places()
    warehouse = place.warehouse
    process = ServerProcess(tmp_path, CATALOG=place.address)
    held: Counter[tuple[Any, ...]] = Counter()
    weights: list[list[int]] = []

    def seen(event: object) -> None:
        if isinstance(event, TableRows):
            held.update(tuple(row.values()) for row in event.rows)
        elif isinstance(event, TableChanges):
            weights.append([change.weight for change in event.changes])
            for change in event.changes:
                held[tuple(change.row.values())] += change.weight
            assert min(held.values()) >= 0

    try:
        with Client(process.start().address.url) as client:
            url = client.settings.url
            client.put_topic("out")
            warehouse.declare_topic("readings", "plant STRING, kwh BIGINT", url=url)
            warehouse.create("per_plant", QUERY, schedule="20ms", mode="differential",
                             publish="out", publish_url=url)  # fmt: skip
            client.write("readings", [{"plant": "a", "kwh": 1}, {"plant": "b", "kwh": 5}],
                         create=True)  # fmt: skip
            assert warehouse.refresh("per_plant", here=True).ok
            with warehouse.coordinator(), client.tables.watch("per_plant") as watch:
                while not isinstance(event := watch.next_event(60.0), TableCaughtUp):
                    seen(event)
                for number in range(4):
                    client.write("readings", [{"plant": "a", "kwh": number}])
                    count = len(weights)
                    while len(weights) == count:
                        event = watch.next_event(60.0)
                        assert event is not None
                        seen(event)
                place.until(lambda: replayed(records(client, "out")) == place.rows("per_plant"))
            found = records(client, "out")
    finally:
        process.close()
    duck = Duck(place.address)
    stored = Counter(tuple(row.values()) for row in duck.rows("SELECT * FROM per_plant"))
    duck.close()
    assert stored == {("a", 7, 5): 1, ("b", 5, 1): 1}
    assert +held == stored == replayed(found)
    assert weights == [[-1, 1]] * 4
    assert [record.data["weight"] for record in found] == [1, 1] + [-1, 1] * 4
    assert found[-1].data["key"] == found[-2].data["key"] == {"plant": "a"}
    assert found[-1].data["frontier"]["topics.readings"][1] == 6
    modes = [record.executed for record in warehouse.history("per_plant")]
    assert modes == [Mode.DIFFERENTIAL] * 4 + [Mode.FULL]
