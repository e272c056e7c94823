from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from penstock.testing import seeded, seeds
from tests.integration.spark.pipeline.pipeline_kills import kill_pipeline


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_every_message_is_in_the_lake_once_whatever_is_killed_edge_driver_or_jvm(
    seed: int, tmp_path: Path, url: str
) -> None:
    with seeded(seed):
        work = kill_pipeline(tmp_path, url, seed, edges=2, drivers=1, jvms=1)
        done = uvloop.run(work)
    assert (done["edge"], done["driver"], done["jvm"]) == (2, 1, 1)
