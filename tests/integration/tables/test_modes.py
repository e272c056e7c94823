"""Which mode was asked for, which was executed, and why: on record for every refresh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.core.history import ReasonCode, RefreshRecord
from penstock.tables.core.model import Mode
from tests.integration.tables.place import Place

EVERY = "20ms"


@pytest.fixture
def serial(places: Callable[..., Place]) -> Place:
    return places("sqlite", parallel_refresh_mode="off")


def last(place: Place, table: str) -> RefreshRecord:
    return place.warehouse.history(table, limit=1)[0]


def test_auto_records_full_with_the_piece_that_has_no_rule(serial: Place) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1, 2])
    warehouse.create("a", "SELECT id AS n FROM raw WHERE id > 0 LIMIT 1")
    assert warehouse.refresh("a").ok
    first = last(serial, "a")
    assert (first.configured, first.executed, first.reason) == (
        Mode.AUTO, Mode.FULL, ReasonCode.FIRST_LOAD,
    )  # fmt: skip
    assert (first.rows_read, first.rows_written) == (2, 1)
    serial.write("raw", [3])
    assert warehouse.refresh("a").ok
    second = last(serial, "a")
    assert (second.configured, second.executed, second.reason) == (
        Mode.AUTO, Mode.FULL, ReasonCode.NOT_DIFFERENTIABLE,
    )  # fmt: skip
    assert second.fell_back
    assert second.reason_text == "LIMIT 1: without ORDER BY any rows may be the first"
    assert warehouse.explain("a")["differential"]["possible"] is False


def test_full_is_full_as_configured(serial: Place) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", mode="full")
    warehouse.refresh("a")
    serial.write("raw", [2])
    warehouse.refresh("a")
    found = last(serial, "a")
    assert (found.executed, found.reason, found.fell_back) == (
        Mode.FULL, ReasonCode.AS_CONFIGURED, False,
    )  # fmt: skip
    warehouse.refresh("a", force=True)
    assert last(serial, "a").reason is ReasonCode.REQUESTED
    warehouse.create_or_replace("a", "SELECT id + 1 AS id FROM raw", mode="full")
    warehouse.refresh("a")
    assert last(serial, "a").reason is ReasonCode.QUERY_CHANGED


def test_differential_is_refused_at_creation_with_the_reason_and_nothing_changes(
    serial: Place, tmp_path: Path
) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw")
    query = "SELECT id, rand() AS r FROM raw"
    with pytest.raises(NotDifferentiable, match=r"rand\(\) may answer differently"):
        warehouse.create("b", query, mode="differential")
    warehouse.create_or_replace("a", "SELECT id FROM raw LIMIT 1")
    with pytest.raises(NotDifferentiable, match="LIMIT 1: without ORDER BY"):
        warehouse.alter("a", mode="differential")
    with pytest.raises(NotDifferentiable):
        warehouse.create_or_replace("a", "SELECT * FROM raw LIMIT 2", mode="differential")
    (tmp_path / "c.sql").write_text("-- mode: differential\nSELECT id FROM raw LIMIT 3\n")
    with pytest.raises(NotDifferentiable, match="LIMIT 3") as refused:
        warehouse.apply(tmp_path)
    assert refused.value.detail["table"] == "c"
    assert [(table.name, table.mode) for table in warehouse.tables()] == [("a", Mode.AUTO)]


def test_a_volatile_table_is_refreshed_on_every_schedule_and_says_why(serial: Place) -> None:
    warehouse = serial.warehouse
    serial.write("raw", [1])
    made = warehouse.create("a", "SELECT id, random() AS r FROM raw", schedule=EVERY)
    warehouse.create("b", "SELECT id FROM raw", schedule=EVERY)
    assert made.volatile
    with warehouse.coordinator():
        serial.until(lambda: len(warehouse.history("a")) > 3, "refreshes though nothing changed")
    assert last(serial, "a").reason is ReasonCode.VOLATILE
    assert last(serial, "a").reason_text.endswith("rand() may answer differently each time")
    assert len(warehouse.history("b")) == 1


@pytest.mark.parametrize(
    ("mode", "parallel"), [("full", "off"), ("auto", "off"), ("auto", "dry_run"), ("auto", "on")]
)
def test_an_immediate_table_lands_in_the_snapshot_of_its_root_in_every_mode(
    places: Callable[..., Place], mode: str, parallel: str
) -> None:
    place = places("sqlite", parallel_refresh_mode=parallel)
    warehouse = place.warehouse
    place.write("raw", [1])
    warehouse.create("root", "SELECT id FROM raw", mode=mode, schedule=EVERY)
    warehouse.create("follows", "SELECT id * 2 AS id FROM root", mode="immediate")
    warehouse.create("after", "SELECT sum(id)::BIGINT AS n FROM follows", schedule=EVERY)
    with warehouse.coordinator():
        place.until(place.fresh)
        for number in (2, 3):
            place.write("raw", [number])
            place.until(place.fresh)
    known = place.frontiers()
    assert known["root"][1] == known["follows"][1], "one snapshot"
    assert warehouse.explain("follows")["unit"]["kind"] == "immediate_closure"
    assert last(place, "follows").configured is Mode.IMMEDIATE
    assert last(place, "follows").executed is Mode.FULL
    assert place.rows("after") == {(12,): 1}
    place.check_contents()
