"""Fakes and helpers for tests: a clock, seeds, a hostile disk, tests as text.

Only tests and the simulator may use this package.
"""

from penstock.testing.clock import ManualClock
from penstock.testing.script import Command, run_script
from penstock.testing.seeds import seeded, seeds

__all__ = ["Command", "ManualClock", "run_script", "seeded", "seeds"]
