"""What a coordinator notices without being told: changes by people and by other tools."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from penstock.lake.compact import CompactionPolicy, compact
from penstock.lake.expire import expire
from penstock.tables.positions import Positions
from penstock.tables.worker.claim import ClaimedUnit
from penstock.tables.worker.inputs import Inputs, UnitRun
from tests.integration.tables.place import Place

EVERY = "20ms"


@pytest.fixture
def serial(places: Callable[..., Place], kind: str) -> Place:
    return places(kind, parallel_refresh_mode="off")


def test_a_table_dropped_and_made_again_between_two_looks_is_made_again(serial: Place) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM a", schedule=EVERY)
    with warehouse.coordinator():
        serial.until(serial.fresh)
        for _ in range(5):
            warehouse.drop("a", cascade=True)
            warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
            warehouse.create("b", "SELECT id FROM a", schedule=EVERY)
            serial.until(serial.fresh, "both tables to be made again")
    serial.check_contents()


def test_readers_follow_a_table_that_a_person_refreshed_beside_the_coordinator(
    serial: Place,
) -> None:
    warehouse, other = serial.warehouse, serial.open()
    serial.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule="on demand")
    warehouse.create("b", "SELECT id FROM a", schedule=EVERY)
    with warehouse.coordinator():
        for number in (2, 3):
            serial.write("raw", [number])
            assert other.refresh("a", here=True).ok
            serial.until(serial.fresh, "b to follow a")
    other.close()
    serial.check_contents()


def test_a_gate_holds_back_what_reads_it_and_nothing_else(serial: Place) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    serial.write("other", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM other", schedule=EVERY)
    with warehouse.coordinator():
        serial.until(serial.fresh)
        warehouse.gate("raw", "being repaired")
        serial.until(lambda: warehouse.why("a").reason.value == "gated")
        serial.write("raw", [2])
        serial.write("other", [2])
        serial.until(lambda: (2,) in serial.rows("b"))
        assert (2,) not in serial.rows("a")
        warehouse.ungate("raw")
        serial.until(serial.fresh)
    skips = serial.lake.query("SELECT DISTINCT unit_key, reason FROM penstock_skips")
    assert ("table:a", "gated") in skips
    assert ("table:b", "gated") not in skips


def test_a_gate_holds_back_a_job_that_was_claimed_before_it(
    serial: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, begin, gated = serial.warehouse, Inputs.begin, []
    serial.write("raw", [1])
    serial.write("other", [1])

    def late(self: Inputs, claimed: ClaimedUnit) -> UnitRun:
        if claimed.job.members == ("a",) and not gated:
            gated.append("raw")
            warehouse.gate("raw", "being repaired")
            serial.write("raw", [2])
        return begin(self, claimed)

    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM other", schedule=EVERY)
    with warehouse.coordinator():
        serial.until(serial.fresh)
        monkeypatch.setattr(Inputs, "begin", late)
        serial.write("raw", [3])
        serial.until(lambda: gated, "the gate")
        serial.write("other", [2])
        serial.until(lambda: (2,) in serial.rows("b"))
        assert serial.rows("a") == {(1,): 1}
        warehouse.ungate("raw")
        serial.until(serial.fresh)
    assert {job.status.value for job in warehouse.jobs(limit=100)} == {"SUCCEEDED", "CANCELLED"}
    assert {record.outcome.value for record in warehouse.history()} == {"succeeded"}


def test_compaction_and_expiry_are_no_news(serial: Place) -> None:
    warehouse, lake = serial.warehouse, serial.lake
    for number in range(4):
        serial.write("raw", [number])
    warehouse.create("a", "SELECT id FROM raw", schedule=EVERY)
    with warehouse.coordinator():
        serial.until(serial.fresh)
    before = positions(serial)
    compact(lake, lake.table("raw"), CompactionPolicy())
    expire(lake, older_than=datetime.now(UTC) + timedelta(days=1))
    assert len(lake.snapshots()) == 1
    assert positions(serial) == before
    refreshes = len(warehouse.history())
    with warehouse.coordinator():
        serial.until(lambda: warehouse.health().state.value == "ok")
        assert warehouse.refresh("a").detail == "nothing it reads has changed"
        assert len(warehouse.history()) == refreshes
        serial.write("raw", [9])
        serial.until(serial.fresh)
    assert len(warehouse.history()) == refreshes + 1


def positions(place: Place) -> dict[str, object]:
    found = Positions()
    with place.lake.look() as reader:
        found.advance(reader)
        return dict(found.of_all(reader, ["raw", "a"]))
