"""`penstock` as a format of Spark: topics as batch and stream sources, and as sinks.

Imported only where pyspark is installed: by `topics.source.register`, and in Spark's Python
workers, which create these classes from the options of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.kernel.errors import Rejected
from penstock.spark.topics.http import TopicAddress, TopicConnection, TopicRecreated
from penstock.spark.topics.options import SourceOptions, parse_options, sink_options
from penstock.spark.topics.pages import DDL, SCHEMA, SeqRange, read_range
from penstock.spark.topics.sink import BatchWriter, StreamWriter

FORMAT: Final = "penstock"

Offset = dict[str, int]
"""Where a stream stands in its topic: the epoch, and the last seq that was read."""


class TopicDataSource(DataSource):  # type: ignore[misc]
    """The data source `penstock`; its options are those of `topics.options`."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def schema(self) -> str:
        """Every topic has the same columns; `data` and `meta` are JSON text."""
        return DDL

    def reader(self, schema: StructType) -> TopicReader:
        """Reads a range once."""
        check_schema(schema)
        return TopicReader(parse_options(self._given()))

    def streamReader(self, schema: StructType) -> TopicStreamReader:  # noqa: N802
        """Reads range after range."""
        check_schema(schema)
        return TopicStreamReader(parse_options(self._given()))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Appends rows once."""
        _refuse_overwrite(overwrite)
        return BatchWriter(sink_options(self._given()), schema.fieldNames())

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Appends batch after batch."""
        _refuse_overwrite(overwrite)
        return StreamWriter(sink_options(self._given()), schema.fieldNames())

    def _given(self) -> Mapping[str, str]:
        return cast("MutableMapping[str, str]", self.options)


class RangePartition(InputPartition):  # type: ignore[misc]
    """A part of a range, read by one task."""

    def __init__(self, part: SeqRange) -> None:
        self.part = part


class TopicReader(DataSourceReader):  # type: ignore[misc]
    """One range of a topic, in several parts."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[RangePartition]:
        """Settle the range and cut it."""
        options = self.options
        with TopicConnection(options.address) as connection:
            state = connection.state()
        if options.epoch is not None and state.epoch != options.epoch:
            raise _recreated(options.address, options.epoch, state.epoch)
        upto = state.head_seq if options.upto_seq is None else options.upto_seq
        after = _start(options.from_seq, state.earliest_seq, state.head_seq)
        return parts_of(SeqRange(after, upto, state.epoch), options)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """The records of one part."""
        return read_range(self.options.address, partition.part, self.options.lost)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A topic from some seq on, as far as a query has come.

    The offset that Spark keeps has the topic's epoch, so that a topic that was deleted and made
    again is noticed instead of read from the middle.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._target: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins; one that is restarted begins where it was."""
        with TopicConnection(self.options.address) as connection:
            state = connection.state()
        after = _start(self.options.from_seq, state.earliest_seq, state.head_seq)
        return {"epoch": state.epoch, "seq": after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options say of the size of a batch."""
        options = self.options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_rows is not None:
            return ReadMinRows(options.min_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes."""
        with TopicConnection(self.options.address) as connection:
            state = connection.state()
        if state.epoch != start["epoch"]:
            raise _recreated(self.options.address, start["epoch"], state.epoch)
        available = state.head_seq if self._target is None else self._target
        mean_bytes = state.size_bytes / state.count if state.count else 1.0
        upto = limited(start["seq"], available, limit, mean_bytes, wait=self._target is None)
        return {"epoch": start["epoch"], "seq": upto}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """How far the topic goes, for the query's progress."""
        with TopicConnection(self.options.address) as connection:
            state = connection.state()
        return {"epoch": state.epoch, "seq": state.head_seq}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit this query to the records that exist now."""
        with TopicConnection(self.options.address) as connection:
            self._target = connection.state().head_seq

    def partitions(self, start: Offset, end: Offset) -> Sequence[RangePartition]:
        """Cut the range of one batch."""
        return parts_of(SeqRange(start["seq"], end["seq"], end["epoch"]), self.options)

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """The records of one part."""
        return read_range(self.options.address, partition.part, self.options.lost)


def limited(after: int, available: int, limit: ReadLimit, mean_bytes: float, *, wait: bool) -> int:
    """Where a batch ends that begins after a seq. A limit in bytes goes by the mean record."""
    match limit:
        case ReadMaxRows():
            return max(after, min(available, after + max(1, int(limit.max_rows))))
        case ReadMaxBytes():
            rows = max(1, int(limit.max_bytes / max(mean_bytes, 1.0)))
            return max(after, min(available, after + rows))
        case ReadMinRows() if wait and available - after < limit.min_rows:
            return after
    return max(after, available)


def parts_of(wanted: SeqRange, options: SourceOptions) -> list[RangePartition]:
    """The parts of a range: as many as the options say, or fewer where they would be small."""
    parts = min(options.partitions, 1 + len(wanted) // options.partition_rows_min)
    return [RangePartition(part) for part in wanted.split(parts)]


def check_schema(schema: StructType) -> None:
    """Refuse a schema other than the format's: `data` is for `from_json`."""
    expected = SCHEMA.names
    if schema.fieldNames() != expected:
        raise Rejected(
            f"expected the columns {', '.join(expected)} of a topic (use from_json on data), "
            f"found {', '.join(schema.fieldNames())}"
        )


def _start(from_seq: int | str, earliest_seq: int, head_seq: int) -> int:
    if from_seq == "earliest":
        return max(0, earliest_seq - 1)
    return head_seq if from_seq == "latest" else int(from_seq)


def _recreated(address: TopicAddress, expected: int, found: int) -> TopicRecreated:
    return TopicRecreated(
        f"topic {address.topic!r} was deleted and made again: its epoch is {found}, no longer "
        f"{expected}; start the query with a new checkpoint"
    )


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise Rejected("a topic cannot be overwritten: use mode 'append'")
