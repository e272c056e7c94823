"""Writes on their way to the log: at once while there is time, together while there is none."""

from __future__ import annotations

from penstock.log.stores.memory import MemoryStore
from penstock.log.wal import (
    GROUP_WRITES,
    HOLD_NS_MAX,
    QUIET_NS,
    ROUND_NS_A_WATCHER,
    ROUND_NS_MAX,
    Wal,
)
from penstock.testing.clock import ManualClock
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


class Writer:
    """Something with writes; counts how often it was flushed."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self.flushed = 0

    def write(self) -> None:
        self._wal.writes += 1
        if self._wal.writes == 1:
            self._wal.join(self)

    def flush(self) -> None:
        self.flushed += 1


def start() -> tuple[Wal, Writer, Turns]:
    clock = ManualClock()
    loop = Turns(clock)
    wal = Wal(MemoryStore(), loop=loop, clock=clock)  # type: ignore[arg-type]
    return wal, Writer(wal), loop


def test_writes_go_in_the_next_turn_while_there_is_time():
    _, writer, loop = start()
    writer.write()
    writer.write()
    loop.turn(1)
    assert writer.flushed == 1


def test_a_lone_write_does_not_wait_though_the_loop_is_busy():
    wal, writer, loop = start()
    wal.window.set_busy(1.0)
    writer.write()
    loop.turn(1)
    assert writer.flushed == 1


def test_a_busy_loop_waits_while_more_comes_and_not_longer_than_its_time():
    wal, writer, loop = start()
    wal.window.set_busy(1.0)
    spent_ns = 0
    writer.write()
    while not writer.flushed:
        writer.write()
        loop.turn(QUIET_NS // 2)
        spent_ns += QUIET_NS // 2
    assert HOLD_NS_MAX <= spent_ns < HOLD_NS_MAX + QUIET_NS


def test_a_busy_loop_waits_no_more_when_nothing_comes():
    wal, writer, loop = start()
    wal.window.set_busy(1.0)
    writer.write()
    writer.write()
    loop.turn(1)
    assert not writer.flushed
    loop.turn(QUIET_NS)
    assert writer.flushed == 1


def test_while_many_watchers_are_served_even_a_lone_write_waits_for_company():
    wal, writer, loop = start()
    wal.window.set_round(1_000)
    writer.write()
    turns = 0
    while not writer.flushed:
        loop.turn(MS // 2)
        turns += 1
    assert turns == -(-1_000 * ROUND_NS_A_WATCHER // (MS // 2))


def test_no_round_is_so_large_that_writes_wait_for_ever():
    wal, writer, loop = start()
    wal.window.set_round(1_000_000)
    writer.write()
    loop.turn(ROUND_NS_MAX - 1)
    assert not writer.flushed
    loop.turn(1)
    assert writer.flushed == 1


def test_the_end_of_a_round_lets_go_of_what_waited():
    wal, writer, loop = start()
    wal.window.set_round(1_000)
    writer.write()
    loop.turn(1)
    assert not writer.flushed
    wal.window.set_round(0)
    loop.turn(1)
    assert writer.flushed == 1


def test_a_group_that_is_large_enough_waits_for_no_round():
    wal, writer, loop = start()
    wal.window.set_round(1_000)
    for _ in range(GROUP_WRITES):
        writer.write()
    loop.turn(1)
    assert writer.flushed == 1
