"""Pages of columns are the pages of records, whatever left meanwhile and wherever a page begins."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.config import TopicConfig
from penstock.server.api import columns
from penstock.server.api.columns import ColumnRequest, ColumnRuns, RecordColumns
from penstock.topics.core.batch import Batch
from penstock.topics.core.entries import FeedMark
from penstock.topics.core.predicate import Predicate
from penstock.topics.core.record import RawRecord, make_record
from penstock.topics.core.topic import Topic

RECORDS = st.builds(
    make_record,
    st.sampled_from([b"1", b'{"a": 2}', b'"text"', b"null"]),
    st.sampled_from([None, None, b'{"m":1}']),
    st.sampled_from([None, None, "x", "y", ""]),
    st.sampled_from([None, "n"]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(RECORDS, min_size=1, max_size=9)),
        st.tuples(st.just("delete"), st.integers(1, 60)),
        st.tuples(st.just("match"), st.sampled_from(["x", "y"])),
        st.tuples(st.just("remove"), st.integers(1, 60)),
        st.tuples(st.just("hole"), st.integers(1, 12)),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 60), st.integers(1, 20))),
    ),
    min_size=3,
    max_size=30,
)


@settings(max_examples=150)
@given(
    steps=STEPS,
    bytes_max=st.sampled_from([1, 600, 1 << 30]),
    kept=st.sampled_from([0, 1 << 20]),
    run_bytes=st.sampled_from([1, 100, 1 << 20]),
)
def test_columns_are_the_records_in_order_each_once(
    steps: list[tuple[str, object]], bytes_max: int, kept: int, run_bytes: int
) -> None:
    with (
        mock.patch.object(columns, "RUN_SEQS", 8),
        mock.patch.object(columns, "RUN_BYTES_MAX", run_bytes),
    ):
        topic = Topic("t", TopicConfig(), epoch=1, now_ms=0)
        runs = ColumnRuns(bytes_max=kept)
        for verb, value in [*steps, ("read", (0, 1_000))]:
            take(topic, runs, verb, value, bytes_max)


def take(topic: Topic, runs: ColumnRuns, verb: str, value: object, bytes_max: int) -> None:
    match verb, value:
        case "write", list():
            records: list[RawRecord] = value
            topic.apply(topic.stage_append(Batch.of(records), 0))
        case "delete", int():
            topic.apply(topic.decide_delete(0, before_seq=value))
        case "match", str():
            topic.apply(topic.decide_delete(0, match=Predicate(value, prefix=False)))
        case "remove", int():
            topic.remove(value)
        case "hole", int():
            entry = topic.decide_feed(
                FeedMark("r", 1, topic.head_seq + value, value), Batch.of([]), 0
            )
            topic.apply(entry)  # type: ignore[arg-type]
        case "read", (int() as from_seq, int() as records_max):
            check(topic, runs, ColumnRequest(min(from_seq, topic.head_seq), records_max, bytes_max))


def read_back(piece: RecordColumns) -> list[dict[str, Any]]:
    """The rows of a message, which says the same as the columns it was made of."""
    batch = pa.ipc.read_record_batch(piece.message(tags=True, meta=True), piece.batch.schema)
    bare = piece.message(tags=False, meta=False)
    without = pa.ipc.read_record_batch(bare, piece.batch.schema).to_pylist()
    packed = piece.message(tags=True, meta=True, compression="lz4")
    rows: list[dict[str, Any]] = batch.to_pylist()
    assert rows == pa.ipc.read_record_batch(packed, piece.batch.schema).to_pylist()
    assert rows == piece.batch.to_pylist()
    assert without == [{**row, "tag": None, "meta": None} for row in rows]
    return rows


def check(topic: Topic, runs: ColumnRuns, wanted: ColumnRequest) -> None:
    """Reading page after page to the head gives what the topic has after the cursor."""
    got: list[tuple[int, str | None, str | None, str, str | None]] = []
    at = wanted.from_seq
    while at < topic.head_seq:
        pieces, passed = runs.page(topic, wanted._replace(from_seq=at))
        assert passed > at, "a page always gets on"
        assert not any(at + 1 < hole.first_seq <= passed for hole in topic.holes)
        assert sum(piece.rows for piece in pieces) <= wanted.records_max
        is_one = sum(piece.rows for piece in pieces) <= 1
        assert is_one or sum(piece.size_bytes for piece in pieces) <= wanted.bytes_max
        for piece in pieces:
            for row in read_back(piece):
                assert at < row["seq"] <= passed
                got.append((row["seq"], row["node"], row["tag"], row["data"], row["meta"]))
        at = passed
    assert got == [
        (
            slot.seq,
            slot.record.node,
            slot.record.tag,
            bytes(slot.record.data).decode(),
            None if slot.record.meta is None else bytes(slot.record.meta).decode(),
        )
        for slot in topic.live(wanted.from_seq, topic.head_seq)
    ]
    assert runs.kept_bytes >= 0
