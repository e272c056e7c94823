"""Who is next: weights, order, membership, service, pausing."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.flow.fairqueue import FairQueue, Standing

TOPIC_WEIGHTS = (1, 1, 2, 4, 8)


def backlogged(keys_per_band: int) -> FairQueue[tuple[int, int]]:
    queue: FairQueue[tuple[int, int]] = FairQueue(TOPIC_WEIGHTS)
    for number in range(keys_per_band):
        for band in range(5):
            queue.mark((band, number), band, now_ms=number)
    return queue


def serve(queue: FairQueue[tuple[int, int]]) -> tuple[int, int]:
    key = queue.pop()
    assert key is not None
    queue.done(key, now_ms=0)
    return key


def test_with_all_bands_backlogged_a_round_serves_them_8_4_2_1_1() -> None:
    queue = backlogged(200)
    for _ in range(20):
        turns = Counter(serve(queue)[0] for _ in range(16))
        assert [turns[band] for band in (4, 3, 2, 1, 0)] == [8, 4, 2, 1, 1]


def test_a_band_is_served_first_in_first_out() -> None:
    queue = backlogged(50)
    order = [serve(queue) for _ in range(250)]
    for band in range(5):
        assert [number for b, number in order if b == band] == list(range(50))


def test_every_waiting_band_gets_a_turn_in_every_round() -> None:
    queue = backlogged(1)
    for step in range(1_000):
        queue.mark((4, 1_000 + step), 4, now_ms=step)
    first_sixteen = [serve(queue)[0] for _ in range(16)]
    assert set(first_sixteen) == {0, 1, 2, 3, 4}


def test_a_key_marked_a_thousand_times_is_served_once() -> None:
    queue: FairQueue[str] = FairQueue((1,))
    assert [queue.mark("t", 0, now_ms=n) for n in range(1_000)] == [True] + [False] * 999
    assert queue.look("t").enqueued_ms == 0
    assert (queue.pop(), queue.pop()) == ("t", None)


def test_a_key_marked_while_served_is_served_again_after_the_others() -> None:
    queue: FairQueue[str] = FairQueue((1,))
    queue.mark("a", 0, now_ms=0)
    assert queue.pop() == "a"
    queue.mark("b", 0, now_ms=1)
    assert queue.mark("a", 0, now_ms=2)
    assert not queue.mark("a", 0, now_ms=3), "one more service, however often it is marked"
    assert queue.look("a").standing is Standing.SERVED_AND_MARKED
    assert queue.done("a", now_ms=4)
    assert [queue.pop(), queue.pop(), queue.pop()] == ["b", "a", None]
    assert not queue.done("a", now_ms=5)


def test_a_served_key_is_never_given_to_a_second_worker() -> None:
    queue: FairQueue[str] = FairQueue((1,))
    queue.mark("a", 0, now_ms=0)
    assert queue.pop() == "a"
    queue.mark("a", 0, now_ms=1)
    assert queue.pop() is None


def test_done_of_a_key_that_is_not_served_is_an_error_and_changes_nothing() -> None:
    queue: FairQueue[str] = FairQueue((1,))
    queue.mark("a", 0, now_ms=0)
    for key in ("a", "b"):
        with pytest.raises(KeyError, match="being served"):
            queue.done(key, now_ms=1)
    assert queue.pop() == "a"


def test_a_moved_key_takes_its_place_by_age() -> None:
    queue: FairQueue[str] = FairQueue((1, 1))
    queue.mark("old", 0, now_ms=1)
    queue.mark("young", 1, now_ms=5)
    queue.mark("middle", 0, now_ms=3)
    queue.move("middle", 1)
    queue.move("old", 1)
    assert [queue.pop(), queue.pop(), queue.pop()] == ["old", "middle", "young"]


def test_a_paused_band_keeps_its_keys_and_their_age_and_others_go_on() -> None:
    queue: FairQueue[str] = FairQueue((1, 1))
    queue.mark("low", 0, now_ms=0)
    queue.pause(0)
    queue.mark("high", 1, now_ms=9)
    assert (queue.pop(), queue.pop(), len(queue), queue.has_ready()) == ("high", None, 1, False)
    assert queue.bands()[0].paused
    assert queue.bands()[0].oldest_ms == 0
    queue.release(0)
    assert queue.pop() == "low"


def test_a_discarded_key_is_never_served() -> None:
    queue: FairQueue[str] = FairQueue((1,))
    for key in "abc":
        queue.mark(key, 0, now_ms=0)
    assert queue.discard("b")
    assert not queue.discard("b")
    assert [queue.pop(), queue.pop(), queue.pop()] == ["a", "c", None]
    queue.mark("a", 0, now_ms=1)
    assert queue.discard("a"), "that it was marked again is forgotten"
    assert not queue.done("a", now_ms=2)


@pytest.mark.parametrize("weights", [(), (0,), (1, -1)])
def test_a_queue_needs_bands_with_weights(weights: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="weight"):
        FairQueue(weights)
