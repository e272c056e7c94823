"""The machine's clock fulfils the same interface as the manual one."""

from __future__ import annotations

from penstock.kernel.clock import Clock
from penstock.kernel.shell import SystemClock
from penstock.testing import ManualClock


def test_both_clocks_never_go_back() -> None:
    clocks: list[Clock] = [SystemClock(), ManualClock()]
    for clock in clocks:
        readings = [clock.monotonic_ns() for _ in range(100)]
        assert readings == sorted(readings)
        assert clock.monotonic_ms() >= readings[-1] // 1_000_000
        assert clock.now_ms() > 1_600_000_000_000
