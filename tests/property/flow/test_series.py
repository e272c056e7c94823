"""Rings of numbers against plain lists, whatever gaps there are between the rows."""

from __future__ import annotations

from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.series import MINUTE_MS, SeriesRings

SECONDS, MINUTES, WIDTH = 7, 3, 2
NUMBERS = st.one_of(st.just(nan), st.floats(-1e9, 1e9))
ROWS = st.lists(
    st.tuples(st.integers(1, 40_000), st.tuples(NUMBERS, NUMBERS)), min_size=1, max_size=60
)


def shown(value: float) -> float | None:
    return None if isnan(value) else value


class Model:
    """Everything that was ever added."""

    def __init__(self, rows: list[tuple[int, tuple[float, float]]]) -> None:
        self.rows: list[tuple[int, tuple[float, float]]] = []
        at_ms = 1_000_000
        for gap_ms, row in rows:
            at_ms += gap_ms
            self.rows.append((at_ms, row))

    def seconds(self, since_ms: int) -> list[tuple[int, list[float | None]]]:
        kept = [(at_ms, [*map(shown, row)]) for at_ms, row in self.rows[-SECONDS:]]
        return [(at_ms, row) for at_ms, row in kept if at_ms > since_ms]

    def minutes(self, since_ms: int) -> list[tuple[int, list[list[float]]]]:
        by_minute: dict[int, list[tuple[float, float]]] = {}
        for at_ms, row in self.rows:
            by_minute.setdefault((at_ms - 1) // MINUTE_MS, []).append(row)
        whole = list(by_minute.items())[:-1][-MINUTES:]  # the last one is not over
        found = [
            (
                (minute + 1) * MINUTE_MS,
                [[row[at] for row in rows if not isnan(row[at])] for at in range(WIDTH)],
            )
            for minute, rows in whole
        ]
        return [(end_ms, columns) for end_ms, columns in found if end_ms > since_ms]


@given(ROWS, st.integers(0, 3_000_000))
def test_rings_hold_what_lists_would(
    rows: list[tuple[int, tuple[float, float]]], since_ms: int
) -> None:
    model = Model(rows)
    rings = SeriesRings(WIDTH, seconds=SECONDS, minutes=MINUTES)
    size_bytes = rings.size_bytes
    for at_ms, row in model.rows:
        rings.add(at_ms, row)
    times, columns = rings.seconds([1, 0], since_ms)
    kept = model.seconds(since_ms)
    assert times == [at_ms for at_ms, _ in kept]
    assert columns == [[row[1] for _, row in kept], [row[0] for _, row in kept]]
    ends, spreads = rings.minutes(range(WIDTH), since_ms)
    whole = model.minutes(since_ms)
    assert ends == [end_ms for end_ms, _ in whole]
    for place, (least, mean, greatest) in enumerate(spreads):
        for at, (_, found) in enumerate(whole):
            values = found[place]
            if not values:
                assert (least[at], mean[at], greatest[at]) == (None, None, None)
            else:
                assert least[at] == min(values)
                assert greatest[at] == max(values)
                assert mean[at] == pytest.approx(sum(values) / len(values), rel=1e-9, abs=1e-3)
    assert rings.size_bytes == size_bytes
