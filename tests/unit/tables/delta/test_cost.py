"""What is learned of the two ways to refresh, and how it fades."""

from __future__ import annotations

from typing import Any

from penstock.tables.core.model import Mode
from penstock.tables.delta.cost import FADES, MEMORY, Workload, choose, estimates, learned

FACTS = Workload(full_rows=1_000_000, result_rows=1_000, delta_rows=100, delta_read_rows=0)


def past(mode: Mode, times: float | None) -> dict[str, Any]:
    measured = None if times is None else times * estimates(FACTS)[mode]
    workload = {name: getattr(FACTS, name) for name in FACTS.__dataclass_fields__}
    return {"mode": mode.value, "measured_ms": measured, "workload": workload}


def test_the_median_of_the_last_refreshes_of_a_way_counts() -> None:
    found = learned(past(Mode.FULL, times) for times in (2.0, 50.0, 2.0, 3.0, 1.0, 99.0, 99.0))
    assert MEMORY == 5
    assert found == {Mode.FULL: 2.0}


def test_a_way_that_was_dear_is_tried_again_one_day() -> None:
    cold = past(Mode.FULL, 40.0)
    warm = past(Mode.DIFFERENTIAL, 10.0)
    assert choose(FACTS, learned([warm, cold])).mode is Mode.DIFFERENTIAL
    assert learned([warm] * 10 + [cold])[Mode.FULL] == 40.0 * FADES**10
    taken = [choose(FACTS, learned([warm] * count + [cold])).mode for count in range(1, 100)]
    assert taken[0] is Mode.DIFFERENTIAL
    assert taken[-1] is Mode.FULL, "after a while"
    back = [past(Mode.FULL, 40.0), *[warm] * 50, cold]
    assert choose(FACTS, learned(back)).mode is Mode.DIFFERENTIAL, "it was as dear as before"


def test_a_refresh_that_was_not_measured_teaches_nothing() -> None:
    assert learned([past(Mode.FULL, None)]) == {}


def test_what_is_paid_once_is_on_record_and_teaches_nothing() -> None:
    first = past(Mode.DIFFERENTIAL, 40.0) | {"paid_once": True}
    assert learned([first]) == {}
    assert learned([first, past(Mode.DIFFERENTIAL, 2.0)]) == {Mode.DIFFERENTIAL: 2.0 * FADES}
