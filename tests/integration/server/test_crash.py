"""A real server under a mixed load, killed by SIGKILL again and again: a model checks what is left.

`python -m tests.soak.crash --kills 500` is the same for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import seeded, seeds
from tests.integration.server.crash.runs import SMALL_FILES, crash, snapshots_in


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_whatever_a_killed_server_had_answered_holds(tmp_path: Path, seed: int) -> None:
    with seeded(seed) as random:
        run = crash(tmp_path, random, 14)
        assert run.cast.answered > 14


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_it_holds_too_while_snapshots_are_made_and_records_become_cold(
    tmp_path: Path, seed: int
) -> None:
    with seeded(seed) as random:
        snapshots = snapshots_in(tmp_path)
        run = crash(tmp_path, random, 6, life_ms=(0, 1_200), stirred=snapshots, **SMALL_FILES)
        assert run.cast.answered > 6
        assert snapshots(), "no snapshot was ever made"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_it_holds_in_sqlite_as_well(tmp_path: Path, seed: int) -> None:
    with seeded(seed) as random:
        run = crash(tmp_path, random, 6, STORE="sqlite")
        assert run.cast.answered > 6
