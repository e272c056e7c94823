"""Keys climb while they wait; deferral holds back the negative ones."""

from __future__ import annotations

from penstock.flow.ageing import AgeingQueue
from penstock.flow.fairqueue import Standing
from penstock.flow.priority import Urgency


def ticked(queue: AgeingQueue[str], from_ms: int, to_ms: int) -> None:
    for now_ms in range(from_ms, to_ms + 1, 50):
        queue.tick(now_ms)


def band(queue: AgeingQueue[str], key: str, now_ms: int) -> int | None:
    return queue.place(key, now_ms).band


def test_a_key_climbs_one_band_for_every_250_points() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=0))
    queue.mark("t", 0)
    seen = []
    for now_ms in range(0, 8_000, 50):
        queue.tick(now_ms)
        seen.append((now_ms, band(queue, "t", now_ms)))
    first = {b: at for at, b in reversed(seen)}
    assert {b: at for b, at in first.items() if b != 1} == {2: 2_500, 3: 5_000, 4: 7_500}


def test_a_key_of_the_lowest_priority_reaches_the_top_within_ten_seconds() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=-1_000))
    queue.mark("t", 3)
    ticked(queue, 0, 10_003)
    assert band(queue, "t", 10_003) == 4


def test_a_key_marked_again_and_again_still_ages() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=0))
    for now_ms in range(0, 7_501, 50):
        queue.mark("t", now_ms)
        queue.tick(now_ms)
    assert band(queue, "t", 7_500) == 4
    assert queue.place("t", 7_500).waited_ms == 7_500


def test_service_resets_the_age() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=0))
    queue.mark("t", 0)
    ticked(queue, 0, 7_500)
    assert queue.pop() == "t"
    queue.mark("t", 7_501)
    assert queue.done("t", 7_502)
    assert (band(queue, "t", 7_502), queue.place("t", 7_502).waited_ms) == (1, 0)


def test_a_deferred_key_gets_no_turn_ages_and_enters_the_band_it_has_aged_into() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda key: Urgency(priority=-100 if key == "neg" else 0))
    queue.defer()
    queue.mark("neg", 0)
    queue.mark("plain", 0)
    ticked(queue, 0, 4_000)
    assert (queue.pop(), queue.pop()) == ("plain", None)
    assert "deferred" in queue.place("neg", 4_000).reason
    assert queue.place("neg", 4_000).effective_priority == 300
    queue.resume(4_000)
    assert band(queue, "neg", 4_000) == 2
    assert queue.pop() == "neg"


def test_a_consumed_key_can_be_reconsidered_at_once() -> None:
    consumed: dict[str, int] = {}
    queue: AgeingQueue[str] = AgeingQueue(lambda key: Urgency(last_consumed_ms=consumed.get(key)))
    queue.mark("t", 100)
    assert band(queue, "t", 100) == 1
    consumed["t"] = 150
    queue.reconsider("t", 150)
    assert band(queue, "t", 150) == 3


def test_a_lowered_key_waits_one_band_lower_and_still_reaches_the_top() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=1_000, lowered=True))
    queue.mark("t", 0)
    assert band(queue, "t", 0) == 3
    ticked(queue, 0, 9_950)
    assert band(queue, "t", 9_950) == 3
    queue.tick(10_000)
    assert band(queue, "t", 10_000) == 4


def test_looking_costs_nothing_for_keys_that_cannot_climb_yet() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=0))
    for number in range(1_000):
        queue.mark(str(number), 0)
    looked = [queue.tick(now_ms) for now_ms in range(0, 2_401, 50)]
    assert sum(looked) == 1_000, "each key is looked at once, then not before it may climb"


def test_old_watches_of_a_key_served_many_times_do_not_pile_up() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=0))
    looked = 0
    for now_ms in range(0, 60_000, 50):
        queue.mark("t", now_ms)
        looked += queue.tick(now_ms)
        if now_ms % 200 == 150:
            assert queue.pop() == "t"
            queue.done("t", now_ms)
    assert looked <= 2 * 60_000 // 200


def test_a_place_tells_why_a_key_waits() -> None:
    queue: AgeingQueue[str] = AgeingQueue(lambda _: Urgency(priority=0))
    for key in "abc":
        queue.mark(key, 0)
    assert queue.place("c", 30).reason == (
        "waiting in band 1 with at most 2 keys of its band or higher before it"
    )
    assert queue.place("zzz", 30).standing is Standing.ABSENT
    queue.pop()
    assert queue.place("a", 30).reason == "served"


def test_a_key_whose_priority_is_raised_while_it_is_deferred_gets_its_turn() -> None:
    urgency = {"t": Urgency(priority=-500)}
    queue: AgeingQueue[str] = AgeingQueue(urgency.__getitem__)
    queue.mark("t", 0)
    queue.defer()
    queue.reconsider("t", 5)
    assert queue.pop() is None
    urgency["t"] = Urgency(priority=900)
    queue.reconsider("t", 10)
    assert band(queue, "t", 10) == 4
    assert queue.pop() is not None
