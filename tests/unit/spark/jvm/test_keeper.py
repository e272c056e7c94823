"""A JVM that cannot start: a caller that waits is told why, and one that polls is not kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.spark.errors import SparkMissing
from penstock.spark.jvm.keeper import JvmKeeper
from penstock.spark.options import SparkOptions
from penstock.testing import ManualClock


def test_each_call_that_waits_tries_again_and_raises_why_it_failed(tmp_path: Path) -> None:
    said: list[str] = []
    keeper = JvmKeeper(SparkOptions(java_home=tmp_path), tell=said.append)
    for _ in range(2):
        with pytest.raises(SparkMissing, match="Spark needs Java 17 or newer"):
            keeper.get()
    assert (keeper.trouble or "").startswith("Spark needs Java 17 or newer")
    assert len(said) == 2
    assert all(line.startswith("Spark did not start: ") for line in said)
    keeper.stop()


def test_polls_wait_longer_after_each_failure_and_at_most_half_a_minute(tmp_path: Path) -> None:
    clock, said = ManualClock(), list[str]()
    keeper = JvmKeeper(SparkOptions(java_home=tmp_path), tell=said.append, clock=clock)
    for wait_ms in (1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000):
        assert keeper.poll() is None
        keeper.stop()  # waits for the start that was begun
        assert said.pop().startswith(f"Spark did not start, next try in {wait_ms // 1_000} s: ")
        clock.advance(wait_ms - 1)
        assert keeper.poll() is None
        keeper.stop()
        assert not said, "too early for another try"
        clock.advance(1)
    assert keeper.pid is None
    assert keeper.generation == 0
