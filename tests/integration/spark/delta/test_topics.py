"""Tables that follow topics: by the records of a range of seqs, or by the keys in that range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Client, Record
from penstock.tables.core.history import ReasonCode
from penstock.tables.core.model import Mode
from tests.conformance.servers import ServerProcess
from tests.integration.spark.delta.shop import Shop

Rows = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    process = ServerProcess(tmp_path_factory.mktemp("topics"))
    try:
        with Client(process.start().address.url) as client:
            yield client
    finally:
        process.close()


@pytest.fixture
def shop(shop: Shop, topics: Client) -> Shop:
    url = topics.settings.url
    shop.warehouse.declare_topic("readings", "id BIGINT, kwh BIGINT", url=url)
    shop.warehouse.declare_topic("lamps", "id BIGINT, room STRING", key="id", url=url)
    return shop


def rows(shop: Shop, name: str) -> Rows:
    found = shop.duck.run(f"SELECT * FROM {name}")
    return Counter(tuple(row.values()) for row in found.to_pylist())


def test_records_are_read_by_range_and_keyed_ones_by_their_keys(shop: Shop, topics: Client) -> None:
    shop.run("CREATE TABLE rooms AS SELECT 'r' || i AS room, i AS floor FROM range(4) t(i)")
    shop.create(
        "used", "SELECT id, sum(kwh) AS kwh, count(*) AS n FROM topics.readings GROUP BY id"
    )
    shop.create("high", "SELECT id, kwh FROM topics.readings WHERE kwh > 4")
    shop.create(
        "lit",
        """SELECT l.id, r.floor FROM topics.lamps l LEFT JOIN rooms r
        ON r.room = l.room""",
    )
    readings: list[tuple[int, int]] = []
    lamps: dict[int, str] = {}
    floors = {f"r{i}": i for i in range(4)}

    def read(*pairs: tuple[int, int]) -> None:
        topics.write("readings", [Record({"id": a, "kwh": b}) for a, b in pairs], create=True)
        readings.extend(pairs)

    def set_lamps(**rooms: str | None) -> None:
        for name, room in rooms.items():
            number = int(name[1:])
            if room is None:
                topics.write("lamps", [Record({"id": number}, meta={"op": "delete"})], create=True)
                lamps.pop(number, None)
            else:
                topics.write("lamps", [Record({"id": number, "room": room})], create=True)
                lamps[number] = room

    def check() -> None:
        totals: dict[int, list[int]] = {}
        for number, kwh in readings:
            totals.setdefault(number, []).append(kwh)
        assert rows(shop, "used") == Counter((k, sum(v), len(v)) for k, v in totals.items())
        assert rows(shop, "high") == Counter(pair for pair in readings if pair[1] > 4)
        assert rows(shop, "lit") == Counter((k, floors.get(room)) for k, room in lamps.items())

    read(*((n % 5, n) for n in range(20)))
    set_lamps(l1="r1", l2="r2", l3="r9")
    assert {r.reason for r in shop.refresh().values()} == {ReasonCode.FIRST_LOAD}
    check()
    batches = (
        lambda: (read((1, 9), (7, 1), (1, 9)), set_lamps(l1="r2", l4="r3")),
        lambda: (read((0, 5)), set_lamps(l1="r0", l2=None, l5="r1"), set_lamps(l1="r1")),
        lambda: (read((8, 8)), set_lamps(l2="r3", l9=None, l4=None), set_lamps(l4="r0", l3="r3")),
    )
    for number, batch in enumerate(batches):
        batch()
        if number == 2:
            shop.run("UPDATE rooms SET floor = 12 WHERE room = 'r1'")
            floors["r1"] = 12
        made = shop.refresh()
        check()
        assert {(r.executed, r.reason) for r in made.values()} == {
            (Mode.DIFFERENTIAL, ReasonCode.AS_CONFIGURED)
        }, [(r.table, r.executed, r.reason_text) for r in made.values()]
    last = {name: record.choice["workload"]["delta_rows"] for name, record in made.items()}
    assert last == {"used": 1, "high": 1, "lit": 5 + 2}, "the records of the range, and two rows"


@pytest.mark.slow
def test_a_topic_that_lost_its_first_records_is_read_in_full_once(
    shop: Shop, topics: Client
) -> None:
    """What left the topic leaves the table; as long as no more leaves, changes are enough."""
    url = topics.settings.url
    shop.warehouse.declare_topic("events", "id BIGINT, n BIGINT", url=url)
    shop.warehouse.declare_topic("states", "id BIGINT, n BIGINT", key="id", url=url)
    shop.run("CREATE TABLE names AS SELECT i AS id, 'n' || i AS name FROM range(3) t(i)")
    shop.create("totals", "SELECT id, sum(n) AS n, max(n) AS most FROM topics.events GROUP BY id")
    shop.create(
        "named", "SELECT s.id, s.n, a.name FROM topics.states s JOIN names a ON a.id = s.id"
    )
    written: list[tuple[int, int]] = []

    def write(*numbers: int) -> None:
        pairs = [(n % 3, n) for n in numbers]
        for topic in ("events", "states"):
            topics.write(topic, [Record({"id": a, "n": b}) for a, b in pairs], create=True)
        written.extend(pairs)

    def refreshed(first: int) -> set[tuple[Mode, ReasonCode]]:
        made = shop.refresh()
        left: dict[int, list[int]] = {}
        for number, n in written[first:]:
            left.setdefault(number, []).append(n)
        assert rows(shop, "totals") == Counter((k, sum(v), max(v)) for k, v in left.items())
        names = Counter((k, v[-1], f"n{k}") for k, v in left.items())
        assert rows(shop, "named") == names
        return {(record.executed, record.reason) for record in made.values()}

    def cap(records: int) -> None:
        for topic in ("events", "states"):
            topics.put_topic(topic, cap_records=records)

    by_changes = {(Mode.DIFFERENTIAL, ReasonCode.AS_CONFIGURED)}
    in_full = {(Mode.FULL, ReasonCode.HISTORY_EXPIRED)}
    write(*range(12))
    assert refreshed(0) == {(Mode.FULL, ReasonCode.FIRST_LOAD)}
    cap(5)
    cap(0)
    write(12)
    assert refreshed(7) == in_full
    write(13, 14)
    assert refreshed(7) == by_changes
    shop.run("UPDATE names SET name = name")
    assert refreshed(7) == by_changes, "the topic did not move, and holds what it held"
    cap(2)
    cap(0)
    write(15)
    assert refreshed(13) == in_full, "more records left"
    write(17, 16)
    assert refreshed(13) == by_changes
