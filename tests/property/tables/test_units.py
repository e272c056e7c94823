from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import Consistency, Mode
from penstock.tables.core.units import (
    ExecutionUnitGraph,
    UnitKind,
    atomic_groups,
    diamond,
    immediate_closures,
)
from penstock.testing import seeded, seeds
from tests.property.tables.generated import (
    definitions,
    dense_definitions,
    edges,
    naive_diamond,
    naive_units,
    random_definitions,
)

MANY = settings(max_examples=250)


@MANY
@given(definitions())
def test_the_units_are_those_of_the_naive_model(tables):
    graph = StreamGraph(tables)
    units = ExecutionUnitGraph(graph)
    assert {frozenset(unit.members) for unit in units} == naive_units(graph)


@pytest.mark.parametrize("seed", seeds(4))
def test_a_thousand_random_graphs_have_the_units_of_the_naive_model(seed):
    with seeded(seed) as random:
        for _ in range(1_000):
            tables = random_definitions(random)
            units = ExecutionUnitGraph(StreamGraph(tables))
            assert {frozenset(unit.members) for unit in units} == naive_units(units.graph)
            place = {name: n for n, name in enumerate(m for unit in units for m in unit.members)}
            assert sorted(place) == sorted(units.graph.tables)
            for source, name in edges(units.graph):
                above, below = units.unit_of(source), units.unit_of(name)
                assert above.position <= below.position
                assert above is below or above.key in below.upstreams
            random.shuffle(tables)
            assert list(ExecutionUnitGraph(StreamGraph(tables))) == list(units)


@MANY
@given(definitions())
def test_every_table_is_in_exactly_one_unit_and_every_edge_is_respected(tables):
    graph = StreamGraph(tables)
    units = ExecutionUnitGraph(graph)
    members = [name for unit in units for name in unit.members]
    assert sorted(members) == sorted(graph.tables)
    assert [unit.position for unit in units] == list(range(len(units)))
    place = {name: index for index, name in enumerate(members)}
    for source, name in edges(graph):
        above, below = units.unit_of(source), units.unit_of(name)
        if above.key == below.key:
            assert place[source] < place[name]
        else:
            assert above.position < below.position
            assert above.key in below.upstreams
            assert below.key in above.downstreams
    pairs = {(units.unit_of(a).key, units.unit_of(b).key) for a, b in edges(graph)}
    for unit in units:
        assert {(up, unit.key) for up in unit.upstreams} == {
            pair for pair in pairs if pair[1] == unit.key and pair[0] != unit.key
        }


@MANY
@given(definitions(), st.integers())
def test_the_order_and_the_keys_do_not_depend_on_the_order_of_insertion(tables, seed):
    shuffled = list(tables)
    Random(seed).shuffle(shuffled)
    one, other = ExecutionUnitGraph(StreamGraph(tables)), ExecutionUnitGraph(StreamGraph(shuffled))
    assert list(one) == list(other)
    assert one.graph.order == other.graph.order


@MANY
@given(definitions(tables_max=7))
def test_a_diamond_is_what_paths_that_share_nothing_in_between_make(tables):
    graph = StreamGraph(tables)
    for tip in graph.tables:
        assert diamond(graph, tip) == naive_diamond(graph, tip)


@MANY
@given(definitions())
def test_a_unit_without_diamond_and_without_immediate_table_is_a_singleton(tables):
    graph = StreamGraph(tables)
    for unit in ExecutionUnitGraph(graph):
        modes = {graph.tables[name].mode for name in unit.members}
        if unit.kind is UnitKind.SINGLETON:
            assert len(unit.members) == 1
            assert Mode.IMMEDIATE not in modes
        if unit.kind is UnitKind.IMMEDIATE_CLOSURE:
            assert Mode.IMMEDIATE in modes


@MANY
@given(definitions())
def test_an_immediate_table_is_in_the_unit_of_every_stream_table_it_reads(tables):
    graph = StreamGraph(tables)
    units = ExecutionUnitGraph(graph)
    for closure in immediate_closures(graph):
        assert len({units.unit_of(name).key for name in closure}) == 1
    for source, name in edges(graph):
        if graph.tables[name].mode is Mode.IMMEDIATE:
            assert units.unit_of(source) is units.unit_of(name)


@pytest.mark.parametrize("seed", seeds(3))
def test_groups_that_are_left_out_are_part_of_others_in_dense_graphs_too(seed):
    with seeded(seed) as random:
        for _ in range(40):
            graph = StreamGraph(dense_definitions(random))
            every = [
                diamond(graph, name)
                for name, table in graph.tables.items()
                if table.consistency is Consistency.ATOMIC
            ]
            assert joined(atomic_groups(graph)) == joined(
                group for group in every if len(group) > 1
            )


def joined(groups):
    """The sets that overlapping groups become when they are joined."""
    found: list[set[str]] = []
    for group in groups:
        apart = [other for other in found if other.isdisjoint(group)]
        touched = [other for other in found if not other.isdisjoint(group)]
        found = [*apart, set(group).union(*touched)]
    return {frozenset(group) for group in found}
