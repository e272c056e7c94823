"""Edge and topic server killed by SIGKILL, one or both, under load."""

from __future__ import annotations

import pytest

from penstock.testing import seeded, seeds
from tests.integration.ingest.killing import kill_under_load
from tests.integration.ingest.place import run

KILLS = 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_every_acknowledged_message_is_there_once_whatever_was_killed(tmp_path, server, url, seed):
    with seeded(seed) as random:
        state = run(kill_under_load(tmp_path, server, url, random, kills=KILLS))
    assert state.acked == state.sent > 0
    assert state.resent > 0
