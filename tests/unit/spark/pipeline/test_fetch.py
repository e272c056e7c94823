from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from penstock.spark.pipeline.definition import raw_schema
from penstock.spark.pipeline.fetch import FetchedBatch, Gathering, SeenMessages


def test_what_was_seen_is_forgotten_beyond_the_horizon_and_bounded() -> None:
    seen = SeenMessages(horizon=100)
    assert all(seen.is_new(seq, "d", str(seq)) for seq in range(1, 10_000))
    assert not seen.is_new(10_000, "d", "9950")
    assert seen.is_new(10_001, "d", "9")
    assert len(seen._last) <= 102
    assert seen.is_new(10_002, None, "9")
    assert seen.is_new(10_003, None, "9")


def test_messages_are_forgotten_a_few_at_a_time() -> None:
    seen = SeenMessages(horizon=100)
    for seq in range(1, 101):
        seen.is_new(seq, "d", str(seq))
    sizes = [len(seen._last)]
    for seq in range(1_001, 1_201):  # all of them are too old at once
        seen.is_new(seq, "d", str(seq))
        sizes.append(len(seen._last))
    assert all(before - after <= 1 for before, after in pairwise(sizes))
    assert sizes[-1] == 101


def page(after: int, size: int) -> FetchedBatch:
    """One record with so many bytes of payload."""
    columns = [[after + 1], ["d"], [str(after)], [0], ["x" * size]]
    return FetchedBatch(after, after + 1, pa.table(columns, schema=raw_schema("json")), 1, 0)


def test_what_was_taken_counts_until_it_is_stored() -> None:
    gathering = Gathering()
    gathering.add(page(0, 1_000))
    gathering.add(page(1, 1_000))
    first = gathering.take()
    assert first is not None
    gathering.add(page(2, 500))
    assert gathering.size_bytes < 1_000
    assert gathering.unstored_bytes == gathering.size_bytes + first.size_bytes
    second, moves = gathering.take(), gathering.moves
    assert second is not None
    assert gathering.unstored_bytes == first.size_bytes + second.size_bytes
    assert not gathering.wait_moved(moves, 0)
    gathering.stored(first.size_bytes)
    assert gathering.wait_moved(moves, 0)
    gathering.stored(second.size_bytes)
    assert gathering.unstored_bytes == 0
