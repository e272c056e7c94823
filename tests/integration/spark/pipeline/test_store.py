"""Batches below and above the size from which Spark's tasks write them, and their dead letters."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.client import Client
from penstock.lake.catalog import Catalog
from penstock.metering.pipeline import metering
from penstock.spark.lake import task_files
from penstock.spark.lake.reading import read_table
from penstock.spark.link import SparkLink
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline.cursors import Cursor, cursor_of, take_over
from penstock.spark.pipeline.definition import DEAD_LETTERS, RAW
from penstock.spark.pipeline.replay import replay
from penstock.spark.pipeline.runner import PipelineRunner, RunnerOptions
from penstock.spark.pipeline.store import HERE_BYTES_MAX, RESERVE_MS, Store
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import on_both
from tests.integration.spark.pipeline.fleet import Fleet, fill_tariffs, space_of

ON_BOTH = on_both("spark_url")


def same(rows: Any) -> Any:
    return rows


def messages(count: int) -> pa.Table:
    time = pa.array([0] * count, pa.int64()).cast(RAW.field("received_at").type)
    columns = [pa.array(range(1, count + 1), pa.int64()), pa.array(["d"] * count),
               pa.array(map(str, range(count))), time, pa.array(["{}"] * count)]  # fmt: skip
    return pa.table(columns, schema=RAW)


def begin(lake: Catalog, pipeline: Pipeline) -> Cursor:
    return take_over(lake, pipeline.name, pipeline.raw_topic, 1, "us")


@ON_BOTH
@pytest.mark.parametrize("here_bytes_max", [HERE_BYTES_MAX, 1])
def test_a_batch_is_the_same_in_the_lake_whoever_writes_it(
    spark: Any, lake: Catalog, duck: Duck, here_bytes_max: int
) -> None:
    """Columns pass through from a table of the lake, in another order and into two tables."""
    duck.run(
        "CREATE TABLE source AS SELECT i AS n, 'n' || i AS name, {'x': i, 'y': {'z': -i}} AS s, "
        "[{'q': i}] AS l FROM range(1, 101) r(i)"
    )
    read = read_table(spark, lake.storage, lake.table_at("source"))
    rows = read.repartition(3).selectExpr(
        "l", "s", "name", "n AS _seq", "0 AS _row", "n",
        "if(n % 10 = 0, 'tenth', CAST(NULL AS STRING)) AS _reason", "'evaluate' AS _stage",
    )  # fmt: skip
    targets = {"named": ("name", "n"), "nested": ("l", "n", "s")}
    pipeline = Pipeline("raw", same, same, targets)
    stored = Store(lake, pipeline, here_bytes_max=here_bytes_max).store(
        rows, messages(100), begin(lake, pipeline), (0, 100, 100, 0)
    )
    assert (stored.rows, stored.dead) == (90, 10)
    for table, columns in targets.items():
        wanted = f"SELECT {', '.join(columns)} FROM source WHERE n % 10 <> 0"
        assert duck.value(f"SELECT count(*) FROM ({wanted} EXCEPT ALL FROM {table})") == 0
        assert lake.scan(table).num_rows == duck.value(f"SELECT count(*) FROM {table}") == 90
        assert lake.scan(table).column_names == list(columns)
    assert sorted(lake.scan("dead_letters")["seq"].to_pylist()) == list(range(10, 101, 10))
    now = cursor_of(lake, pipeline.name)
    assert now is not None
    assert (now.seq, now.rows_stored, now.rows_dead) == (100, 90, 10)


def test_a_batch_larger_than_comes_here_is_written_by_tasks(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    """More than the real limit, half of which nothing compresses; columns in another order."""
    count = 2 * HERE_BYTES_MAX // 250
    duck.run(
        "CREATE TABLE source AS SELECT i AS id, unhex(sha256('a' || i)) AS a, "
        "unhex(sha256('b' || i)) AS b, unhex(sha256('c' || i)) AS c, repeat('x', 120) AS pad "
        f"FROM range({count}) r(i)"
    )
    read = read_table(spark, lake.storage, lake.table_at("source"))
    rows = read.selectExpr(
        "pad", "c", "a", "id AS _seq", "0 AS _row", "CAST(NULL AS STRING) AS _reason",
        "'evaluate' AS _stage", "b", "id",
    )  # fmt: skip
    pipeline = Pipeline("raw", same, same, "t")
    stored = Store(lake, pipeline).store(
        rows, messages(0), begin(lake, pipeline), (0, count, count, 0)
    )
    assert (stored.rows, stored.dead) == (count, 0)
    files = lake.table_at("t").files
    assert all("part-" in file.path for file in files), "left as tasks wrote them"
    digest = "SELECT sum(hash(t)::HUGEINT) FROM (SELECT id, a, b, c, pad FROM {}) t"
    assert duck.value(digest.format("t")) == duck.value(digest.format("source"))
    (row,) = duck.rows("SELECT * FROM t WHERE id = 4711")
    assert row == lake.scan("t").filter(pc.field("id") == 4711).to_pylist()[0]


def test_a_batch_with_a_planted_wrong_id_stores_nothing(
    spark: Any, lake: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = task_files.own_column
    wrong = {"metadata": {"parquet.field.id": 99}}
    monkeypatch.setattr(task_files, "own_column", lambda c: true(c).alias(c.name, **wrong))
    rows = spark.range(9).selectExpr(
        "id", "id AS _seq", "0 AS _row", "CAST(NULL AS STRING) AS _reason", "'evaluate' AS _stage"
    )
    pipeline = Pipeline("raw", same, same, "t")
    cursor = begin(lake, pipeline)
    with pytest.raises(Exception, match="internal error: expected column 'id'"):
        Store(lake, pipeline, here_bytes_max=1).store(rows, messages(9), cursor, (0, 9, 9, 0))
    assert cursor_of(lake, pipeline.name) == cursor
    assert list(lake.tables()) == []


@ON_BOTH
def test_a_pipeline_whose_batches_tasks_write_has_every_message_once(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(31))
    head = fleet.send(120)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    options = RunnerOptions(here_bytes_max=1)
    runner = PipelineRunner(pipeline, lake, url, link=link, options=options)
    assert runner.run(head).seq == head
    fleet.check(lake, duck)


def letters(pipeline: Pipeline, count: int) -> pa.Table:
    moment = pa.array([0] * count, pa.int64()).cast(DEAD_LETTERS.field("failed_at").type)
    text = [json.dumps({"v": number}).encode() for number in range(count)]
    columns: dict[str, Any] = {
        "pipeline": pa.array([pipeline.name] * count),
        "seq": pa.array(range(count), pa.int64()),
        "row_no": pa.array([None] * count, pa.int32()),
        "stage": pa.array(["parse"] * count),
        "reason": pa.array(["broken: it was"] * count),
        "device": pa.array(["d"] * count),
        "message_id": pa.array(map(str, range(count))),
        "received_at": moment,
        "payload": pa.array(text, pa.binary()),
        "failed_at": moment,
    }
    return pa.table([columns[name] for name in DEAD_LETTERS.names], schema=DEAD_LETTERS)


@pytest.mark.parametrize(("count", "most"), [(23, 5), (52_000, 50_000)])
def test_more_letters_than_are_tried_at_once_all_become_rows(
    spark: Any, lake: Catalog, duck: Duck, count: int, most: int
) -> None:
    def parse(rows: Any) -> Any:
        return rows.selectExpr("CAST(get_json_object(payload, '$.v') AS BIGINT) AS v", "device",
                               "_seq")  # fmt: skip

    pipeline = Pipeline("raw", parse, same, "t")
    change = lake.begin(reserve_ms=RESERVE_MS)
    Store(lake, pipeline).add_letters(change, letters(pipeline, count))
    lake.commit(change)
    options = {} if most == 50_000 else {"letters_max": most}
    tried = []
    while (done := replay(spark, lake, pipeline, **options)).letters:
        assert (done.rows, done.dead) == (done.letters, 0)
        tried.append(done.letters)
    assert sum(tried) == count
    assert max(tried) == tried[0] == most
    found = duck.rows("SELECT count(*) AS n, sum(v) AS s, count(DISTINCT v) AS d FROM t")
    assert found == [{"n": count, "s": count * (count - 1) // 2, "d": count}]
    assert lake.scan("t")["device"].unique().to_pylist() == ["d"]
    assert lake.scan("dead_letters").num_rows == 0
