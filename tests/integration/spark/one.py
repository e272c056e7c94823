"""One Spark for all tests of a process that need one, whichever directory they are in."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path

from penstock.spark.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import Archive, SparkOptions

CACHE = Path(__file__).parents[3] / "build" / "spark"
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""For a JVM that runs everything a few times: what a second compiler gains comes too late."""
OPTIONS = SparkOptions(cores=2, memory_mb=1_024, cache_dir=CACHE, conf=QUICK, archive=Archive.BUILD)


@cache
def one_spark() -> EmbeddedSpark:
    """The Spark, started by the first who asks; it ends with this process."""
    started = start_spark(OPTIONS)
    atexit.register(started.stop)
    return started
