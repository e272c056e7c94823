"""The columns of relations, also of tables that have no contents yet."""

from __future__ import annotations

import pytest

from penstock.kernel.errors import Rejected
from penstock.protocol.errors import InvalidQuery
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import define
from penstock.tables.query.relations import NameCheck
from penstock.tables.query.resolve import RelationShape

RAW = {"raw": RelationShape(("id", "v"))}


def check(queries: dict[str, str], table: str, **stored: RelationShape) -> None:
    graph = StreamGraph(define(name, query) for name, query in queries.items())
    NameCheck(graph, {**RAW, **stored}, (), columns_max=100).check(table)


def test_columns_of_a_table_without_contents_are_those_of_its_query() -> None:
    queries = {"a": "SELECT *, v * 2 AS twice FROM raw", "b": "SELECT twice FROM a"}
    check(queries, "b")
    with pytest.raises(InvalidQuery, match="did you mean 'twice'"):
        check({**queries, "b": "SELECT twise FROM a"}, "b")


def test_a_chain_of_hundreds_of_tables_without_contents_is_followed() -> None:
    chain = {"t0": "SELECT id, v FROM raw"}
    chain |= {f"t{n}": f"SELECT id, v FROM t{n - 1}" for n in range(1, 400)}
    check({**chain, "end": "SELECT v FROM t399"}, "end")
    with pytest.raises(InvalidQuery, match="no column 'w'"):
        check({**chain, "end": "SELECT w FROM t399"}, "end")


def test_a_table_above_that_cannot_be_refreshed_lets_names_through() -> None:
    check({"a": "SELECT nothing FROM gone", "b": "SELECT anything FROM a"}, "b")


def test_contents_tell_the_columns_and_what_a_refresh_would_bring_counts_too() -> None:
    queries = {"a": "SELECT *, count(*) FROM raw GROUP BY ALL", "b": "SELECT v FROM a"}
    check(queries, "b", a=RelationShape(("id", "count(1)")))
    with pytest.raises(InvalidQuery, match="a has id, count"):
        check({**queries, "b": "SELECT w FROM a"}, "b", a=RelationShape(("id", "count(1)")))


def test_a_table_is_not_offered_to_itself() -> None:
    with pytest.raises(InvalidQuery, match=r"no table 'rw' .* there are raw$"):
        check({"a": "SELECT * FROM rw"}, "a")


def test_a_table_of_too_many_columns_is_refused_with_the_limit() -> None:
    columns = ", ".join(f"v AS v{n}" for n in range(100))
    check({"a": f"SELECT {columns} FROM raw"}, "a")
    with pytest.raises(Rejected, match="102 columns is too wide: this catalog takes at most 100"):
        check({"a": f"SELECT *, {columns} FROM raw"}, "a")
