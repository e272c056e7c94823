from __future__ import annotations

from penstock.tables.core.due import UnitSchedule, table_schedules, unit_schedule
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.model import define
from penstock.tables.core.schedule import Every, parse_schedule
from penstock.tables.core.units import ExecutionUnitGraph


def reads(name: str, *sources: str, **options: str):
    return define(name, f"SELECT * FROM {', '.join(sources)}", **options)


def texts(*tables):
    found = table_schedules(StreamGraph(tables))
    return {name: [timed.text for timed in schedules] for name, schedules in found.items()}


def test_a_calculated_leaf_is_a_second_old_at_most():
    assert texts(reads("a", "raw")) == {"a": ["1s"]}


def test_a_calculated_table_is_as_fresh_as_its_most_demanding_consumer():
    found = texts(
        reads("a", "raw"), reads("b", "a"), reads("c", "b", schedule="1m"),
        reads("d", "b", schedule="10s"), reads("e", "a", schedule="1h"),
    )  # fmt: skip
    assert found["b"] == found["a"] == ["10s"]


def test_a_consumer_with_cron_has_its_inputs_refreshed_at_the_same_times():
    found = texts(
        reads("a", "raw"), reads("b", "a", schedule="@daily"), reads("c", "a", schedule="2h")
    )
    assert found["a"] == ["2h", "0 0 * * *"]


def test_a_consumer_on_demand_asks_for_nothing():
    assert texts(reads("a", "raw"), reads("b", "a", schedule="on demand")) == {
        "a": ["1s"],
        "b": [],
    }


def test_an_immediate_consumer_hands_on_what_its_own_consumers_want():
    found = texts(
        reads("a", "raw"), reads("i", "a", mode="immediate"), reads("c", "i", schedule="5m")
    )
    assert found["a"] == ["5m"]


def test_a_unit_is_due_when_its_first_member_is():
    graph = StreamGraph(
        [
            reads("b", "raw", schedule="1m"),
            reads("c", "raw", schedule="10s"),
            reads("d", "b", "c", schedule="on demand"),
        ]
    )
    (unit,) = ExecutionUnitGraph(graph)
    assert unit_schedule(unit, graph, table_schedules(graph)) == UnitSchedule((Every(10_000),))


def test_contents_never_made_are_due_for_ever_and_on_demand_never():
    timed = UnitSchedule((Every(10_000),))
    assert timed.due_ms(None) == 0
    assert timed.due_ms(5_000) == 15_000
    on_demand = UnitSchedule(())
    assert on_demand.on_demand
    assert on_demand.due_ms(None) is None
    assert on_demand.due_ms(5_000) is None


def test_the_earliest_of_interval_and_cron_counts():
    hourly = parse_schedule("@hourly")
    schedule = UnitSchedule((Every(5_400_000), hourly))
    assert schedule.due_ms(0) == 3_600_000
    assert UnitSchedule((Every(60_000), hourly)).due_ms(0) == 60_000
    assert schedule.interval_ms(1_800_000) == 1_800_000
