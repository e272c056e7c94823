"""One Spark for all tests of a process that need one, whichever directory they are in."""

from __future__ import annotations

import atexit
from functools import cache
from pathlib import Path

from penstock.spark.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import SparkOptions

CACHE = Path(__file__).parents[3] / "build" / "spark"
OPTIONS = SparkOptions(cores=2, memory_mb=1_024, cache_dir=CACHE)


@cache
def one_spark() -> EmbeddedSpark:
    """The Spark, started by the first who asks; it ends with this process."""
    started = start_spark(OPTIONS)
    atexit.register(started.stop)
    return started
