from __future__ import annotations

from itertools import permutations

import pytest

from penstock.protocol.errors import InvalidTable, TableCycle, TableInUse, TableNotFound
from penstock.tables.core.graph import StreamGraph, check_modes
from penstock.tables.core.model import define


def reads(name: str, *sources: str, **options: str):
    return define(name, f"SELECT * FROM {', '.join(sources)}", **options)


CHAIN = [reads("a", "raw"), reads("b", "a"), reads("c", "b", "raw")]


def test_tables_come_after_what_they_read():
    graph = StreamGraph(CHAIN)
    assert graph.order == ("a", "b", "c")
    assert graph.sources == ("raw",)
    assert graph.upstreams["c"] == ("b",)
    assert graph.readers["raw"] == ("a", "c")
    assert graph.downstream("a") == ("b", "c")
    assert graph.upstream("c") == ("a", "b")


def test_the_order_is_the_same_for_any_order_of_insertion():
    tables = [*CHAIN, reads("z", "raw"), reads("m", "z")]
    assert {StreamGraph(order).order for order in permutations(tables)} == {
        StreamGraph(tables).order
    }


def test_a_cycle_is_refused_with_its_path_and_the_graph_stays_as_it_was():
    graph = StreamGraph(CHAIN)
    with pytest.raises(TableCycle, match="a > b > c > a") as refused:
        graph.with_table(reads("a", "c"))
    assert refused.value.detail == {"cycle": ["a", "b", "c", "a"]}
    assert graph.order == ("a", "b", "c")


def test_a_table_that_reads_itself_is_a_cycle():
    with pytest.raises(TableCycle, match="a > a"):
        StreamGraph([reads("a", "a")])


def test_dropping_what_others_read_needs_a_cascade():
    graph = StreamGraph(CHAIN)
    with pytest.raises(TableInUse, match="b read 'a'"):
        graph.without("a")
    assert graph.without("a", cascade=True).order == ()
    assert graph.without("c").order == ("a", "b")


def test_an_unknown_table_is_not_found():
    with pytest.raises(TableNotFound, match="'nobody'"):
        StreamGraph(CHAIN).without("nobody")


def test_a_table_given_twice_is_refused():
    with pytest.raises(InvalidTable, match="'a' is defined twice"):
        StreamGraph([reads("a", "raw"), reads("a", "other")])


def test_an_immediate_table_needs_a_stream_table_to_follow():
    with pytest.raises(InvalidTable, match="in the commit of a stream table"):
        check_modes(StreamGraph([reads("i", "raw", mode="immediate")]))
    check_modes(StreamGraph([reads("a", "raw"), reads("i", "a", mode="immediate")]))
