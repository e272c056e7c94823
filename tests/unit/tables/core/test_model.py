from __future__ import annotations

import pytest

from penstock.protocol.errors import InvalidQuery, InvalidSchedule, InvalidTable
from penstock.tables.core.model import Consistency, Mode, Status, TableDefinition, define
from penstock.tables.core.schedule import Calculated, OnDemand
from penstock.tables.query.names import lake_name, relation_name


def test_a_definition_has_the_defaults_of_the_product():
    table = define("orders_by_day", "SELECT day FROM orders")
    assert table.mode is Mode.AUTO
    assert table.consistency is Consistency.ATOMIC
    assert table.status is Status.ACTIVE
    assert table.schedule == Calculated()
    assert table.sources == ("orders",)


def test_words_are_read_in_any_case():
    table = define(
        "X", "SELECT 1 AS a", mode="Full", consistency="NONE", status="paused", schedule="On Demand"
    )
    assert (table.name, table.mode, table.consistency, table.status, table.schedule) == (
        "x",
        Mode.FULL,
        Consistency.NONE,
        Status.PAUSED,
        OnDemand(),
    )


def test_a_misspelt_mode_is_refused_with_the_nearest():
    with pytest.raises(InvalidTable, match="did you mean 'DIFFERENTIAL'"):
        define("x", "SELECT 1 AS a", mode="diferential")


def test_an_immediate_table_has_no_schedule_of_its_own():
    with pytest.raises(InvalidTable, match="takes no schedule"):
        define("x", "SELECT * FROM a", mode="immediate", schedule="10s")
    assert define("x", "SELECT * FROM a", mode="immediate").mode is Mode.IMMEDIATE


@pytest.mark.parametrize(
    "name", ["", "1x", "a b", "a.b.c", "a-b", "topics.meters", "penstock_jobs", "x" * 121, "ä"]
)
def test_a_name_that_cannot_be_is_refused(name):
    with pytest.raises(InvalidTable):
        define(name, "SELECT 1 AS a")


def test_names_have_one_spelling():
    assert lake_name(" Main.Orders ") == lake_name("orders") == "orders"
    assert relation_name(["MAIN", "Orders"]) == "orders"
    assert relation_name(["topics", "Meters", "v1"]) == "topics.Meters.v1"


def test_a_definition_is_checked_where_it_is_made():
    with pytest.raises(InvalidTable, match="sorted and distinct"):
        TableDefinition("x", "SELECT 1", ("b", "a"))
    with pytest.raises(InvalidTable, match="the name must be written 'x'"):
        TableDefinition("X", "SELECT 1", ())
    with pytest.raises(InvalidTable, match="longer than"):
        TableDefinition("x", "y" * (1 << 21), ())


def test_a_bad_query_or_schedule_is_refused():
    with pytest.raises(InvalidQuery):
        define("x", "DELETE FROM a")
    with pytest.raises(InvalidSchedule):
        define("x", "SELECT 1 AS a", schedule="soon")
