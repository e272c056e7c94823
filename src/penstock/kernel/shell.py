"""The kernel's touch of the world: the machine's clock, and a thread beside other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)


@contextmanager
def meanwhile(call: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Call from a thread of its own, after each pause, until the block ends.

    What fails is tried again after the next pause: a database that is away may come back.
    """
    ended = threading.Event()

    def keep_on() -> None:
        while not ended.wait(pause_s):
            with suppress(Exception):
                call()

    thread = threading.Thread(target=keep_on, name="penstock-meanwhile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
