"""One Spark for all tests of a process that need one, whichever directory they are in.

And a second for tests that write: without our Java classes, as on a server that others set up or on
a machine without a Java compiler.
"""

from __future__ import annotations

import atexit
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from penstock.spark.jvm.embedded import EmbeddedSpark, start_spark
from penstock.spark.options import Archive, SparkOptions

CACHE = Path(__file__).parents[3] / "build" / "spark"
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
"""For a JVM that runs everything a few times: what a second compiler gains comes too late."""
ENVIRON = {"PENSTOCK_SPARK_CACHE_DIR": str(CACHE), "PENSTOCK_SPARK_CONF": json.dumps(QUICK)}
"""The same for a Spark that a command starts: it starts in half the time."""
OPTIONS = SparkOptions(cores=2, memory_mb=1_024, cache_dir=CACHE, conf=QUICK, archive=Archive.BUILD)


WITH_OUR_CLASSES = "with our classes"
WITHOUT = "without"
"""Hadoop's own filesystem, committer and marks: all that `plain_files` is good for is off."""

WITHOUT_OPTIONS = replace(
    OPTIONS,
    plain_files=False,
    archive=Archive.USE,
    conf={
        **QUICK,
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    },
)


def on_both(fixture: str) -> pytest.MarkDecorator:
    """For tests whose files Spark's tasks write: on both Sparks, by the fixture that gives one."""
    return pytest.mark.parametrize(
        fixture, [WITH_OUR_CLASSES, WITHOUT], indirect=True, scope="session"
    )


WRITES = on_both("embedded")


@cache
def one_spark(kind: str = WITH_OUR_CLASSES) -> EmbeddedSpark:
    """The Spark of that kind, started by the first who asks; it ends with this process."""
    started = start_spark(OPTIONS if kind == WITH_OUR_CLASSES else WITHOUT_OPTIONS)
    atexit.register(started.stop)
    return started
