"""Fakes and helpers for tests: a clock, seeds, a faulty disk, scripted tests.

Only tests and the simulator may use this package.
"""

from penstock.testing.clock import ManualClock
from penstock.testing.disk import FakeDisk, InlineExecutor, PowerLoss
from penstock.testing.script import Command, run_script
from penstock.testing.seeds import seeded, seeds

__all__ = [
    "Command",
    "FakeDisk",
    "InlineExecutor",
    "ManualClock",
    "PowerLoss",
    "run_script",
    "seeded",
    "seeds",
]
