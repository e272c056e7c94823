"""The kernel's only IO: the system clock, and a background thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class SystemClock:
    """The system clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)


class RunQueue:
    """How long the thread that created this has waited for a processor since then.

    A thread that is ready but not running is neither idle nor computing. 0 where the operating
    system does not report it.
    """

    def __init__(self) -> None:
        self._fd = -1
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        with suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def waited_ns(self) -> int:
        """The total so far."""
        if self._fd < 0:
            return 0
        try:
            return int(os.pread(self._fd, 128, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Stop counting."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@contextmanager
def meanwhile(call: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Call from a background thread, after each pause, until the block ends.

    A failed call is repeated after the next pause: an unreachable database may come back.
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
