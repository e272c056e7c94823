"""Waiting for a condition, with a deadline that only a broken system meets: no test sleeps."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
LOOK_S = 0.005
SHARE = 0.2
"""Of a core at most, for looking: what is waited for needs the cores too."""


def wait_until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "it",
    patience_s: float = PATIENCE_S,
) -> None:
    """Wait for a condition; what was waited for is said when it did not come in time."""
    pause = threading.Event()
    looked_s = time.monotonic()
    end_s = looked_s + patience_s
    while not condition():
        now_s = time.monotonic()
        assert now_s < end_s, _in_vain(what, patience_s)
        pause.wait(min(0.25, max(LOOK_S, (now_s - looked_s) * (1 / SHARE - 1))))
        looked_s = time.monotonic()


async def until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "it",
    patience_s: float = PATIENCE_S,
) -> None:
    """As `wait_until`, while the loop goes on."""
    end_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end_s, _in_vain(what, patience_s)
        await asyncio.sleep(LOOK_S / 5)


def _in_vain(what: str | Callable[[], str], patience_s: float) -> str:
    return f"waited {patience_s:g} s in vain for {what if isinstance(what, str) else what()}"
