"""A range of a topic as Arrow batches in Spark's types, one page ahead of the reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.topics.http import (
    RecordPage,
    RecordsGone,
    TopicAddress,
    TopicConnection,
    TopicRecreated,
)

SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("node", pa.string()),
        ("tag", pa.string()),
        ("data", pa.string()),
        ("meta", pa.string()),
    ]
)
"""Records as Spark gets them; `data` and `meta` are JSON text."""

DDL: Final = "seq BIGINT, ts TIMESTAMP, node STRING, tag STRING, data STRING, meta STRING"

Lost = Literal["fail", "pass"]
"""How to handle evicted records: fail, or continue with those that are left."""


@dataclass(frozen=True, slots=True)
class SeqRange:
    """The records after one seq and up to another, of one epoch of a topic.

    >>> SeqRange(0, 10).split(3)
    [SeqRange(after=0, upto=3, epoch=None), SeqRange(after=3, upto=6, epoch=None), \
SeqRange(after=6, upto=10, epoch=None)]
    """

    after: int
    upto: int
    epoch: int | None = None

    def __len__(self) -> int:
        return max(0, self.upto - self.after)

    def split(self, parts: int) -> list[SeqRange]:
        """The same range in so many parts of about the same length, none of them empty."""
        parts = max(1, min(parts, len(self)))
        cuts = [self.after + len(self) * n // parts for n in range(parts + 1)]
        return [SeqRange(after, upto, self.epoch) for after, upto in pairwise(cuts) if upto > after]


def read_range(address: TopicAddress, wanted: SeqRange, lost: Lost) -> Iterator[pa.RecordBatch]:
    """The records of a range, batch after batch; the next page is on its way meanwhile."""
    if not len(wanted):
        return
    with TopicConnection(address) as connection, ThreadPoolExecutor(1) as ahead:
        at = wanted.after
        coming: Future[RecordPage] | None = ahead.submit(_page, connection, at, wanted)
        while coming is not None:
            page = coming.result()
            check_page(address, page, at, wanted, lost)
            is_whole = page.next_seq >= wanted.upto or page.next_seq >= page.head_seq
            at = page.next_seq
            coming = None if is_whole else ahead.submit(_page, connection, at, wanted)
            for batch in page.rows.to_batches():
                found = in_range(batch, wanted)
                if found.num_rows:
                    yield found


def check_page(
    address: TopicAddress, page: RecordPage, at: int, wanted: SeqRange, lost: Lost
) -> None:
    """Refuse a page that is not all of what it should be."""
    check_continuity(address, page, at, wanted, lost)
    if page.head_seq < wanted.upto:
        raise TopicRecreated(
            f"topic {address.topic!r} ends at seq {page.head_seq}, before {wanted.upto}: it is "
            "another topic of that name, or its server lost its log"
        )


def check_continuity(
    address: TopicAddress, page: RecordPage, at: int, wanted: SeqRange, lost: Lost = "fail"
) -> None:
    """Refuse a page of another topic of the same name, or one that comes after a gap."""
    if wanted.epoch is not None and page.epoch != wanted.epoch:
        raise TopicRecreated(
            f"topic {address.topic!r} was deleted and made again: its epoch is {page.epoch}, no "
            f"longer {wanted.epoch}"
        )
    gap = page.tombstone
    if gap is not None and lost == "fail" and gap["gap_from"] <= wanted.upto:
        raise lost_error(address, gap, at)


def lost_error(address: TopicAddress, gap: Mapping[str, Any], at: int) -> RecordsGone:
    """What to say of records that are not there any more."""
    return RecordsGone(
        f"records {gap['gap_from']} to {gap['gap_to']} of topic {address.topic!r}, read after seq "
        f"{at}, are gone ({gap['reason']}); the earliest is {gap['earliest_seq']}"
    )


def in_range(batch: pa.RecordBatch, wanted: SeqRange) -> pa.RecordBatch:
    """The records of a batch that belong to a range, in Spark's types."""
    seqs = batch.column(0).cast(pa.int64())
    if batch.num_rows and seqs[-1].as_py() > wanted.upto:
        inside = pc.sum(pc.less_equal(seqs, wanted.upto)).as_py()
        batch, seqs = batch.slice(0, inside), seqs.slice(0, inside)
    times = batch.column(1).cast(SCHEMA.field("ts").type)
    return pa.record_batch([seqs, times, *batch.columns[2:]], schema=SCHEMA)


def _page(connection: TopicConnection, at: int, wanted: SeqRange) -> RecordPage:
    return connection.page(at, wanted.upto - at, wanted.epoch)
