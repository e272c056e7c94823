"""`penstock table` and `penstock query` as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.docs.terminal import Terminal
from tests.integration.tables.place import ENGINE, Place


@pytest.fixture
def cli(place: Place) -> Any:
    environment = {
        "PENSTOCK_CATALOG": place.address,
        "PENSTOCK_RUNNER": ENGINE,
        "PENSTOCK_RUNNER_OPTIONS": json.dumps(place.options),
    }

    def run(*words: str, fails: bool = False, text: str | None = None) -> Any:
        result = CliRunner().invoke(main, words, env=environment, input=text)
        assert (result.exit_code != 0) == fails, result.output
        if fails:
            return result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_where_the_warehouse_is_may_stand_behind_the_command(place: Place, cli: Any) -> None:
    cli("table", "create", "a", "SELECT 1 AS x")
    for words in (("list",), ("source", "list")):
        elsewhere = cli("table", *words, "--catalog", "sqlite:none.sqlite", fails=True)
        assert "there is no lake at 'sqlite:none.sqlite'" in elsewhere
    words = ("--catalog", "sqlite:none.sqlite", "list", "--catalog", place.address)
    assert [row["name"] for row in cli("table", *words)] == ["a"]


def test_a_table_from_its_creation_to_its_drop(place: Place, cli: Any) -> None:
    place.write("raw", [1, 2, 3])
    assert cli("table", "create", "a", "SELECT id FROM raw") == [{"created": "a", "reads": ["raw"]}]
    assert cli("table", "create", "b", text="SELECT sum(id)::BIGINT AS total FROM a")
    assert "there is a stream table 'a' already" in cli(
        "table", "create", "a", "SELECT 1 AS x", fails=True
    )
    assert [row["name"] for row in cli("table", "list")] == ["a", "b"]
    (why,) = cli("table", "why", "a")
    assert why["reason"] == "no_coordinator"
    assert why["text"].startswith("no coordinator is running")
    for name in ("a", "b"):
        assert cli("table", "refresh", name)[0]["detail"] == "refreshed"
    assert cli("query", "b") == [{"total": 6}]
    assert cli("query", "SELECT count(*) AS n FROM a JOIN b ON id < total") == [{"n": 3}]
    (shown,) = cli("table", "show", "b")
    assert shown["last_refresh"]["executed"] == "FULL"
    assert [row["table"] for row in cli("table", "history")] == ["b", "a"]
    assert {row["status"] for row in cli("table", "jobs")} == {"SUCCEEDED"}
    assert cli("table", "health")[0]["state"] == "not_running"
    cli("table", "pause", "a")
    assert {row["table"]: row["status"] for row in cli("table", "status")} == {
        "a": "PAUSED",
        "b": "ACTIVE",
    }
    cli("table", "resume", "a")
    assert cli("table", "alter", "a", "--schedule", "5s")[0]["schedule"] == "5s"
    assert cli("table", "gate", "raw")[0]["closed"]
    assert "gates of raw are closed" in cli("table", "refresh", "a", fails=True)
    cli("table", "gate", "raw", "--open")
    assert "drop with cascade" in cli("table", "drop", "a", fails=True)
    assert cli("table", "drop", "a", "--cascade") == [{"dropped": ["b", "a"]}]


def test_topics_are_declared_listed_and_taken_back(place: Place, cli: Any) -> None:
    add = ("table", "source", "add", "orders", "--schema", "id BIGINT, plant STRING")
    assert cli(*add, "--key", "ID", "--url", "http://127.0.0.1:9") == [
        {"added": "topics.orders", "schema": "`id` BIGINT, `plant` STRING", "key": ["id"]}
    ]
    assert "topic 'orders' is declared already" in cli(*add, fails=True)
    assert cli(*add, "--replace")[0]["key"] == []
    (listed,) = cli("table", "source", "list")
    assert (listed["relation"], listed["url"]) == ("topics.orders", "http://127.0.0.1:4000")
    cli("table", "create", "a", "SELECT id FROM topics.orders")
    assert "orders': drop them first" in cli("table", "source", "remove", "orders", fails=True)
    cli("table", "drop", "a")
    assert cli("table", "source", "remove", "orders") == [{"removed": "orders"}]
    assert "columns are id" in cli(
        "table", "source", "add", "t", "--schema", "id BIGINT", "--key", "x", fails=True
    )


def test_a_table_is_created_and_filled_in_one_step(place: Place, cli: Any) -> None:
    place.write("raw", [1, 2])
    created, filled = cli("table", "create", "a", "SELECT id FROM raw", "--wait")
    assert (created["created"], filled["detail"]) == ("a", "refreshed")
    assert len(cli("query", "a")) == 2
    assert "no coordinator is running" in cli("table", "refresh", "a", "--no-wait", fails=True)
    refused = cli(
        "table", "create", "b", "SELECT id FROM raw LIMIT 1", "--mode", "differential", fails=True
    )
    assert "LIMIT 1: without ORDER BY any rows may be the first" in refused


def test_a_table_and_a_query_that_is_none_are_explained(place: Place, cli: Any) -> None:
    place.write("raw", [1, 2])
    cli("table", "create", "a", "SELECT max(id) AS m FROM raw")
    (by_name,) = cli("table", "explain", "a")
    (by_text,) = cli("table", "explain", "--sql", "SELECT max(id) AS m FROM raw")
    assert by_name["plan"] == by_text["plan"]
    assert by_text["plan"]["text"].splitlines()[-1].strip().startswith("└─ raw: its changes")
    assert "name a table, or give a query with --sql" in cli("table", "explain", fails=True)


def test_what_the_next_refresh_would_read_and_choose_is_explained(place: Place, cli: Any) -> None:
    place.write("raw", [1, 2])
    cli("table", "create", "a", "SELECT max(id) AS m FROM raw", "--mode", "differential")

    def coming() -> Any:
        return cli("table", "explain", "a")[0]["next_refresh"]

    assert (coming()["mode"], coming()["reason"]) == ("FULL", "first_load")
    cli("table", "refresh", "a")
    assert (coming()["mode"], coming()["text"]) == (None, "nothing it reads has changed")
    place.write("raw", [1, 2, 3])
    found = coming()
    assert (found["mode"], found["reason"]) == ("DIFFERENTIAL", "as_configured")
    read = found["inputs"]["raw"]
    assert read["changed_rows"] > 0
    assert read["rows_read"] == read["rows_held"], "without a state its old rows are read"
    assert found["choice"]["workload"]["delta_rows"] == read["changed_rows"]
    cli("table", "alter", "a", "--mode", "full")
    assert (coming()["mode"], coming()["reason"]) == ("FULL", "as_configured")


def test_mistakes_are_told_in_one_line(cli: Any, tmp_path: Path) -> None:
    assert "there is no stream table 'nope'" in cli("table", "show", "nope", fails=True)
    assert "in a cycle: x > x" in cli("table", "create", "x", "SELECT * FROM x", fails=True)
    assert "there is no folder" in cli("table", "plan", str(tmp_path / "none"), fails=True)
    assert "is not JSON" in cli("table", "--runner-options", "{", "list", fails=True)
    absent = f"sqlite:{tmp_path}/none.sqlite"
    assert "there is no lake" in cli("table", "--catalog", absent, "list", fails=True)


def test_a_folder_is_planned_then_applied(place: Place, cli: Any, tmp_path: Path) -> None:
    place.write("raw", [1])
    (tmp_path / "a.sql").write_text("-- schedule: 1m\nSELECT id FROM raw\n")
    assert cli("table", "plan", str(tmp_path))[0] | {"unchanged": []} == {
        "applied": False, "declare": [], "create": ["a"], "replace": [], "alter": [], "drop": [],
        "unchanged": [],
    }  # fmt: skip
    assert cli("table", "apply", str(tmp_path))[0]["applied"]
    assert cli("table", "plan", str(tmp_path))[0]["unchanged"] == ["a"]


def test_a_folder_declares_the_topics_that_its_tables_read(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "orders.sql").write_text("-- topic: orders\n-- key: id\nid BIGINT,\n  at DATE\n")
    (tmp_path / "a.sql").write_text("SELECT id FROM topics.orders\n")
    (planned,) = cli("table", "plan", str(tmp_path))
    assert (planned["declare"], planned["create"]) == (["orders"], ["a"])
    cli("table", "apply", str(tmp_path), "--url", "http://127.0.0.1:9")
    (listed,) = cli("table", "source", "list")
    assert (listed["key"], listed["url"]) == (["id"], "http://127.0.0.1:9")
    again = cli("table", "plan", str(tmp_path), "--url", "http://127.0.0.1:9")[0]
    assert (again["declare"], again["unchanged"]) == ([], ["a"])
    (tmp_path / "orders.sql").write_text("-- topic: orders\n-- kye: id\nid BIGINT\n")
    told = cli("table", "plan", str(tmp_path), fails=True)
    assert "orders.sql:2: unknown option 'kye' (did you mean 'key'?)" in told


def test_the_coordinator_in_the_foreground_ends_in_order(place: Place, cli: Any) -> None:
    place.write("raw", [1])
    cli("table", "create", "a", "SELECT id FROM raw", "--schedule", "50ms")
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": ""}
    command = (sys.executable, "-m", "penstock", "table", "--catalog", place.address,
               "--runner", ENGINE, "run", "--max-concurrent-refreshes", "1")  # fmt: skip
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        place.until(place.fresh, "the table to be refreshed")
        place.until(lambda: cli("table", "health")[0]["state"] == "ok")
        assert cli("table", "refresh", "a", "--force")[0]["detail"] == "refreshed"
        running.terminate()
        _, said = running.communicate()
    assert running.returncode == 0
    assert said.startswith("coordinating as ")
    assert cli("table", "health")[0]["state"] == "not_running"


def test_the_live_view_shows_a_refresh_under_way_and_ends_by_ctrl_c(
    places: Callable[..., Place], tmp_path: Path
) -> None:
    place = places("sqlite")
    place.write("raw", range(1_000))
    place.warehouse.create("a", "SELECT id FROM raw", schedule="20ms")
    place.warehouse.create("b", "SELECT id FROM a", schedule="on demand")
    place.fault("a", "hold")
    environment = {
        "PENSTOCK_CATALOG": place.address, "PENSTOCK_RUNNER": ENGINE, "TERM": "xterm",
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }  # fmt: skip
    with place.warehouse.coordinator():
        place.until((place.faults / "a.held").exists, "the refresh to be under way")
        view = Terminal("exec penstock table status -w", tmp_path, environment)
        try:
            shown = ("ok: 1 running", "2 workers, 1 busy", "stage 1 of 1, 1,000 rows",
                     "refreshed on demand only")  # fmt: skip
            assert view.read_until(lambda said: all(text in said for text in shown), 60), (
                view.output[-2_000:]
            )
            view.press_ctrl_c()
            assert view.wait(30) == 0
        finally:
            view.close()
        place.fault("a", None)
        place.until(lambda: "a" in place.frontiers())
