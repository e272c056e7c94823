"""Something that is done again and again while something else takes its time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def meanwhile(call: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Call from a thread of its own, after each pause, until the block ends.

    What fails is tried again after the next pause: a catalog that is away may come back.
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
