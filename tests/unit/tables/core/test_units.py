from __future__ import annotations

import pytest

from penstock.protocol.errors import TableNotFound
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import define
from penstock.tables.core.units import ExecutionUnitGraph, UnitKind, unit_key


def reads(name: str, *sources: str, **options: str):
    return define(name, f"SELECT * FROM {', '.join(sources)}", **options)


def units(*tables):
    return [
        (unit.kind.value, "+".join(unit.members))
        for unit in ExecutionUnitGraph(StreamGraph(tables))
    ]


def test_a_plain_chain_is_singletons_in_order():
    graph = ExecutionUnitGraph(StreamGraph([reads("a", "raw"), reads("b", "a"), reads("c", "b")]))
    assert [unit.key for unit in graph] == ["table:a", "table:b", "table:c"]
    assert graph["table:b"].upstreams == ("table:a",)
    assert graph["table:b"].downstreams == ("table:c",)
    assert graph["table:b"].inputs == ("a",)


def test_a_wide_layer_is_independent_units():
    tables = [reads(f"t{n}", f"raw{n}") for n in range(5)]
    graph = ExecutionUnitGraph(StreamGraph(tables))
    assert all(unit.kind is UnitKind.SINGLETON and not unit.upstreams for unit in graph)


def test_a_diamond_through_a_shared_base_table_is_one_group():
    assert units(reads("b", "raw"), reads("c", "raw"), reads("d", "b", "c")) == [
        ("atomic_group", "b+c+d")
    ]


def test_a_diamond_through_a_stream_table_leaves_the_stream_table_out():
    assert units(reads("a", "raw"), reads("b", "a"), reads("c", "a"), reads("d", "b", "c")) == [
        ("singleton", "a"),
        ("atomic_group", "b+c+d"),
    ]


def test_a_diamond_through_a_topic_counts_too():
    assert units(reads("b", "topics.m"), reads("c", "topics.m"), reads("d", "b", "c")) == [
        ("atomic_group", "b+c+d")
    ]


def test_a_table_that_reads_a_source_directly_and_through_another_is_a_diamond():
    assert units(reads("b", "raw"), reads("d", "b", "raw")) == [("atomic_group", "b+d")]


def test_long_branches_are_taken_in_whole():
    assert units(
        reads("b1", "raw"), reads("b2", "b1"), reads("c", "raw"), reads("d", "b2", "c")
    ) == [("atomic_group", "b1+b2+c+d")]


def test_branches_of_different_sources_are_no_diamond():
    assert units(reads("b", "raw1"), reads("c", "raw2"), reads("d", "b", "c")) == [
        ("singleton", "b"),
        ("singleton", "c"),
        ("singleton", "d"),
    ]


def test_overlapping_diamonds_become_one_group():
    assert units(
        reads("b", "raw"), reads("c", "raw"), reads("e", "raw"),
        reads("d", "b", "c"), reads("f", "c", "e"),
    ) == [("atomic_group", "b+c+d+e+f")]  # fmt: skip


def test_a_diamond_above_a_diamond_stays_another_group():
    assert units(
        reads("b", "raw"), reads("c", "raw"), reads("d", "b", "c"),
        reads("e", "d"), reads("f", "d"), reads("g", "e", "f"),
    ) == [("atomic_group", "b+c+d"), ("atomic_group", "e+f+g")]  # fmt: skip


def test_what_lies_between_two_merged_groups_joins_them():
    # d1 and d2 share c; x is fed by d1 and feeds b2, so it must run between members.
    assert units(
        reads("b1", "raw"), reads("c", "raw"), reads("d1", "b1", "c"),
        reads("x", "d1"), reads("b2", "x", "c"), reads("d2", "b2", "c", consistency="atomic"),
    ) == [("atomic_group", "b1+c+d1+x+b2+d2")]  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "differential", "auto"])
def test_without_consistency_a_diamond_is_singletons_in_every_mode(mode):
    assert units(
        reads("b", "raw", mode=mode),
        reads("c", "raw", mode=mode),
        reads("d", "b", "c", mode=mode, consistency="none"),
    ) == [("singleton", "b"), ("singleton", "c"), ("singleton", "d")]


def test_without_consistency_an_immediate_tip_still_joins_what_it_follows():
    assert units(
        reads("b", "raw"),
        reads("c", "raw"),
        reads("d", "b", "c", mode="immediate", consistency="none"),
    ) == [("immediate_closure", "b+c+d")]


def test_the_tip_decides_and_not_its_branches():
    assert units(
        reads("b", "raw", consistency="none"),
        reads("c", "raw", consistency="none"),
        reads("d", "b", "c"),
    ) == [("atomic_group", "b+c+d")]


def test_an_immediate_table_between_differential_ones_is_refreshed_with_its_root():
    graph = ExecutionUnitGraph(
        StreamGraph(
            [
                reads("a", "raw", mode="differential"),
                reads("b", "a", mode="immediate"),
                reads("c", "b", mode="differential"),
            ]
        )
    )
    assert [(unit.kind.value, unit.members) for unit in graph] == [
        ("immediate_closure", ("a", "b")),
        ("singleton", ("c",)),
    ]
    assert graph.unit_of("b").root == "a"
    assert graph.unit_of("c").upstreams == ("closure:a+b",)


def test_every_immediate_table_reachable_from_a_root_is_in_its_closure():
    assert units(
        reads("a", "raw"), reads("b", "a", mode="immediate"), reads("c", "b", mode="immediate"),
        reads("d", "a", mode="immediate"), reads("e", "c"), reads("f", "e", mode="immediate"),
    ) == [("immediate_closure", "a+b+c+d"), ("immediate_closure", "e+f")]  # fmt: skip


def test_roots_that_meet_in_an_immediate_table_are_one_unit():
    assert units(
        reads("a", "raw1"), reads("b", "raw2"), reads("i", "a", "b", mode="immediate")
    ) == [("immediate_closure", "a+b+i")]


def test_a_diamond_whose_tip_feeds_an_immediate_table_takes_it_in():
    assert units(
        reads("b", "raw"), reads("c", "raw"), reads("d", "b", "c"),
        reads("i", "d", mode="immediate"), reads("z", "i"),
    ) == [("atomic_group", "b+c+d+i"), ("singleton", "z")]  # fmt: skip


def test_a_mixed_graph_keeps_independent_parts_apart():
    assert units(
        reads("b", "raw"), reads("c", "raw"), reads("d", "b", "c"),
        reads("s", "other"), reads("r", "other2"), reads("i", "r", mode="immediate"),
    ) == [("immediate_closure", "r+i"), ("atomic_group", "b+c+d"), ("singleton", "s")]  # fmt: skip


def test_a_key_stays_while_kind_and_members_do():
    tables = [reads("b", "raw"), reads("c", "raw"), reads("d", "b", "c"), reads("x", "raw")]
    before = ExecutionUnitGraph(StreamGraph(tables))
    after = ExecutionUnitGraph(StreamGraph([*tables[::-1], reads("y", "x", schedule="5s")]))
    for table in ("b", "c", "d", "x"):
        assert before.unit_of(table).key == after.unit_of(table).key


def test_a_key_of_many_members_is_short_and_differs():
    many = [f"a_rather_long_table_name_{n}" for n in range(30)]
    key = unit_key(UnitKind.ATOMIC_GROUP, many)
    assert len(key) < 100
    assert key == unit_key(UnitKind.ATOMIC_GROUP, reversed(many))
    assert key != unit_key(UnitKind.ATOMIC_GROUP, many[:-1])


def test_an_unknown_table_has_no_unit():
    with pytest.raises(TableNotFound):
        ExecutionUnitGraph(StreamGraph()).unit_of("nobody")


def test_units_that_would_feed_each_other_become_one():
    # The closure of a and i feeds d; the diamond of b and d feeds a.
    assert units(
        reads("r", "raw1"), reads("b", "raw2"), reads("a", "b"),
        reads("i", "a", "r", mode="immediate", consistency="none"),
        reads("d", "r", "b", "raw2"),
    ) == [("atomic_group", "b+a+r+d+i")]  # fmt: skip
