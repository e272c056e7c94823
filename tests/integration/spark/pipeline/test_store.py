"""Batches of users' frames as one job: what is stored, what is dead, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import register_pickle_by_value

from penstock.client import Client
from penstock.kernel.errors import Rejected
from penstock.lake.catalog import Catalog
from penstock.metering.pipeline import metering
from penstock.spark.lake.reading import read_table
from penstock.spark.lake.task_files import FilesDiffer
from penstock.spark.link import SparkLink, connect
from penstock.spark.pipeline import Pipeline
from penstock.spark.pipeline import chain as chains
from penstock.spark.pipeline.chain import Chain, NotChainable, StageFailed
from penstock.spark.pipeline.cursors import Cursor, cursor_of, take_over
from penstock.spark.pipeline.definition import DEAD_LETTERS, RAW, ArrowStep, Step
from penstock.spark.pipeline.fetch import FetchedBatch
from penstock.spark.pipeline.replay import replay
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.side_files import SideStore
from penstock.spark.pipeline.store import Store, Stored, TablesChanged, add_rows
from penstock.spark.pipeline.task import TaskWork
from tests.integration.lake.duck import Duck
from tests.integration.spark.one import on_both
from tests.integration.spark.pipeline.fleet import Fleet, fill_tariffs, space_of

ON_BOTH = on_both("spark_url")
register_pickle_by_value(sys.modules[__name__])  # Spark's workers have no `tests`


def same(rows: Any) -> Any:
    return rows


TEXTS = pa.schema([("_seq", pa.int64()), ("text", pa.string())])


def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(TEXTS.names)


def messages(count: int) -> pa.Table:
    time = pa.array([0] * count, pa.int64()).cast(RAW.field("received_at").type)
    columns = [pa.array(range(1, count + 1), pa.int64()), pa.array(["d"] * count),
               pa.array(map(str, range(count))), time, pa.array(["{}"] * count)]  # fmt: skip
    return pa.table(columns, schema=RAW)


def begin(lake: Catalog, pipeline: Pipeline) -> Cursor:
    return take_over(lake, pipeline.name, pipeline.raw_topic, 1, "us")


def stored(
    spark: Any,
    lake: Catalog,
    pipeline: Pipeline,
    sent: pa.Table,
    *,
    file_bytes: int = 1 << 30,
    meanwhile: Callable[[], object] = lambda: None,
) -> Stored:
    """Run a batch of these messages as a runner does."""
    store, chain = Store(lake, pipeline), Chain(spark, pipeline)
    chain.check()
    cursor = begin(lake, pipeline)
    evaluate = pipeline.pinned().evaluate
    tables = store.tables(chain.schema(evaluate))
    token = store.reserve()
    steps = SideStore(lake).steps(chain.steps(evaluate))
    work = TaskWork(lake.storage.root, token, tables.targets, steps=steps, file_bytes=file_bytes)
    result = chain.run(chain.begin(sent), evaluate, work)
    meanwhile()
    count = sent.num_rows
    return store.commit(FetchedBatch(0, count, sent, count, 0), result, tables, cursor, token=token)


@ON_BOTH
def test_rows_of_frames_are_in_the_lake_as_they_were_in_spark(
    spark: Any, lake: Catalog, duck: Duck
) -> None:
    """Columns pass through from a table of the lake, in another order and into two tables."""
    duck.run(
        "CREATE TABLE source AS SELECT i AS n, 'n' || i AS name, {'x': i, 'y': {'z': -i}} AS s, "
        "[{'q': i}] AS l FROM range(1, 101) r(i)"
    )
    read = read_table(spark, lake.storage, lake.table_at("source"))

    def parse(raw: Any) -> Any:
        return raw.selectExpr("_seq", "if(_seq % 25 = 0, 'a quarter', NULL) AS _reason")

    def evaluate(rows: Any) -> Any:
        made = rows.join(read, rows._seq == read.n).repartition(3)
        return made.selectExpr(
            "l", "s", "name", "_seq", "0 AS _row", "n",
            "if(n % 10 = 0, 'tenth', CAST(NULL AS STRING)) AS _reason",
        )  # fmt: skip

    targets = {"named": ("name", "n"), "nested": ("l", "n", "s")}
    pipeline = Pipeline("raw", parse, evaluate, targets)
    done = stored(spark, lake, pipeline, messages(100))
    assert (done.rows, done.dead) == (88, 12)
    for table, columns in targets.items():
        wanted = f"SELECT {', '.join(columns)} FROM source WHERE n % 10 <> 0 AND n % 25 <> 0"
        assert duck.value(f"SELECT count(*) FROM ({wanted} EXCEPT ALL FROM {table})") == 0
        assert lake.scan(table).num_rows == duck.value(f"SELECT count(*) FROM {table}") == 88
        assert lake.scan(table).column_names == list(columns)
    found = sorted(
        (row["seq"], row["stage"], row["reason"]) for row in lake.scan("dead_letters").to_pylist()
    )
    assert [seq for seq, stage, _ in found if stage == "parse"] == [25, 50, 75, 100]
    assert [seq for seq, _, reason in found if reason == "tenth"] == [
        10,
        20,
        30,
        40,
        60,
        70,
        80,
        90,
    ]
    now = cursor_of(lake, pipeline.name)
    assert now is not None
    assert (now.seq, now.rows_stored, now.rows_dead) == (100, 88, 12)


def frames(raw: Any) -> Any:
    return raw.selectExpr("_seq", "payload AS text")


@pytest.mark.parametrize("evaluate", [same, ArrowStep(once, TEXTS)], ids=["frame", "arrow"])
def test_after_the_first_batch_the_server_is_asked_nothing(
    spark: Any, lake: Catalog, monkeypatch: pytest.MonkeyPatch, evaluate: Step
) -> None:
    """No schema, no type, no settings: a batch is one request, with its messages in it once."""
    pipeline = Pipeline("raw", frames, evaluate, "t")
    chain, store = Chain(spark, pipeline), Store(lake, pipeline)
    tables = store.tables(chain.schema(evaluate))
    steps = SideStore(lake).steps(chain.steps(evaluate))
    work = TaskWork(lake.storage.root, store.reserve(), tables.targets, steps=steps)
    assert chain.run(chain.begin(messages(10)), evaluate, work).rows == 10
    asked = []
    for name in ("_analyze", "config"):
        monkeypatch.setattr(spark.client, name, lambda *a, **k: asked.append((a, k)))
    assert chain.run(chain.begin(messages(20)), evaluate, work).rows == 20
    assert asked == []


def test_a_large_batch_is_the_same_plan_with_more_tasks(
    spark: Any, lake: Catalog, duck: Duck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More messages than travel inside a plan, in several tasks that write several files each."""
    count = 40_000
    sent = messages(count)
    pads = pa.array([f"{n:06}" * 30 for n in range(count)])
    sent = sent.set_column(4, "payload", pads)
    monkeypatch.setattr(chains, "INLINE_BYTES_MAX", sent.nbytes - 1)

    def parse(raw: Any) -> Any:
        return raw.selectExpr("_seq", "payload AS pad", "_seq * 2 AS twice")

    pipeline = Pipeline("raw", parse, lambda rows: rows, "t")
    done = stored(spark, lake, pipeline, sent, file_bytes=1)
    assert (done.rows, done.dead) == (count, 0)
    assert len(lake.table_at("t").files) > 1
    found = duck.rows("SELECT count(*) AS n, sum(twice) AS s, count(DISTINCT pad) AS d FROM t")
    assert found == [{"n": count, "s": count * (count + 1), "d": count}]
    assert sorted(lake.scan("t")["pad"].to_pylist()) == sorted(pads.to_pylist())


def test_a_batch_whose_files_are_not_all_here_stores_nothing(spark: Any, lake: Catalog) -> None:
    pipeline = Pipeline("raw", same, same, "t")

    def lose() -> None:
        lost, *_ = lake.storage.files(lake.table("t").path)
        assert lake.storage.remove(lost.path)

    with pytest.raises(FilesDiffer, match="a file that a task wrote is not here"):
        stored(spark, lake, pipeline, messages(9), meanwhile=lose)
    now = cursor_of(lake, pipeline.name)
    assert now is not None
    assert (now.seq, lake.scan("t").num_rows) == (0, 0)


def test_a_table_that_is_altered_while_a_batch_is_made_for_it_takes_nothing_of_it(
    spark: Any, lake: Catalog
) -> None:
    pipeline = Pipeline("raw", same, same, "t")

    def alter() -> None:
        change = lake.begin()
        change.rename_column(lake.table("t"), "device", "sender")
        lake.commit(change)

    with pytest.raises(TablesChanged, match=r"main\.t was changed"):
        stored(spark, lake, pipeline, messages(9), meanwhile=alter)
    assert lake.scan("t").num_rows == 0


def test_what_does_not_fit_a_table_that_is_there_is_refused_before_any_job(
    spark: Any, lake: Catalog
) -> None:
    change = lake.begin()
    change.create_table(lake.schema("main"), "t", pa.schema([("device", pa.int64())]))
    lake.commit(change)
    pipeline = Pipeline("raw", same, same, {"t": ["device"]})
    with pytest.raises(Rejected, match="column 'device' takes int64, not string"):
        stored(spark, lake, pipeline, messages(1))


def chained(spark: Any, parse: Step, evaluate: Step) -> None:
    Chain(spark, Pipeline("raw", parse, evaluate, "t")).check()


def test_steps_that_do_more_than_describe_rows_are_refused_with_the_reason(
    spark: Any, spark_url: str
) -> None:
    def counts(rows: Any) -> Any:
        return rows.limit(rows.count())

    def writes(rows: Any) -> Any:
        rows.write.format("noop").mode("overwrite").save()
        return rows

    def keeps(rows: Any) -> Any:
        return rows.localCheckpoint()

    def fetches(rows: Any) -> Any:
        return rows.sparkSession.createDataFrame(rows.toPandas())

    def caches(rows: Any) -> Any:
        return rows.cache()

    def inserts(rows: Any) -> Any:
        rows.createOrReplaceTempView("arrived")
        rows.sparkSession.sql("CREATE OR REPLACE TABLE copied AS SELECT * FROM arrived")
        return rows

    for action in (counts, writes, keeps, fetches, caches, inserts):
        with pytest.raises(NotChainable, match="parse runs a query of its own"):
            chained(spark, action, same)
        with pytest.raises(NotChainable, match="evaluate runs a query of its own"):
            chained(spark, same, action)
    with pytest.raises(NotChainable, match=r"evaluate must return a DataFrame .* not NoneType"):
        chained(spark, same, lambda rows: None)

    def asks(rows: Any) -> Any:
        rows.createOrReplaceTempView("arrived")
        return rows.sparkSession.sql("SELECT * FROM arrived")

    chained(spark, lambda raw: raw.where("length(payload) > 0"), lambda rows: rows.distinct())
    chained(spark, asks, asks)
    assert spark.range(3).count() == 3, "the session is as it was"


def test_steps_that_leave_their_session_or_their_batch_are_refused_with_the_reason(
    spark: Any, spark_url: str
) -> None:
    def streams(rows: Any) -> Any:
        return rows.sparkSession.readStream.format("rate").load().selectExpr("value AS _seq")

    for parse, evaluate, stage in ((streams, same, "parse"), (same, streams, "evaluate")):
        with pytest.raises(NotChainable, match=f"{stage} returned a streaming DataFrame"):
            chained(spark, parse, evaluate)
    with connect(spark_url) as other:
        away = other.range(3).selectExpr("id AS _seq")
        with pytest.raises(NotChainable, match="parse returned a DataFrame of another session"):
            chained(spark, lambda rows: away, same)
        with pytest.raises(NotChainable, match="evaluate uses a DataFrame of another session"):
            chained(spark, same, lambda rows: rows.join(away, "_seq"))


@pytest.mark.parametrize("stage", ["parse", "evaluate"])
def test_an_error_inside_spark_says_which_step_it_came_from(
    spark: Any, lake: Catalog, stage: str
) -> None:
    def breaks(rows: Any) -> Any:
        return rows.withColumn("n", rows._seq / (rows._seq - 5))

    steps = {"parse": same, "evaluate": same} | {stage: breaks}
    pipeline = Pipeline("raw", steps["parse"], steps["evaluate"], "t")
    with pytest.raises(StageFailed, match=f"^{stage}: .*DIVIDE_BY_ZERO") as raised:
        stored(spark, lake, pipeline, messages(9))
    assert raised.value.stage == stage


def test_a_frame_in_front_of_arrow_steps_gives_the_same_rows(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    """The same pipeline with a parse in a worker of its own, through the JVM."""
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(31))
    head = fleet.send(120)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    framed = replace(pipeline, parse=pipeline.parse.__call__)
    assert PipelineRunner(framed, lake, url, link=link).run(head).seq == head
    fleet.check(lake, duck)


@ON_BOTH
def test_a_metering_pipeline_has_every_message_once_on_any_file_system_of_spark(
    link: SparkLink, client: Client, url: str, topic: str, lake: Catalog, duck: Duck
) -> None:
    fill_tariffs(url, topic)
    fleet = Fleet(client, topic, Random(32))
    head = fleet.send(120)
    pipeline = metering(url, topic, tariffs=space_of(topic))
    assert PipelineRunner(pipeline, lake, url, link=link).run(head).seq == head
    fleet.check(lake, duck)
    left = [f.path for f in lake.storage.files(lake.data_path) if "penstock-side" in f.path]
    assert left == [], "the book is gone when the run is over"


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
    table = Store(lake, pipeline).tables(pa.schema([("v", pa.int64()), ("device", pa.string())]))
    change = lake.begin()
    add_rows(lake, change, table.letters, letters(pipeline, count))
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
