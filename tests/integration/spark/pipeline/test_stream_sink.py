"""The lake as a sink of Structured Streaming: what a batch leaves, and what is refused.

Called as Spark calls it. `tests/spark_cluster/test_stream.py` has a real query.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.spark.pipeline import stream_sink
from penstock.spark.pipeline.cursors import TakenOver, cursors
from penstock.spark.pipeline.stream_sink import LakeSink
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import on_both


def checkpoint(parent: Path, query: str) -> str:
    """A checkpoint as Spark makes it before the first batch."""
    home = parent / f"checkpoint-{query}"
    home.mkdir()
    (home / "metadata").write_text(json.dumps({"id": query}))
    return str(home)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    """Spark's process for the sinks ends with the test."""
    yield
    for writer in stream_sink._WRITERS.values():
        writer.lake.close()
    stream_sink._WRITERS.clear()


@pytest.fixture
def sink(address: str, lake: Catalog, tmp_path: Path) -> LakeSink:
    return LakeSink(address, "rows", checkpoint(tmp_path, "one"))


def rows(spark: Any, begin: int, end: int) -> Any:
    return spark.range(begin, end, 1, 3).selectExpr("id AS n", "concat('n', id) AS name")


def numbers(lake: Catalog, table: str = "rows") -> list[int]:
    return sorted(lake.scan(table)["n"].to_pylist())


@on_both("spark_url")
def test_each_batch_is_a_snapshot_and_a_repeated_one_is_not_stored_again(
    spark: Any, sink: LakeSink, lake: Catalog, duck: Duck
) -> None:
    sink(rows(spark, 0, 50), 0)
    sink(rows(spark, 50, 90), 1)
    before = lake.snapshot().id
    sink(rows(spark, 50, 90), 1)
    assert lake.snapshot().id == before
    sink(rows(spark, 90, 90), 2)  # an empty one counts too
    sink(rows(spark, 90, 100), 3)
    assert numbers(lake) == list(range(100))
    assert duck.value("SELECT count(DISTINCT n) FROM rows WHERE name = 'n' || n") == 100
    (found,) = cursors(lake)
    assert (found.seq, found.rows_stored) == (4, 100)


def test_a_process_that_takes_over_goes_on_and_the_one_before_it_cannot(
    spark: Any, sink: LakeSink, lake: Catalog
) -> None:
    sink(rows(spark, 0, 10), 0)
    ((key, old),) = stream_sink._WRITERS.items()
    del stream_sink._WRITERS[key]
    sink(rows(spark, 0, 10), 0)
    sink(rows(spark, 10, 20), 1)
    with old.lake, pytest.raises(TakenOver):
        old.add(rows(spark, 20, 30), 2)
    assert numbers(lake) == list(range(20))


def test_two_tables_change_in_one_snapshot(
    spark: Any, address: str, lake: Catalog, tmp_path: Path
) -> None:
    sink = LakeSink(address, {"a": ("n",), "b": ("name", "n")}, checkpoint(tmp_path, "two"))
    sink(rows(spark, 0, 5), 0)
    made = lake.snapshot().id
    sink(rows(spark, 5, 9), 1)
    assert lake.snapshot().id == made + 1
    assert numbers(lake, "a") == numbers(lake, "b") == list(range(9))
    assert lake.scan("b").column_names == ["name", "n"]


def test_another_checkpoint_is_another_query_and_skips_nothing(
    spark: Any, sink: LakeSink, address: str, lake: Catalog, tmp_path: Path
) -> None:
    sink(rows(spark, 0, 3), 0)
    LakeSink(address, "rows", checkpoint(tmp_path, "other"))(rows(spark, 0, 3), 0)
    assert numbers(lake) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("batch", [0, 3])
def test_a_batch_out_of_order_is_refused(
    batch: int, spark: Any, sink: LakeSink, lake: Catalog
) -> None:
    """Spark repeats the last batch at most: any other number is that of an older copy."""
    sink(rows(spark, 0, 1), 0)
    sink(rows(spark, 1, 2), 1)
    with pytest.raises(Rejected, match="has 2 batches of this query, and Spark goes on with"):
        sink(rows(spark, 7, 8), batch)
    assert numbers(lake) == [0, 1]


def test_what_cannot_be_stored_is_refused_and_nothing_is_made(
    spark: Any, address: str, lake: Catalog, tmp_path: Path
) -> None:
    lacking = LakeSink(address, {"rows": ("n", "price")}, checkpoint(tmp_path, "lacking"))
    with pytest.raises(Rejected, match="the query does not give price"):
        lacking(rows(spark, 0, 1), 0)
    dead = LakeSink(address, "rows", checkpoint(tmp_path, "dead"))
    with pytest.raises(Rejected, match="a sink does not keep dead letters"):
        dead(rows(spark, 0, 1).selectExpr("n", "'bad' AS _reason"), 0)
    elsewhere = LakeSink(address, "rows", str(tmp_path / "elsewhere"))
    with pytest.raises(Rejected, match="the same path as the option checkpointLocation"):
        elsewhere(rows(spark, 0, 1), 0)
    with pytest.raises(Rejected, match="needs a table to write to"):
        LakeSink(address, {}, "/nowhere")
    assert [table.name for table in lake.tables()] == []
