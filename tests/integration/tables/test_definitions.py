"""Definitions: what is refused changes nothing, what is applied is one transaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.kernel.errors import Rejected
from penstock.tables.errors import TableCycle, TableExists, TableInUse
from penstock.tables.history import ReasonCode
from penstock.tables.shell import Warehouse
from tests.integration.tables.place import Place


def test_a_cycle_is_refused_with_its_path_and_nothing_changes(warehouse: Warehouse) -> None:
    warehouse.create("a", "SELECT * FROM b")
    before = warehouse.lake.query("SELECT * FROM penstock_warehouse ORDER BY name")
    with pytest.raises(TableCycle, match="a > b > a"):
        warehouse.create("b", "SELECT * FROM a")
    assert [table.name for table in warehouse.tables()] == ["a"]
    assert warehouse.lake.query("SELECT * FROM penstock_warehouse ORDER BY name") == before


def test_a_name_that_the_lake_has_is_refused(place: Place, warehouse: Warehouse) -> None:
    place.write("raw", [1])
    with pytest.raises(TableExists, match="no stream table"):
        warehouse.create("raw", "SELECT 1 AS one")


def test_another_query_makes_other_columns_and_readers_follow(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1, 2])
    warehouse.create("a", "SELECT id FROM raw")
    warehouse.create("b", "SELECT count(*) AS n FROM a")
    for name in ("a", "b"):
        assert warehouse.refresh(name).ok
    warehouse.create_or_replace("a", "SELECT id, id * 10 AS ten FROM raw WHERE id > 1")
    assert place.rows("a") == {(1,): 1, (2,): 1}, "old contents stay until the refresh"
    for name in ("a", "b"):
        assert warehouse.refresh(name).detail == "refreshed"
    assert place.rows("a") == {(2, 20): 1}
    assert place.rows("b") == {(1,): 1}
    reasons = [record.reason for record in warehouse.history("a")]
    assert reasons == [ReasonCode.QUERY_CHANGED, ReasonCode.FIRST_LOAD]
    place.check_contents()


def test_a_drop_takes_readers_along_only_if_told(place: Place, warehouse: Warehouse) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw")
    warehouse.create("b", "SELECT id FROM a")
    for name in ("a", "b"):
        warehouse.refresh(name)
    with pytest.raises(TableInUse, match="drop with cascade"):
        warehouse.drop("a")
    assert warehouse.drop("a", cascade=True) == ("b", "a")
    assert warehouse.tables() == []
    assert {info.name for info in warehouse.lake.tables()} == {"raw"}
    assert place.frontiers() == {}


def test_a_folder_is_applied_at_once_and_then_there_is_nothing_to_do(
    place: Place, warehouse: Warehouse, tmp_path: Path
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    place.write("raw", [1, 2])
    (folder / "a.sql").write_text("-- schedule: 5s\nSELECT id FROM raw;\n")
    (folder / "b.sql").write_text("SELECT count(*) AS n FROM a\n")
    warehouse.create("old", "SELECT id FROM raw")
    assert warehouse.plan(folder).lines() == ["- drop old", "+ create a", "+ create b"]
    warehouse.apply(folder)
    assert warehouse.plan(folder).empty
    for name in ("a", "b"):
        warehouse.refresh(name)
    (folder / "a.sql").write_text("-- schedule: 9s\nselect  id from raw\n")
    assert warehouse.apply(folder).alter[0].changes == ("schedule",)
    assert warehouse.refresh("a").detail == "nothing it reads has changed"
    (folder / "b.sql").write_text("SELECT count(*) AS n FROM missing_one, b\n")
    with pytest.raises(TableCycle):
        warehouse.apply(folder)
    assert warehouse.table("a").schedule.text == "9s"


def test_only_what_keeps_contents_can_be_altered(place: Place, warehouse: Warehouse) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw")
    warehouse.refresh("a")
    assert warehouse.alter("a", schedule="3s", description="numbers").schedule.text == "3s"
    assert warehouse.refresh("a").detail == "nothing it reads has changed"
    with pytest.raises(Rejected, match="found query"):
        warehouse.alter("a", query="SELECT 1 AS one")


def test_a_refresh_by_hand_minds_gates_and_says_what_it_did(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule="on demand")
    warehouse.gate("raw")
    with pytest.raises(Rejected, match="found raw closed"):
        warehouse.refresh("a")
    assert warehouse.why("a").reason.value == "gated"
    warehouse.ungate("raw")
    assert warehouse.refresh("a").detail == "refreshed"
    assert warehouse.refresh("a").detail == "nothing it reads has changed"
    assert warehouse.refresh("a", force=True).detail == "refreshed"
    assert len(warehouse.history("a")) == 2
    assert warehouse.health().state.value == "not_running"


def test_a_wrong_query_is_told_to_the_person_and_counts_for_nothing(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT nothing_like_it FROM raw")
    answer = warehouse.refresh("a")
    assert not answer.ok
    assert "nothing_like_it" in answer.detail
    assert warehouse.table("a").status.value == "ACTIVE"
    assert [record.outcome.value for record in warehouse.history("a")] == ["failed"]


def test_people_who_define_tables_at_the_same_time_do_not_disturb_each_other(place: Place) -> None:
    others = [place.open(), place.open()]

    def define(number: int) -> None:
        for count in range(6):
            name = f"t{number}_{count}"
            others[number].create(name, "SELECT 1 AS one")
            others[number].alter(name, schedule="5s")
            if count % 2:
                others[number].drop(name)

    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(define, range(2)))
    finally:
        for other in others:
            other.close()
    assert {table.name for table in place.warehouse.tables()} == {
        f"t{number}_{count}" for number in range(2) for count in (0, 2, 4)
    }


def test_a_table_that_somebody_else_made_under_the_name_keeps_its_rows(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1, 2])
    warehouse.create("report", "SELECT id FROM raw", schedule="on demand")
    place.write("report", [17])
    done = warehouse.refresh("report", here=True)
    assert not done.ok
    assert "somebody else made" in done.detail
    assert place.rows("report") == {(17,): 1}
    _drop(place, "report")
    assert warehouse.refresh("report", here=True).ok
    _drop(place, "report")
    place.write("report", [18])
    assert "somebody else made" in warehouse.refresh("report", here=True, force=True).detail
    assert place.rows("report") == {(18,): 1}


def test_a_dropped_table_takes_along_only_what_its_refreshes_made(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1, 2])
    warehouse.create("report", "SELECT id FROM raw", schedule="on demand")
    assert warehouse.refresh("report", here=True).ok
    warehouse.drop("report")
    assert "report" not in {table.name for table in place.lake.tables()}
    warehouse.create("report", "SELECT id FROM raw", schedule="on demand")
    place.write("report", [17])
    warehouse.drop("report")
    assert place.rows("report") == {(17,): 1}


def test_tables_made_before_their_ids_were_kept_are_known_by_their_refreshes(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1, 2])
    warehouse.create("report", "SELECT id FROM raw", schedule="on demand")
    assert warehouse.refresh("report", here=True).ok
    warehouse._store.run("DELETE FROM penstock_warehouse WHERE name LIKE 'made:%'")
    warehouse.create_or_replace("report", "SELECT id + 1 AS id FROM raw", schedule="on demand")
    assert warehouse.refresh("report", here=True).ok
    assert place.rows("report") == {(2,): 1, (3,): 1}
    warehouse.create_or_replace("report", "SELECT id AS other FROM raw", schedule="on demand")
    assert warehouse.refresh("report", here=True).ok
    assert warehouse.refresh("report", here=True, force=True).ok


def _drop(place: Place, name: str) -> None:
    change = place.lake.begin()
    change.drop_table(place.lake.table(name))
    place.lake.commit(change)
