"""Topics as DataFrames, with a real server and a real Spark."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.client import Client, Record
from penstock.kernel.errors import Gone, Rejected, Unavailable
from penstock.spark.topics.http import TopicAddress, TopicMissing, TopicRecreated
from penstock.spark.topics.pages import SeqRange
from penstock.spark.topics.source import fetch, head_of, read_topic

WAYS = pytest.mark.parametrize("fetch_rows_max", [100_000, 0], ids=["fetched", "by tasks"])
SCHEMA = "meter INT, kwh DOUBLE, _seq BIGINT, _tag STRING, _node STRING"


def fill(client: Client, topic: str, count: int = 10) -> int:
    records = [
        Record({"meter": n % 3, "kwh": n / 2}, tag=f"tag{n}", node="n1") for n in range(count)
    ]
    return client.write(topic, records).last_seq


@WAYS
def test_a_range_has_the_records_after_one_seq_up_to_another(
    spark: Any, client: Client, url: str, topic: str, fetch_rows_max: int
) -> None:
    fill(client, topic)
    frame = read_topic(
        spark, url, topic, None, upto_seq=7, from_seq=4, fetch_rows_max=fetch_rows_max
    )
    assert frame.columns == ["seq", "ts", "node", "tag", "data", "meta"]
    rows = frame.orderBy("seq").collect()
    assert [row.seq for row in rows] == [5, 6, 7]
    assert rows[0].data == '{"meter":1,"kwh":2.0}'
    assert (rows[0].tag, rows[0].node, rows[0].meta) == ("tag4", "n1", None)


@WAYS
def test_a_schema_takes_columns_from_the_data_and_from_the_record(
    spark: Any, client: Client, url: str, topic: str, fetch_rows_max: int
) -> None:
    head = fill(client, topic, 4)
    head = client.write(topic, [{"meter": "seven"}, 7]).last_seq
    frame = read_topic(spark, url, topic, SCHEMA, head, fetch_rows_max=fetch_rows_max)
    assert [tuple(row) for row in frame.orderBy("_seq").collect()] == [
        (0, 0.0, 1, "tag0", "n1"),
        (1, 0.5, 2, "tag1", "n1"),
        (2, 1.0, 3, "tag2", "n1"),
        (0, 1.5, 4, "tag3", "n1"),
        (None, None, 5, None, None),
        (None, None, 6, None, None),
    ]


def test_with_a_key_the_last_record_of_each_key_is_left_unless_it_deletes(
    spark: Any, client: Client, url: str, topic: str
) -> None:
    fill(client, topic)
    deletes = [Record({"meter": 1}, meta={"op": "delete"}), Record({"kwh": 9}), {"meter": 5}]
    head = client.write(topic, deletes).last_seq
    frame = read_topic(spark, url, topic, "meter INT, kwh DOUBLE", head, key="meter")
    rows = frame.orderBy("meter").collect()
    assert [tuple(row) for row in rows] == [(0, 4.5), (2, 4.0), (5, None)]
    before = read_topic(spark, url, topic, "meter INT, kwh DOUBLE", head - 3, key=["meter"])
    assert before.count() == 3


def test_a_key_may_be_the_tag_and_null_deletes_it(
    spark: Any, client: Client, url: str, topic: str
) -> None:
    records = [Record({"v": 1}, tag="a"), Record({"v": 2}, tag="b"), Record(None, tag="a")]
    head = client.write(topic, records).last_seq
    frame = read_topic(spark, url, topic, "_tag STRING, v INT", head, key="_tag")
    assert [tuple(row) for row in frame.collect()] == [("b", 2)]


def test_an_empty_range_is_no_question_to_the_server(spark: Any) -> None:
    frame = read_topic(spark, "http://127.0.0.1:9", "nobody", "a INT", upto_seq=0)
    assert (frame.columns, frame.count()) == (["a"], 0)


def test_every_record_is_read_once_in_parts_and_pages(
    spark: Any, client: Client, url: str, topic: str
) -> None:
    for start in range(0, 150_000, 10_000):
        client.write(topic, list(range(start, start + 10_000)), return_seqs=False)
    frame = read_topic(spark, url, topic, None, upto_seq=149_990, from_seq=3, fetch_rows_max=0)
    found = frame.selectExpr("count(*)", "sum(seq)", "sum(int(data))", "min(seq)", "max(seq)")
    expected = range(4, 149_991)
    total = sum(expected)
    assert tuple(found.collect()[0]) == (len(expected), total, total - len(expected), 4, 149_990)
    reader = spark.read.format("penstock").options(url=url, topic=topic, partitions="4")
    parts = reader.load().selectExpr("spark_partition_id() AS part").groupBy("part").count()
    assert sorted(row["count"] for row in parts.collect()) == [37_500] * 4


@WAYS
def test_evicted_records_fail_the_read_unless_it_passes_over_them(
    spark: Any, client: Client, url: str, topic: str, fetch_rows_max: int
) -> None:
    client.put_topic(topic, cap_records=5)
    head = fill(client, topic, 12)
    with pytest.raises(
        Exception, match=r"records 1 to 7 of topic .* are gone \(cap\); the earliest is 8"
    ):
        read_topic(spark, url, topic, None, head, fetch_rows_max=fetch_rows_max).count()
    frame = read_topic(spark, url, topic, None, head, lost="pass", fetch_rows_max=fetch_rows_max)
    assert frame.count() == 5
    with pytest.raises(Gone):
        fetch(TopicAddress(url, topic), SeqRange(0, head))


def test_a_topic_made_again_is_not_the_topic_that_was_asked_for(
    spark: Any, client: Client, url: str, topic: str
) -> None:
    fill(client, topic)
    epoch, head = head_of(url, topic)
    assert head == 10
    client.delete_topic(topic)
    client.put_topic(topic)
    fill(client, topic)
    with pytest.raises(TopicRecreated, match="deleted and made again"):
        read_topic(spark, url, topic, None, head, epoch=epoch)
    with pytest.raises(TopicRecreated, match="ends at seq 10, before 99"):
        read_topic(spark, url, topic, None, 99)


def test_what_is_not_there_is_told_by_name(spark: Any, url: str, topic: str) -> None:
    with pytest.raises(TopicMissing, match="there is no topic 'nobody' at http://127"):
        read_topic(spark, url, "nobody", None, 5)
    with pytest.raises(Exception, match="there is no topic 'nobody'"):
        spark.read.format("penstock").options(url=url, topic="nobody").load().count()
    with pytest.raises(Unavailable, match=r"no answer from .* connection refused"):
        fetch(TopicAddress("http://127.0.0.1:9", topic, timeout_s=0.3), SeqRange(0, 5))
    with pytest.raises(Rejected, match="'a HUGEINT' does not declare columns"):
        read_topic(spark, url, topic, "a HUGEINT", 0)
    with pytest.raises(Rejected, match="no column b for the key; columns are a"):
        read_topic(spark, url, topic, "a INT", 0, key="b")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tpoic": "a"}, "no option 'tpoic' \\(did you mean 'topic'\\?\\)"),
        ({"from_seq": "soon"}, "from_seq must be a seq, 'earliest' or 'latest'"),
        ({"max_rows": "0"}, "max_rows must be a whole number of at least 1, not '0'"),
        ({"max_rows": "5", "min_rows": "3"}, "a batch takes one limit"),
        ({"lost": "ignore"}, "lost must be 'fail' or 'pass', not 'ignore'"),
        ({"url": "localhost"}, "is not a URL such as"),
    ],
)
def test_options_that_are_none_are_refused(options: dict[str, str], said: str) -> None:
    from penstock.spark.topics.options import parse_options

    with pytest.raises(Rejected, match=said):
        parse_options({"topic": "t", **options})
