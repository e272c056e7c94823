"""`python skewed_clock.py MILLISECONDS serve`: a server whose machine has another time."""

from __future__ import annotations

import sys

from penstock.cli import main
from penstock.kernel.system import SystemClock

SKEW_MS = int(sys.argv.pop(1))
now_ms = SystemClock.now_ms


def skewed_now_ms(self: SystemClock) -> int:
    return now_ms(self) + SKEW_MS


SystemClock.now_ms = skewed_now_ms  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
