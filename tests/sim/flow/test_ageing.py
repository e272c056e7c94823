"""Endless urgent load: every key is in the top band in 10 s, and every round serves the top."""

from __future__ import annotations

import pytest

from penstock.flow.governor import Level
from penstock.metering.shapes import Steady
from penstock.testing import seeded, seeds
from tests.simulator.latency import Uniform
from tests.simulator.topics import Group, Topic, Topics, TopicsSettings

# Two workers of 2 ms do 1,000 keys a second. 500 urgent keys are written far more often than that,
# so they wait without end; one turn in sixteen is too little for 2,000 of the lowest priority.
URGENT = Group("urgent", topics=500, share=0.96, priority=1_000)
REST = (
    Group("watched", topics=20, share=0.01, watched=True),
    Group("idle", topics=20, share=0.01),
    Group("middling", topics=20, share=0.01, priority=400),
    Group("negative", topics=20, share=0.01, priority=-1),
)
WORST = Group("worst", topics=2_000, share=0.0, priority=-1_000)
TOP = 4
WORST_KEYS = [Topic("worst", number) for number in range(WORST.topics)]


def overloaded(*, seed: int, deferral: bool = False) -> Topics:
    settings = TopicsSettings(
        Steady(4_000),
        groups=(URGENT, *REST, WORST),
        workers=2,
        service=Uniform(1, 3),
        deferral=deferral,
    )
    topics = Topics(settings, seed)
    for key in WORST_KEYS:
        topics.write(key)
    return topics


def oldest_below_top_ms(topics: Topics) -> int:
    stamps = [band.oldest_ms for band in topics.queue.bands()[:TOP] if band.oldest_ms is not None]
    return topics.now_ms - min(stamps, default=topics.now_ms)


@pytest.mark.parametrize("seed", seeds(2))
def test_no_key_waits_more_than_ten_seconds_below_the_top_band(seed):
    with seeded(seed) as chance:
        topics = overloaded(seed=seed)
        longest_ms = 0
        for _ in range(24_000 // 50):
            topics.run(50)
            topics.write(chance.choice(WORST_KEYS))
            longest_ms = max(longest_ms, oldest_below_top_ms(topics))
        assert 9_500 < longest_ms <= 10_000, "the load is heavy enough, and the limit holds"


@pytest.mark.parametrize("seed", seeds(1))
def test_keys_of_priority_minus_1000_rewritten_without_end_are_all_in_the_top_band_in_ten_seconds(
    seed,
):
    with seeded(seed):
        topics = overloaded(seed=seed)
        rewritten = WORST_KEYS[-20:]
        for _ in range(1_000):
            topics.run(10)
            for key in rewritten:
                topics.write(key)
        places = [topics.queue.place(key, topics.now_ms) for key in rewritten]
        assert {place.waited_ms for place in places} == {10_000}
        assert {place.band for place in places} == {TOP}


@pytest.mark.parametrize("seed", seeds(1))
def test_the_top_band_is_served_in_every_round_and_gets_half_of_the_turns(seed):
    with seeded(seed) as chance:
        topics = overloaded(seed=seed).run(3_000)
        queue, from_top = topics.queue, []
        for _ in range(400):
            before = queue.bands()[TOP].depth
            key = queue.pop()
            assert key is not None
            assert before, "there is always urgent work"
            from_top.append(queue.bands()[TOP].depth < before)
            queue.done(key, topics.now_ms)
            queue.mark(Topic("urgent", chance.randrange(500)), topics.now_ms)
        rounds = [from_top[first : first + 16] for first in range(len(from_top) - 16)]
        assert all(sum(turns) >= 8 for turns in rounds)
        assert any(sum(turns) < 16 for turns in rounds), "other bands have their turns as well"


def test_deferred_keys_enter_the_top_band_they_have_aged_into_when_pressure_falls():
    with seeded(3):
        topics = overloaded(seed=3, deferral=True).run(15_000)
        assert topics.rung.level is Level.DEFER
        assert topics.queue.bands()[0].paused
        assert topics.queue.bands()[0].depth > 1_900, "given no turns"
        topics.arrivals.factor = 0.0
        while topics.rung.deferring:
            topics.step()
        lowest, *_, top = topics.queue.bands()
        assert (lowest.paused, lowest.depth) == (False, 0)
        assert top.depth > 1_900
        topics.run(5_000)
        assert (len(topics.queue), topics.pending) == (0, 0)


def test_what_is_written_is_pushed_once_the_load_ends():
    with seeded(4):
        topics = overloaded(seed=4).run(5_000)
        assert topics.pending > 2_000
        topics.arrivals.factor = 0.0
        topics.run(8_000)
        assert topics.pushed == topics.written
