"""What the kernel package asks of the machine: time in the run queue."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock.kernel.system import RunQueue


def beside_another(core: int, waited: list[int]) -> None:
    """Compute on a core where another process does too, until that was noticed."""
    os.sched_setaffinity(0, {core})  # of this thread alone
    queue = RunQueue()
    other = subprocess.Popen(["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"])
    try:
        before, end = queue.waited_ns(), time.monotonic() + 30
        while queue.waited_ns() - before < 20_000_000 and time.monotonic() < end:
            pass
        waited.append(queue.waited_ns() - before)
    finally:
        other.kill()
        other.wait()
        queue.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts it not")
def test_time_that_a_thread_waits_for_a_processor_is_counted() -> None:
    waited: list[int] = []
    thread = threading.Thread(
        target=beside_another, args=(min(os.sched_getaffinity(0)), waited), daemon=True
    )
    thread.start()
    thread.join(60)
    assert waited[0] >= 20_000_000


def test_where_it_is_not_counted_it_is_told_as_nothing() -> None:
    queue = RunQueue()
    queue.close()
    assert queue.waited_ns() == 0
    queue.close()
