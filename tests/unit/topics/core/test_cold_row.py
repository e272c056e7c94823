"""Packed times and sizes answer as the arrays they were made of."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from penstock.topics.core.cold_row import RUN_MAX, ColdRow, pack, unpack


@pytest.mark.parametrize(
    "values",
    [
        [7],
        [5] * 1_000,
        list(range(1_000)),
        [3, 1, 0, 2**31, 2, 0],
        [2**62, 0, 2**40, 1],
        [1_700_000_000_000 + n // 3 for n in range(3_000)],
    ],
)
def test_what_is_packed_comes_back(values: list[int]) -> None:
    for typecode in ("q", "Q"):
        assert unpack(pack(array(typecode, values)), typecode).tolist() == values


def test_records_of_one_size_that_came_together_take_next_to_nothing() -> None:
    cold = ColdRow(1)
    for batch in range(100):
        cold.append(array("q", [batch]) * 1_000, array("Q", [100]) * 1_000)
    assert cold.count == 100_000
    packed = [cold.packed(first, first + 999) for first in range(1, 100_000, 1_000)]
    assert sum(len(run.times) + len(run.sizes) for run in packed) < 3_000


def test_many_runs_answer_like_the_arrays_they_were_made_of() -> None:
    random = Random(5)
    count = 3 * RUN_MAX + 77
    times = array("q", sorted(random.randrange(5_000) for _ in range(count)))
    sizes = array("Q", [random.choice((0, 9, random.randrange(1, 1 << 40))) for _ in range(count)])
    cold = ColdRow(11)
    for start in range(0, count, 700):
        cold.append(times[start : start + 700], sizes[start : start + 700])
    for _ in range(400):
        seq = random.randrange(11, 11 + count)
        assert cold.size_of(seq) == sizes[seq - 11]
        if random.random() < 0.5:
            assert cold.remove(seq) == sizes[seq - 11]
            sizes[seq - 11] = 0
    live = [11 + place for place, size in enumerate(sizes) if size]
    assert (cold.count, cold.size_bytes, cold.earliest_seq) == (len(live), sum(sizes), live[0])
    assert list(cold.live_seqs(0, 1 << 40)) == live
    for _ in range(100):
        first, last = sorted(random.randrange(11, 11 + count) for _ in range(2))
        assert cold.count_between(first, last) == sum(first <= seq <= last for seq in live)
        assert cold.span(first, last)[1] == sizes[first - 11 : last - 10]
        ts_ms = random.randrange(5_001)
        older = [seq for seq in live if times[seq - 11] < ts_ms]
        assert cold.last_before(ts_ms) == (older[-1] if older else None)
        over = random.randrange(1, sum(sizes))
        seq, left = cold.seq_to_shed(over)
        assert seq is not None
        assert left == over - sum(sizes[: seq - 10]) <= 0
        assert over > sum(sizes[: seq - 11])
    cold.drop_through(live[len(live) // 2])
    rest = live[len(live) // 2 + 1 :]
    assert (cold.count, cold.earliest_seq) == (len(rest), rest[0])
    cold.trim(rest[0])
    assert cold.base_seq == rest[0]
    assert list(cold.live_seqs(0, 1 << 40)) == rest
    cold.drop_through(1 << 40)
    assert (cold.count, cold.size_bytes, cold.earliest_seq) == (0, 0, cold.end_seq)
