"""The machine's clock fulfils the same interface as the manual one."""

from __future__ import annotations

from penstock.kernel.clock import Clock, SteadyClock
from penstock.kernel.system import SystemClock
from penstock.testing import ManualClock


def test_both_clocks_never_go_back() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    for clock in clocks:
        readings = [clock.monotonic_ns() for _ in range(100)]
        assert readings == sorted(readings)
        assert clock.monotonic_ms() >= readings[-1] // 1_000_000
        assert clock.now_ms() > 1_600_000_000_000


class SetBack(ManualClock):
    """A clock whose wall time somebody sets."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_a_steady_clock_goes_on_while_the_wall_clock_is_behind() -> None:
    wall = SetBack()
    clock = SteadyClock(wall)
    began_ms = clock.now_ms()
    assert began_ms == wall.now_ms()
    wall.ahead_ms = -10_000
    assert clock.now_ms() == began_ms
    wall.advance(4_000)
    assert clock.now_ms() == began_ms + 4_000
    wall.ahead_ms -= 3_000  # and back once more
    wall.advance(1_000)
    assert clock.now_ms() == began_ms + 5_000
    wall.ahead_ms = 0
    assert clock.now_ms() == wall.now_ms() == began_ms + 5_000
    wall.ahead_ms = 60_000
    assert clock.now_ms() == wall.now_ms()


def test_a_steady_clock_goes_on_from_a_time_that_was_before() -> None:
    wall = SetBack()
    clock = SteadyClock(wall)
    clock.go_on_from(wall.now_ms() + 500)
    began_ms = clock.now_ms()
    assert began_ms == wall.now_ms() + 500
    wall.advance(100)
    assert clock.now_ms() == began_ms + 100


def test_a_steady_clock_that_is_told_of_a_later_time_while_it_is_ahead_never_goes_back() -> None:
    wall = SetBack()
    clock = SteadyClock(wall)
    began_ms = clock.now_ms()
    wall.ahead_ms = -10_000
    assert clock.now_ms() == began_ms
    clock.go_on_from(began_ms + 5_000)
    wall.advance(1_000)
    assert clock.now_ms() >= began_ms + 5_000
