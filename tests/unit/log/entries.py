"""Entries for tests of the log."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.log.store import Append, Entry

DEADLINE_S = 30


def entry(partition: int, index: int, payload: bytes = b"x") -> Append:
    return Append(partition, (Entry(index, 1, payload),))


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again, until the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "a condition did not come true in time"
        time.sleep(0.001)
