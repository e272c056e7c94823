"""How late heartbeats are counted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from penstock.raft.heartbeats import LATE_BOUNDS_MS, Heartbeats


def heard(times_ms: Iterable[float]) -> Heartbeats:
    found = Heartbeats(tick_ms=100)
    for at_ms in times_ms:
        found.hear(0, leader=2, term=1, now_ns=int(at_ms * 1e6))
    return found


def counts(found: Heartbeats) -> dict[float, int]:
    bounds = (*LATE_BOUNDS_MS, float("inf"))
    return {bound: n for bound, n in zip(bounds, found.counts, strict=True) if n}


def test_heartbeats_in_time_are_not_late() -> None:
    found = heard([0, 100, 199, 303, 400])
    assert counts(found) == {10: 4}
    assert found.late_ms_total == pytest.approx(4)


def test_a_silence_counts_for_each_heartbeat_that_was_due_in_it() -> None:
    found = heard([0, 100, 650])
    assert counts(found) == {10: 1, 50: 1, 200: 1, 300: 1, 500: 2}
    assert found.late_ms_total == pytest.approx(450 + 350 + 250 + 150 + 50)


def test_what_was_held_back_and_comes_together_counts_once_for_each() -> None:
    """Ten heartbeats of a second, all taken in at its end."""
    found = heard([0, *[1_000] * 10])
    assert sum(found.counts) == 10
    assert found.late_ms_total == pytest.approx(sum(range(0, 1_000, 100)))


def test_heartbeats_that_reads_ask_for_make_none_of_the_others_look_better() -> None:
    times = [0, 400, 800, 1_200]
    between = [at + extra for at in times for extra in (1, 2, 3)]
    assert heard(sorted(times + between)).counts == heard(times).counts


def test_the_first_heartbeat_of_a_leader_or_of_a_term_was_due_at_no_time() -> None:
    found = Heartbeats(tick_ms=100)
    found.hear(0, leader=2, term=1, now_ns=0)
    found.hear(0, leader=3, term=2, now_ns=5_000_000_000)
    found.hear(0, leader=3, term=3, now_ns=9_000_000_000)
    assert not sum(found.counts)


def test_partitions_are_counted_each_by_itself_and_together() -> None:
    found = Heartbeats(tick_ms=100)
    for partition in (0, 1):
        for at_ms in (0, 100):
            found.hear(partition, leader=2, term=1, now_ns=(at_ms + partition) * 1_000_000)
    assert sum(found.counts) == 2


def test_a_very_long_silence_is_counted_for_a_minute_at_most() -> None:
    assert sum(heard([0, 86_400_000]).counts) == 600
