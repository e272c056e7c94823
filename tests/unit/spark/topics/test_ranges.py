from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from penstock.kernel.errors import Rejected
from penstock.spark.topics.format import limited, parts_of
from penstock.spark.topics.http import TopicAddress
from penstock.spark.topics.options import SourceOptions, parse_options, sink_options
from penstock.spark.topics.pages import SeqRange
from penstock.spark.topics.sink import chunks, raw_json

ADDRESS = TopicAddress("http://127.0.0.1:4000", "t", "secret")


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(1, 50))
def test_the_parts_of_a_range_are_the_range(after: int, length: int, parts: int) -> None:
    found = SeqRange(after, after + length, 3).split(parts)
    assert sum(map(len, found)) == length
    edges = [(part.after, part.upto) for part in found]
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    assert len(found) == min(parts, length)
    if found:
        assert (edges[0][0], edges[-1][1]) == (after, after + length)
        assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_short_range_has_one_part() -> None:
    options = SourceOptions(ADDRESS, partitions=4, partition_rows_min=100)
    assert [len(parts_of(SeqRange(0, n), options)) for n in (0, 1, 99, 100, 350, 900)] == [
        0, 1, 1, 2, 4, 4,
    ]  # fmt: skip


def test_a_limit_ends_a_batch() -> None:
    assert limited(10, 100, ReadAllAvailable(), 1.0, wait=True) == 100
    assert limited(10, 100, ReadMaxRows(20), 1.0, wait=True) == 30
    assert limited(95, 100, ReadMaxRows(20), 1.0, wait=True) == 100
    assert limited(10, 100, ReadMaxBytes(1_000), 100.0, wait=True) == 20
    assert limited(10, 100, ReadMaxBytes(1), 100.0, wait=True) == 11
    assert limited(200, 100, ReadMaxRows(20), 1.0, wait=True) == 200, "it never goes back"
    assert limited(200, 100, ReadMaxBytes(1_000), 100.0, wait=True) == 200
    assert limited(10, 100, ReadMinRows(91), 1.0, wait=True) == 10
    assert limited(10, 100, ReadMinRows(90), 1.0, wait=True) == 100
    assert limited(10, 100, ReadMinRows(91), 1.0, wait=False) == 100
    assert limited(10, 5, ReadAllAvailable(), 1.0, wait=True) == 10


def test_options_survive_the_way_through_texts() -> None:
    options = SourceOptions(ADDRESS, 5, 900, 2, "pass", partitions=3, max_rows=10)
    assert parse_options(options.as_options()) == options
    assert "secret" not in repr(options)
    assert parse_options({"TOPIC": "t", "From_Seq": "latest"}).from_seq == "latest"
    with pytest.raises(Rejected, match="create must be 'true' or 'false', not 'yes'"):
        sink_options({"topic": "t", "create": "yes"})
    with pytest.raises(Rejected, match="the option 'topic' is missing"):
        sink_options({})


def test_chunks_depend_on_the_rows_alone() -> None:
    records = [b"x" * size for size in (10, 10, 10, 3 << 20, 3 << 20, 10)]
    assert [len(chunk) for chunk in chunks(iter(records), 2)] == [2, 2, 2]
    assert [len(chunk) for chunk in chunks(iter(records), 10)] == [4, 2]
    assert list(chunks(iter(()), 10)) == []


@pytest.mark.parametrize("text", ["", "{", '1},{"data":2', "nul", b"\xff"])
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(Rejected, match="data is not JSON text"):
        raw_json("data", text)
