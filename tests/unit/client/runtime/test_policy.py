"""How long a conflict backs off: exact without jitter, in range with it, never in lockstep."""

from __future__ import annotations

from random import Random

import pytest

from penstock.client import CommitBackpressure, RuntimeLimits
from penstock.kernel.errors import Rejected
from penstock.testing import seeded, seeds
from tests.unit.client.runtime.world import World, conflict, increment

NOMINAL = [0.78125, 1.5625, 3.125, 6.25, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1_000.0]


def test_without_jitter_delays_double_to_a_second_and_stay_there():
    policy = CommitBackpressure(jitter=0)
    found = [policy.next_ms(n, elapsed_ms=0, random=Random(1)) for n in range(1, 40)]
    assert found == NOMINAL + [1_000.0] * 27


def test_with_jitter_every_delay_is_between_half_of_the_nominal_one_and_all_of_it():
    for seed in seeds(3):
        with seeded(seed) as random:
            policy = CommitBackpressure()
            for conflicts in range(1, 30):
                nominal = policy.nominal_ms(conflicts)
                found = [policy.next_ms(conflicts, elapsed_ms=0, random=random) for _ in range(200)]
                assert nominal / 2 <= min(found) < nominal * 0.6
                assert nominal * 0.9 < max(found) <= nominal


def test_the_window_runs_from_the_first_conflict_and_its_last_try_is_at_its_end():
    policy = CommitBackpressure(jitter=0)
    assert policy.next_ms(30, elapsed_ms=29_500, random=Random(1)) == 500
    assert policy.next_ms(31, elapsed_ms=30_000, random=Random(1)) is None
    assert CommitBackpressure(window_ms=0).next_ms(1, elapsed_ms=0, random=Random(1)) is None


def test_values_out_of_range_are_clamped():
    found = CommitBackpressure(base_ms=-1, cap_ms=-5, jitter=3, window_ms=-1)
    assert (found.base_ms, found.cap_ms, found.jitter, found.window_ms) == (0, 0, 1, 0)
    assert CommitBackpressure(base_ms=10, cap_ms=1).cap_ms == 10


def test_limits_that_make_no_sense_are_refused():
    for wrong in ({"pending_max": 0}, {"ahead_max": 0}, {"coalesced_max": -1}):
        with pytest.raises(Rejected, match=next(iter(wrong))):
            RuntimeLimits(**wrong)


def tries(world: World, name: str) -> list[float]:
    """When a writer that always meets a conflict has tried."""
    client = world.client(name)
    client.on("increment", increment)
    client.start()
    client.send("increment")
    found: list[float] = []
    original = client._transmit

    def transmit(commit):
        found.append(world.now_ms)
        original(commit)

    client._transmit = transmit
    return found


def test_writers_that_met_the_same_conflict_do_not_come_back_together():
    seed = seeds(1)[0]
    with seeded(seed):
        world = World(seed)
        world.server.rule = conflict
        writers = [tries(world, f"w{number}") for number in range(20)]
        world.run(lambda: all(len(each) >= 12 for each in writers))
        late = [each[11] for each in writers]
        assert len({round(when) for when in late}) >= 10
        assert max(late) - min(late) > 100
