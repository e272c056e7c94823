"""Reproducible randomness: every run reports its seed, and the seed replays the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random, SystemRandom

SEED_VARIABLE = "PENSTOCK_SEED"
RUNS_VARIABLE = "PENSTOCK_RUNS"


def seeds(runs: int) -> list[int]:
    """Fresh seeds for this many runs (or PENSTOCK_RUNS), or the one seed in PENSTOCK_SEED."""
    replay = os.environ.get(SEED_VARIABLE)
    if replay:
        return [int(replay)]
    source = SystemRandom()
    return [source.getrandbits(48) for _ in range(int(os.environ.get(RUNS_VARIABLE) or runs))]


@contextmanager
def seeded(seed: int) -> Iterator[Random]:
    """A random source; if the run fails, the error says how to replay it.

    >>> with seeded(7) as random:
    ...     random.randrange(100)
    41
    """
    try:
        yield Random(seed)
    except Exception as error:
        error.add_note(f"replay this run with {SEED_VARIABLE}={seed}")
        raise
