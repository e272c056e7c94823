"""Two attempts at one task: the rows of a batch are in the lake once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value

from penstock.lake.catalog import Catalog
from penstock.lake.expire import sweep
from penstock.spark.jvm.embedded import start_spark
from penstock.spark.link import connect
from penstock.spark.pipeline.definition import ArrowStep, Pipeline
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import OPTIONS, QUICK
from tests.integration.spark.pipeline.test_store import messages, same, stored

MADE = pa.schema(
    [("_seq", pa.int64()), ("_row", pa.int32()), ("_reason", pa.string()), ("n", pa.int64())]
)
COUNT = 1_000
register_pickle_by_value(sys.modules[__name__])  # Spark's workers have no `tests`


@pytest.fixture(scope="module")
def patient() -> Iterator[Any]:
    """A session on a Spark that tries a task three times, as a cluster does."""
    conf = {**QUICK, "spark.master": "local[2,3]"}
    with start_spark(replace(OPTIONS, conf=conf)) as spark, connect(spark.url) as session:
        yield session


def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each message; every hundredth is bad."""
    seqs = batch["_seq"].to_pylist()
    rows = [{"_seq": n, "_row": 0, "_reason": None if n % 100 else "hundredth", "n": n}
            for n in seqs]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=MADE)


def die_after_the_first_file(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first attempt's process ends when half of its rows are in files and none is reported."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        half = batch.num_rows // 2
        yield numbered(batch.slice(0, half))
        if context.attemptNumber() == 0:
            os._exit(1)
        yield numbered(batch.slice(half))


def test_a_task_that_died_after_it_wrote_and_ran_again_stores_its_rows_once(
    patient: Any, lake: Catalog, duck: Duck
) -> None:
    step = ArrowStep(die_after_the_first_file, MADE)
    pipeline = Pipeline("raw", same, step, {"a": ("n",), "b": ("n",)})
    done = stored(patient, lake, pipeline, messages(COUNT), file_bytes=1)
    assert (done.rows, done.dead) == (COUNT - 10, 10)
    for table in ("a", "b"):
        assert duck.value(f"SELECT count(*) FROM {table}") == COUNT - 10
        assert duck.value(f"SELECT count(DISTINCT n) FROM {table}") == COUNT - 10
        files = [file.path for file in lake.table_at(table).files]
        there = {str(path) for path in Path(lake.data_path).rglob(f"{table}/*.parquet")}
        assert len(files) == 2
        assert len(there) == 3, "the file of the attempt that died is there, and does not count"
    assert duck.value("SELECT count(DISTINCT seq) FROM dead_letters") == 10
    assert duck.value("SELECT count(*) FROM dead_letters") == 10
    sweep(lake, grace_ms=0)
    assert len(list(Path(lake.data_path).rglob("a/*.parquet"))) == 2
    assert duck.value("SELECT count(*) FROM a") == COUNT - 10
