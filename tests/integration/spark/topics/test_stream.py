"""Plain Structured Streaming jobs over topics: into files, into topics, stopped and started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client, Record
from penstock.kernel.errors import Rejected
from penstock.spark.topics.sink import check_columns
from tests.integration.spark.topics.place import new_topic

DEADLINE_S = 120


def source(spark: Any, url: str, topic: str, **options: str) -> Any:
    return spark.readStream.format("penstock").options(url=url, topic=topic, **options).load()


def to_files(frame: Any, directory: Path) -> None:
    """What is there now, into Parquet files; exactly once by the checkpoint."""
    query = (
        frame.selectExpr("seq", "from_json(data, 'n INT').n AS n")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "rows"))
    )
    assert query.awaitTermination(DEADLINE_S)


def to_topic(frame: Any, url: str, topic: str, directory: Path) -> None:
    query = (
        frame.selectExpr("data", "tag")
        .writeStream.format("penstock")
        .options(url=url, topic=topic)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(DEADLINE_S)


def ends_of_batches(directory: Path) -> list[int]:
    """The seq at which each batch ended, as Spark noted it before it began."""
    offsets = directory / "checkpoint" / "offsets"
    names = sorted(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    return [json.loads((offsets / str(n)).read_text().splitlines()[-1])["seq"] for n in names]


def numbers(spark: Any, directory: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(str(directory / "rows")).collect())


@pytest.mark.slow
def test_a_job_goes_on_where_it_was_until_its_topic_is_another(
    spark: Any, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    client.write(topic, [{"n": n} for n in range(25)])
    to_files(source(spark, url, topic, from_seq="3", max_rows="10"), tmp_path)
    assert ends_of_batches(tmp_path) == [13, 23, 25]
    client.write(topic, [{"n": n} for n in range(25, 40)])
    to_files(source(spark, url, topic), tmp_path)
    to_files(source(spark, url, topic), tmp_path)
    assert ends_of_batches(tmp_path) == [13, 23, 25, 40]
    assert numbers(spark, tmp_path) == list(range(3, 40))
    client.delete_topic(topic)
    client.put_topic(topic)
    client.write(topic, [{"n": 1}])
    with pytest.raises(Exception, match="deleted and made again"):
        to_files(source(spark, url, topic), tmp_path)


@pytest.mark.slow
def test_a_job_may_begin_at_the_end(
    spark: Any, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    client.write(topic, [{"n": n} for n in range(5)])
    to_files(source(spark, url, topic, from_seq="latest"), tmp_path)
    client.write(topic, [{"n": 5}])
    to_files(source(spark, url, topic, from_seq="latest"), tmp_path)
    assert numbers(spark, tmp_path) == [5]


@pytest.mark.slow
def test_real_time_mode_takes_neither_our_source_nor_our_sinks(
    spark: Any, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    """As docs/how-to/spark-topics.md says; if Spark learns to, measure what it gives."""

    def refused(name: str, frame: Any, **sink: Any) -> str:
        writer = frame.writeStream.outputMode("update").trigger(realTime="5 seconds")
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        writer = writer.foreachBatch(sink["each"]) if "each" in sink else writer.format(**sink)
        with pytest.raises(Exception, match="STREAMING_REAL_TIME_MODE") as error:
            writer.options(url=url, topic=topic).start().awaitTermination(DEADLINE_S)
        return str(error.value)

    client.write(topic, [{"n": 1}])
    rows, ticks = source(spark, url, topic), spark.readStream.format("rate").load()
    assert "PythonMicroBatchStream" in refused("source", rows, source="console")
    told = "not in the sink allowlist"
    assert told in refused("each", ticks, each=lambda rows, number: None)
    assert told in refused(
        "sink", ticks.selectExpr("to_json(struct(*)) AS data"), source="penstock"
    )


def test_rows_are_written_to_a_topic_once_for_a_name(
    spark: Any, client: Client, url: str, topic: str
) -> None:
    frame = spark.range(0, 2_500, numPartitions=2).selectExpr(
        "to_json(struct(*)) AS data", "concat('t', id % 2) AS tag", '\'{"by":"spark"}\' AS meta'
    )
    writer = frame.write.format("penstock").mode("append").options(url=url, topic=topic)
    for _ in range(2):
        writer.option("write_id", "night of the 3rd").save()
    found = [record for page in client.read(topic, include_tags=True) for record in page.records]
    assert sorted(record.data["id"] for record in found) == list(range(2_500))
    assert all(record.tag == f"t{record.data['id'] % 2}" for record in found)
    assert found[0].meta == {"by": "spark"}
    writer.option("write_id", "night of the 4th").save()
    assert client.get_topic(topic).count == 5_000


@pytest.mark.slow
def test_a_batch_that_is_done_again_adds_nothing_to_its_topic(
    spark: Any, client: Client, url: str, topic: str, tmp_path: Path
) -> None:
    """A crash between the write and the commit of a batch: Spark runs the same batch again."""
    target = new_topic()
    client.put_topic(target)
    client.write(topic, [Record({"n": n}, tag=f"m{n}") for n in range(30)])
    to_topic(source(spark, url, topic, max_rows="10"), url, target, tmp_path)
    assert client.get_topic(target).count == 30
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    client.write(topic, [Record({"n": 30})])
    to_topic(source(spark, url, topic), url, target, tmp_path)
    assert ends_of_batches(tmp_path) == [10, 20, 30, 31]
    assert (tmp_path / "checkpoint" / "commits" / "2").exists()
    found = [record for page in client.read(target, include_tags=True) for record in page.records]
    assert [record.data["n"] for record in found] == list(range(31))
    assert [record.tag for record in found][:2] == ["m0", "m1"]


def test_data_that_is_not_json_is_refused_and_never_another_record(
    spark: Any, client: Client, url: str, topic: str
) -> None:
    frame = spark.createDataFrame([('1},{"data":2',)], "data STRING")
    writer = frame.write.format("penstock").mode("append").options(url=url, topic=topic)
    with pytest.raises(Exception, match="data is not JSON text: b'1}"):
        writer.save()
    assert client.get_topic(topic).count == 0
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        frame.write.format("penstock").mode("overwrite").options(url=url, topic=topic).save()
    with pytest.raises(Rejected, match=r"rows with the columns id, data are not records"):
        check_columns(["id", "data"])
