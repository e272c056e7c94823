"""The cluster that these tests run on: what is shared is shared, and what is private is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark_cluster.cluster import HAS_NAMESPACES, Cluster

pytestmark = pytest.mark.skipif(not HAS_NAMESPACES, reason="needs the right to unshare mounts")


def seen_by_executors(spark: Any, file: Path) -> set[bool]:
    """What each of two tasks, one on each worker, says of a file."""
    name = str(file)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.record_batch({"seen": [Path(name).exists()]})

    two = spark.range(2).repartition(2)
    frame = two.mapInArrow(look, "seen boolean", barrier=True)  # both at once: on two executors
    return {row.seen for row in frame.collect()}


def test_a_file_in_the_shared_directory_is_seen_by_every_executor(
    cluster: Cluster, spark: Any
) -> None:
    (cluster.shared / "here").touch()
    assert seen_by_executors(spark, cluster.shared / "here") == {True}


def test_a_file_in_the_private_directory_is_seen_by_one_executor_only(
    cluster: Cluster, spark: Any
) -> None:
    (cluster.private / "here").touch()
    assert seen_by_executors(spark, cluster.private / "here") == {True, False}
