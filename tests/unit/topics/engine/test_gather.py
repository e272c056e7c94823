"""Writes on their way to the log: at once while there is time, together while there is none."""

from __future__ import annotations

from penstock.testing.clock import ManualClock
from penstock.topics.engine.gather import (
    GROUP_WRITES,
    HOLD_NS_MAX,
    QUIET_NS,
    ROUND_NS_A_WATCHER,
    ROUND_NS_MAX,
    Gather,
)
from tests.unit.server.http.fake_loop import FakeLoop

MS = 1_000_000


class Turns(FakeLoop):
    """A loop that takes one turn at a time, each of which takes a while."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def turn(self, took_ns: int) -> None:
        self._clock.advance(took_ns / MS)
        for callback, parts in [self._soon.popleft() for _ in range(len(self._soon))]:
            callback(*parts)


class Lane:
    """Something with writes; counts how often it was flushed."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather
        self.flushed = 0

    def write(self) -> None:
        self._gather.writes += 1
        if self._gather.writes == 1:
            self._gather.join(self)

    def flush(self) -> None:
        self.flushed += 1


def start() -> tuple[Gather, Lane, Turns]:
    clock = ManualClock()
    loop = Turns(clock)
    gather = Gather(loop, clock)  # type: ignore[arg-type]
    return gather, Lane(gather), loop


def test_writes_go_in_the_next_turn_while_there_is_time():
    _, lane, loop = start()
    lane.write()
    lane.write()
    loop.turn(1)
    assert lane.flushed == 1


def test_a_lone_write_does_not_wait_though_the_loop_is_busy():
    gather, lane, loop = start()
    gather.set_busy(1.0)
    lane.write()
    loop.turn(1)
    assert lane.flushed == 1


def test_a_busy_loop_waits_while_more_comes_and_not_longer_than_its_time():
    gather, lane, loop = start()
    gather.set_busy(1.0)
    spent_ns = 0
    lane.write()
    while not lane.flushed:
        lane.write()
        loop.turn(QUIET_NS // 2)
        spent_ns += QUIET_NS // 2
    assert HOLD_NS_MAX <= spent_ns < HOLD_NS_MAX + QUIET_NS


def test_a_busy_loop_waits_no_more_when_nothing_comes():
    gather, lane, loop = start()
    gather.set_busy(1.0)
    lane.write()
    lane.write()
    loop.turn(1)
    assert not lane.flushed
    loop.turn(QUIET_NS)
    assert lane.flushed == 1


def test_while_many_watchers_are_served_even_a_lone_write_waits_for_company():
    gather, lane, loop = start()
    gather.set_round(1_000)
    lane.write()
    turns = 0
    while not lane.flushed:
        loop.turn(MS // 2)
        turns += 1
    assert turns == -(-1_000 * ROUND_NS_A_WATCHER // (MS // 2))


def test_no_round_is_so_large_that_writes_wait_for_ever():
    gather, lane, loop = start()
    gather.set_round(1_000_000)
    lane.write()
    loop.turn(ROUND_NS_MAX - 1)
    assert not lane.flushed
    loop.turn(1)
    assert lane.flushed == 1


def test_the_end_of_a_round_lets_go_of_what_waited():
    gather, lane, loop = start()
    gather.set_round(1_000)
    lane.write()
    loop.turn(1)
    assert not lane.flushed
    gather.set_round(0)
    loop.turn(1)
    assert lane.flushed == 1


def test_a_group_that_is_large_enough_waits_for_no_round():
    gather, lane, loop = start()
    gather.set_round(1_000)
    for _ in range(GROUP_WRITES):
        lane.write()
    loop.turn(1)
    assert lane.flushed == 1
