"""Definitions: what is refused changes nothing, what is applied is one transaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.app.tables import Warehouse
from penstock.kernel.errors import Rejected
from penstock.protocol.errors import (
    InvalidQuery,
    RelationNotFound,
    TableCycle,
    TableExists,
    TableInUse,
)
from penstock.tables.core.history import ReasonCode
from tests.integration.tables.place import Place


def test_a_cycle_is_refused_with_its_path_and_nothing_changes(warehouse: Warehouse) -> None:
    warehouse.create("a", "SELECT 1 AS id")
    warehouse.create("b", "SELECT id FROM a")
    before = warehouse.lake.query("SELECT * FROM penstock_warehouse ORDER BY name")
    with pytest.raises(TableCycle, match="a > b > a"):
        warehouse.create_or_replace("a", "SELECT * FROM b")
    assert [table.query for table in warehouse.tables()] == ["SELECT 1 AS id", "SELECT id FROM a"]
    assert warehouse.lake.query("SELECT * FROM penstock_warehouse ORDER BY name") == before


def test_a_name_that_the_lake_has_is_refused(place: Place, warehouse: Warehouse) -> None:
    place.write("raw", [1])
    with pytest.raises(TableExists, match="not a stream table"):
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
    with pytest.raises(Rejected, match="cannot alter query"):
        warehouse.alter("a", query="SELECT 1 AS one")


def test_a_refresh_by_hand_minds_gates_and_says_what_it_did(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw", schedule="on demand")
    warehouse.gate("raw")
    with pytest.raises(Rejected, match="gates of raw are closed"):
        warehouse.refresh("a")
    assert warehouse.why("a").reason.value == "gated"
    warehouse.ungate("raw")
    assert warehouse.refresh("a").detail == "refreshed"
    assert warehouse.refresh("a").detail == "nothing it reads has changed"
    assert warehouse.refresh("a", force=True).detail == "refreshed"
    assert len(warehouse.history("a")) == 2
    assert warehouse.health().state.value == "not_running"


def test_a_wrong_query_is_told_to_the_person_and_left_with_the_table(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT nothing_like_it(id) AS n FROM raw")
    answer = warehouse.refresh("a")
    assert not answer.ok
    assert "nothing_like_it" in answer.detail
    assert [record.outcome.value for record in warehouse.history("a")] == ["failed"]
    (row,) = warehouse.status()
    assert (row.status.value, row.reason.value) == ("ERROR", "error")
    assert "nothing_like_it" in warehouse.why("a").text
    warehouse.create_or_replace("a", "SELECT id FROM raw")
    assert warehouse.refresh("a").ok
    assert warehouse.table("a").status.value == "ACTIVE"


def test_a_first_refresh_that_fails_leaves_the_reason_and_a_later_one_does_not(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT id FROM raw")
    place.fault("a", "away")
    assert not warehouse.refresh("a").ok
    assert warehouse.table("a").status.value == "ACTIVE", "an engine that is away is not its fault"
    place.fault("a", "retryable")
    assert not warehouse.refresh("a").ok
    assert warehouse.table("a").status.value == "ERROR", "nothing would try it again"
    assert "a is" in warehouse.why("a").text
    place.fault("a", None)
    assert warehouse.refresh("a").ok
    assert warehouse.table("a").status.value == "ACTIVE", "it is well again"
    place.fault("a", "retryable")
    assert not warehouse.refresh("a", force=True).ok
    assert warehouse.table("a").status.value == "ACTIVE", "it has contents"
    warehouse.pause("a")
    place.fault("a", "permanent")
    assert not warehouse.refresh("a", force=True).ok
    assert warehouse.table("a").status.value == "PAUSED"


def test_names_that_are_not_there_are_refused_with_the_nearest_and_nothing_changes(
    place: Place, warehouse: Warehouse, tmp_path: Path
) -> None:
    place.write("raw", [1])
    warehouse.declare_topic("readings", "meter BIGINT, kwh DOUBLE")
    before = warehouse.lake.query("SELECT * FROM penstock_warehouse ORDER BY name")
    for query, said in (
        ("SELECT nocol FROM topics.readings", "no column 'nocol' (line 1, column 8): topics."),
        ("SELECT kw FROM topics.readings", "did you mean 'kwh'?"),
        ("SELECT kwh FROM readings", "did you mean 'topics.readings'?"),
        ("SELECT id FROM rwa", "no table 'rwa' (line 1, column 16): did you mean 'raw'?"),
        ("SELECT kwh FROM topics.reading", "did you mean 'topics.readings'?"),
    ):
        for put in (warehouse.create, warehouse.create_or_replace):
            with pytest.raises(Rejected) as refused:
                put("a", query)
            assert said in refused.value.message
        (tmp_path / "a.sql").write_text(f"-- schedule: 1m\n{query}\n")
        for act in (warehouse.plan, warehouse.apply):
            with pytest.raises(Rejected) as refused:
                act(tmp_path)
            assert refused.value.message.startswith("a: ")
            assert said in refused.value.message
    assert warehouse.lake.query("SELECT * FROM penstock_warehouse ORDER BY name") == before


def test_a_table_may_read_what_the_same_folder_declares_and_defines(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    (tmp_path / "z.sql").write_text("-- topic: z\nid BIGINT, v INT\n")
    (tmp_path / "a.sql").write_text("SELECT twice FROM b")
    (tmp_path / "b.sql").write_text("SELECT *, v * 2 AS twice FROM topics.z")
    assert [table.name for table in warehouse.plan(tmp_path).create] == ["b", "a"]
    (tmp_path / "a.sql").write_text("SELECT thrice FROM b")
    with pytest.raises(InvalidQuery, match=r"a: no column 'thrice' .*did you mean 'twice'"):
        warehouse.plan(tmp_path)


def test_a_change_that_would_break_a_reader_is_refused_by_a_folder(
    place: Place, warehouse: Warehouse, tmp_path: Path
) -> None:
    place.write("raw", [1])
    (tmp_path / "z.sql").write_text("-- topic: z\nid BIGINT, v INT\n")
    (tmp_path / "up.sql").write_text("SELECT id, id + 1 AS more FROM raw")
    (tmp_path / "down.sql").write_text("SELECT more FROM up")
    (tmp_path / "seen.sql").write_text("SELECT v FROM topics.z")
    warehouse.apply(tmp_path)
    assert warehouse.refresh("up").ok
    (tmp_path / "up.sql").write_text("SELECT id FROM raw")
    with pytest.raises(InvalidQuery, match="down: no column 'more'"):
        warehouse.apply(tmp_path)
    (tmp_path / "down.sql").write_text("SELECT id FROM up")
    (tmp_path / "z.sql").write_text("-- topic: z\nid BIGINT\n")
    with pytest.raises(InvalidQuery, match="seen: no column 'v'"):
        warehouse.plan(tmp_path)
    (tmp_path / "seen.sql").write_text("SELECT id FROM topics.z")
    assert len(warehouse.apply(tmp_path).replace) == 3


def test_a_table_that_lost_its_source_can_still_be_altered_and_holds_nothing_up(
    place: Place, warehouse: Warehouse, tmp_path: Path
) -> None:
    place.write("raw", [1])
    (tmp_path / "a.sql").write_text("SELECT id FROM raw")
    warehouse.apply(tmp_path)
    change = place.lake.begin()
    change.drop_table(place.lake.table("raw"))
    place.lake.commit(change)
    warehouse.alter("a", schedule="7s")
    (tmp_path / "b.sql").write_text("SELECT 1 AS one")
    assert [table.name for table in warehouse.apply(tmp_path).create] == ["b"]


def test_columns_that_came_to_a_source_count_for_tables_below_one_that_was_not_refreshed_yet(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.create("a", "SELECT * FROM raw")
    assert warehouse.refresh("a").ok
    change = place.lake.begin()
    change.add_column(place.lake.table("raw"), pa.field("late", pa.string()))
    place.lake.commit(change)
    warehouse.create("b", "SELECT late FROM a")


def test_a_gate_is_closed_for_what_is_there_and_nothing_else(
    place: Place, warehouse: Warehouse
) -> None:
    place.write("raw", [1])
    warehouse.declare_topic("readings", "id BIGINT")
    warehouse.create("a", "SELECT id FROM raw")
    for relation in ("raw", "topics.readings", "a"):
        warehouse.gate(relation)
        warehouse.ungate(relation)
        warehouse.ungate(relation)
    for act in (warehouse.gate, warehouse.ungate):
        with pytest.raises(RelationNotFound, match="'rwa': did you mean 'raw'"):
            act("rwa")
        with pytest.raises(
            RelationNotFound, match=r"no table or declared topic 'nosuch': there are a"
        ):
            act("nosuch")
    assert warehouse.gates() == ()


@pytest.mark.parametrize(
    "call",
    [
        "reflect('java.lang.System', 'exit')",
        "JAVA_METHOD ('java.lang.System', 'exit')",
        "`try_reflect`('java.lang.System', 'exit')",
        "system.builtin.`Reflect`('java.lang.System', 'exit')",
        "identifier('reflect')(a, b)",
    ],
)
def test_a_query_that_calls_java_is_refused(warehouse: Warehouse, call: str) -> None:
    for query in (
        f"SELECT {call} FROM VALUES (1, 2) AS t(a, b)",
        f"WITH c AS (SELECT {call} FROM VALUES (1, 2) AS t(a, b)) SELECT * FROM c",
    ):
        with pytest.raises(InvalidQuery, match="refused"):
            warehouse.create("a", query)
        with pytest.raises(InvalidQuery, match="refused"):
            warehouse.query(query)


def test_a_query_that_runs_a_program_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(InvalidQuery, match="cannot run programs"):
        warehouse.create("a", "SELECT TRANSFORM(a) USING 'cat' AS (b) FROM VALUES (1) AS t(a)")


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
    assert "was not made by refreshes" in done.detail
    assert place.rows("report") == {(17,): 1}
    _drop(place, "report")
    assert warehouse.refresh("report", here=True).ok
    _drop(place, "report")
    place.write("report", [18])
    assert "was not made by refreshes" in warehouse.refresh("report", here=True, force=True).detail
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
