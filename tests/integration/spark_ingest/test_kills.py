from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client import Client
from penstock.testing import seeded, seeds
from tests.integration.spark.one import OPTIONS
from tests.integration.spark_ingest.kills import kill_drivers, kill_jvms


@pytest.mark.parametrize("seed", seeds(1))
def test_every_message_is_in_the_lake_once_however_often_the_driver_is_killed(
    seed: int, tmp_path: Path, client: Client, url: str, topic: str, spark_url: str
) -> None:
    with seeded(seed) as random:
        kill_drivers(tmp_path, client, url, topic, spark_url, random, kills=3)


@pytest.mark.parametrize("seed", seeds(1))
def test_a_driver_goes_on_with_another_spark_when_its_own_is_killed(
    seed: int, tmp_path: Path, client: Client, url: str, topic: str
) -> None:
    with seeded(seed) as random:
        kill_jvms(tmp_path, client, url, topic, OPTIONS, random, kills=1)
