"""Rows on their way into a topic: every task sends its own, each chunk under a key of its own.

The key is made of what names the work (query and batch, or the id of a batch write), the number of
the partition and the number of the chunk. A task, a batch or a whole query that is done again sends
the same keys, and the server answers what it answered before, for as long as the topic's
`idempotency_window_ms` lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.kernel.errors import Rejected
from penstock.spark.topics.http import TopicConnection
from penstock.spark.topics.options import SinkOptions

if TYPE_CHECKING:
    pass

COLUMNS: Final = ("data", "tag", "node", "meta")
CHUNK_BYTES_MAX: Final = 4 << 20
_SYNTAX: Final = msgspec.json.Decoder(msgspec.Raw)
_ENCODER: Final = msgspec.json.Encoder()


class Sent(WriterCommitMessage):  # type: ignore[misc]
    """What one task has written."""

    def __init__(self, partition: int, rows: int, deduped: int) -> None:
        self.partition, self.rows, self.deduped = partition, rows, deduped


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Appends the rows of one DataFrame."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        check_columns(columns)
        self.options = options
        self.work = f"write:{options.write_id or uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one partition."""
        return send(self.options, self.work, iterator)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Appends the rows of batch after batch."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        check_columns(columns)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send the rows of one partition of one batch."""
        return send(self.options, batch_name(), iterator)

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: what a task has sent is durable."""

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """What was sent stays; the batch sends it again under the same keys."""


def check_columns(columns: Sequence[str]) -> None:
    """Refuse rows that are not records."""
    strangers = [name for name in columns if name not in COLUMNS]
    if "data" not in columns or strangers:
        raise Rejected(
            f"rows with the columns {', '.join(columns)} are not records: give them a column data "
            "of JSON text, such as to_json(struct(*)), and beside it at most tag, node and meta"
        )


def batch_name() -> str:
    """The name of the batch of a streaming query that this task belongs to."""
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise Rejected("this task does not belong to a batch of a streaming query")
    return f"stream:{query}:{batch}"


def send(options: SinkOptions, work: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Write every row that comes, in order, in chunks that depend on nothing but the rows."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    rows = deduped = 0
    with TopicConnection(options.address) as connection:
        for number, chunk in enumerate(chunks(encoded(batches), options.batch_rows)):
            key = f"{work}:{partition}:{number}"
            body = b"[%b]" % b",".join(chunk)
            done = connection.write(body, idempotency_key=key, create=options.create)
            rows += len(chunk)
            deduped += len(chunk) if done.deduped else 0
    return Sent(partition, rows, deduped)


def encoded(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    """Each row as the JSON of a record. Text that is not JSON must not become another record."""
    for batch in batches:
        names = batch.schema.names
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            record = {
                name: raw_json(name, value) if name in ("data", "meta") else value
                for name, value in zip(names, values, strict=True)
                if value is not None
            }
            if "data" not in record:
                raise Rejected("data is NULL: it must be JSON text, where null is written 'null'")
            yield _ENCODER.encode(record)


def raw_json(name: str, text: str | bytes) -> msgspec.Raw:
    """Text that is JSON, to be sent as it is."""
    raw = text.encode() if isinstance(text, str) else bytes(text)
    try:
        _SYNTAX.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"{name} is not JSON text: {raw[:80]!r} ({error})") from error
    return msgspec.Raw(raw)


def chunks(records: Iterator[bytes], rows_max: int) -> Iterator[list[bytes]]:
    """Records put together to requests, by number and by bytes."""
    chunk: list[bytes] = []
    size = 0
    for record in records:
        if chunk and (len(chunk) >= rows_max or size + len(record) > CHUNK_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += len(record)
    if chunk:
        yield chunk
