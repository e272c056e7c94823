from __future__ import annotations

import pytest

from penstock.protocol.errors import InvalidTableFile, TableCycle, TableInUse
from penstock.tables.core.model import Consistency, Mode, Status, define
from penstock.tables.plan import (
    parse_folder,
    parse_table_file,
    parse_topic_file,
    plan_tables,
)

FILE = """\
-- Totals of each day, for the front page.
-- name: sales.daily
-- schedule: */5 * * * *
-- Mode: differential
-- consistency: none
-- description: what was sold

SELECT day, sum(amount) AS total  -- in cents: as stored
FROM orders
GROUP BY day;
"""


def test_a_file_is_a_header_and_a_query():
    table = parse_table_file("tables/x.sql", FILE)
    assert table.name == "sales.daily"
    assert table.schedule.text == "*/5 * * * *"
    assert (table.mode, table.consistency) == (Mode.DIFFERENTIAL, Consistency.NONE)
    assert table.description == "what was sold"
    assert table.query.startswith("SELECT day")
    assert table.query.endswith("GROUP BY day")


def test_the_name_of_the_file_is_the_name_of_the_table():
    assert parse_table_file("tables/Daily.sql", "SELECT * FROM a").name == "daily"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-- scedule: 5s\nSELECT 1 AS a", r"x.sql:1: .*did you mean 'schedule'"),
        ("-- mode: auto\n-- mode: full\nSELECT 1 AS a", r"x.sql:2: .*first is in line 1"),
        ("--\n-- schedule: soon\nSELECT 1 AS a", r"x.sql:2: expected a duration"),
        ("-- mode:\nSELECT 1 AS a", r"x.sql:1: 'mode' has no value"),
        ("-- mode: fast\nSELECT 1 AS a", r"x.sql:1: mode must be one of"),
        ("-- name: a b\nSELECT 1 AS a", r"x.sql:1: 'a b' cannot be a table"),
        ("-- mode: full\n", r"x.sql:2: there is no query"),
        ("", r"x.sql:1: there is no query"),
        ("-- mode: full\n\nDROP TABLE a", r"x.sql:3: a query is a SELECT"),
        ("-- status: error\nSELECT 1 AS a", r"x.sql:1: status must be active or paused"),
        ("-- mode: immediate\n-- schedule: 1s\nSELECT 1 AS a", r"x.sql:3: .*takes no schedule"),
    ],
)
def test_an_error_names_file_and_line(text, message):
    with pytest.raises(InvalidTableFile, match=message):
        parse_table_file("x.sql", text)


def test_two_files_may_not_define_one_table():
    with pytest.raises(InvalidTableFile, match=r"b/x.sql: 'x' is defined in a/x.sql too"):
        parse_folder({"b/x.sql": "SELECT 1 AS a", "a/x.sql": "SELECT 1 AS a"})


def folder(**files: str):
    return parse_folder({f"{name}.sql": text for name, text in files.items()}).tables


def test_a_plan_creates_inputs_first_and_drops_readers_first():
    new = folder(z="SELECT * FROM raw", a="SELECT * FROM z")
    plan = plan_tables(new, {})
    assert [table.name for table in plan.create] == ["z", "a"]
    assert plan_tables({}, new).drop == ("a", "z")
    assert plan.lines() == ["+ create z", "+ create a"]


def test_another_query_replaces_and_another_option_alters():
    old = folder(a="SELECT * FROM raw", b="SELECT * FROM raw", c="SELECT * FROM raw")
    new = folder(
        a="SELECT x FROM raw",
        b="-- schedule: 5s\n-- status: paused\nselect *\nfrom raw",
        c="-- mode: auto\nSELECT * FROM RAW",
    )
    plan = plan_tables(new, old)
    assert [(step.table.name, step.changes) for step in plan.replace] == [
        ("a", ("query",)), ("c", ("query",)),
    ]  # fmt: skip
    assert [(step.table.name, step.changes) for step in plan.alter] == [
        ("b", ("schedule", "status"))
    ]
    assert plan_tables(new, new).empty


def test_a_table_that_failed_is_not_changed_by_applying_the_same_file():
    from dataclasses import replace

    old = folder(a="SELECT * FROM raw")
    failed = {"a": replace(old["a"], status=Status.ERROR)}
    assert plan_tables(old, failed).empty


def test_without_pruning_other_tables_stay_and_are_part_of_the_graph():
    old = folder(a="SELECT * FROM raw")
    plan = plan_tables(folder(b="SELECT * FROM a"), old, prune=False)
    assert plan.drop == ()
    assert plan.unchanged == ("a",)
    assert plan.graph.order == ("a", "b")


def test_a_plan_that_cannot_be_is_refused_before_any_step():
    old = folder(a="SELECT * FROM raw", b="SELECT * FROM a")
    with pytest.raises(TableCycle, match="a > b > a"):
        plan_tables(folder(a="SELECT * FROM b", b="SELECT * FROM a"), old)
    with pytest.raises(TableInUse, match="b read 'a'"):
        plan_tables(folder(b="SELECT * FROM a"), old)
    with pytest.raises(Exception, match="in the commit of a stream table"):
        plan_tables({"i": define("i", "SELECT * FROM raw", mode="immediate")}, {})


def test_a_file_with_a_topic_in_its_header_declares_its_columns():
    text = "-- what devices send\n-- topic: Meters:7\n-- key: id\n\nid BIGINT,\n  at TIMESTAMP;\n"
    found = parse_folder({"meters.sql": text, "a.sql": "SELECT 1 AS one"}, url="http://x:1")
    assert list(found.tables) == ["a"]
    source = found.topics["topics.Meters:7"]
    assert (source.schema, source.key, source.url) == (
        "`id` BIGINT, `at` TIMESTAMP", ("id",), "http://x:1",
    )  # fmt: skip
    said = parse_topic_file("m.sql", "-- topic: m\n-- url: http://y:2\nid INT", url="http://x:1")
    assert said.url == "http://y:2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-- topic: m\n", "m.sql:2: a topic has from 1 to 1000 columns, not 0"),
        ("-- topic: m\n-- key: x\nid INT", "m.sql:3: there is no column 'x' for the key"),
        (
            "-- topic: m\n-- mode: full\nid INT",
            "m.sql:2: unknown option 'mode'; options are key, topic, url",
        ),
    ],
)
def test_a_declaration_that_cannot_be_is_told_with_its_line(text, told):
    with pytest.raises(InvalidTableFile, match=told):
        parse_folder({"m.sql": text})


def test_no_two_files_declare_one_topic():
    with pytest.raises(InvalidTableFile, match=r"'topics.m' is defined in a.sql too"):
        parse_folder({"a.sql": "-- topic: m\nid INT", "b.sql": "-- topic: m\nid INT"})
