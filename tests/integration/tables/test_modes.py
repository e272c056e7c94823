"""Which mode was asked for, which was executed, and why: on record for every refresh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.protocol.errors import NotDifferentiable
from penstock.tables.core.history import ReasonCode, RefreshRecord
from penstock.tables.core.model import Mode
from tests.integration.tables.place import Place
from tests.unit.tables.delta.test_refusals import REFUSED

EVERY = "20ms"
RELATIONS = {
    "t": {"k": pa.int32(), "n": pa.int32(), "xs": pa.list_(pa.int32())},
    "u": {"k": pa.int32(), "m": pa.int32()},
    "odd": {"a": pa.int32(), "__w": pa.int64()},
}


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
    assert (found.configured, found.executed, found.reason) == (
        Mode.FULL, Mode.FULL, ReasonCode.AS_CONFIGURED,
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


def test_each_piece_that_has_no_rule_is_refused_at_creation_and_the_catalog_stays(
    serial: Place,
) -> None:
    lake, refused = serial.lake, 0
    change = lake.begin()
    for name, columns in RELATIONS.items():
        change.create_table(lake.schema("main"), name, pa.schema(columns))
    lake.commit(change)
    before = lake.latest().id, lake.query("SELECT * FROM penstock_warehouse ORDER BY name")
    for query, (cause, said) in REFUSED.items():
        if cause in ("unresolved", "unknown_columns"):
            continue  # refused for another reason in every mode
        with pytest.raises(NotDifferentiable) as error:
            serial.warehouse.create("x", query, mode="differential")
        assert said in error.value.message
        assert error.value.message.endswith("; use mode AUTO or FULL")
        assert error.value.detail["table"] == "x"
        refused += 1
    assert refused > 30
    assert serial.warehouse.tables() == []
    found = lake.query("SELECT * FROM penstock_warehouse ORDER BY name")
    assert (lake.latest().id, found) == before


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
