"""Records as Arrow columns, for programs that read many: cached runs, and pages made of them.

Records are immutable; they can only be removed. So the columns of a complete run stay valid until
one of its records is removed, and later readers get the cached columns, already encoded as messages
of an Arrow stream.

In a page `seq` and `ts` are numbers, `node` and `tag` strings, `data` and `meta` the JSON as
written, as text. The other fields of a JSON page are in the schema's metadata under the same names,
each as JSON, so that a reader can continue from the stream alone. A page may have far more records
than a JSON page.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.kernel.units import MIB
from penstock.protocol.limits import TopicLimits
from penstock.server.api.answers import encode
from penstock.topics.core.read import DiffPage, ReadRequest, before_hole
from penstock.topics.core.record import Found, is_plain
from penstock.topics.core.topic import Topic

RUN_SEQS: Final = 4_096
RUN_BYTES_MAX: Final = 16 * MIB
KEPT_BYTES_MAX: Final = 64 * MIB
TAG: Final = 3
META: Final = 5
_ALL: Final = 1 << 62
_PREFIX: Final = struct.Struct("<II")  # of every message: a marker and the length of its head


async def load_arrow() -> None:
    """Import Arrow off the loop: it takes long, and most servers never need it."""
    if "pyarrow" not in sys.modules:
        await asyncio.get_running_loop().run_in_executor(None, import_module, "pyarrow")


class ColumnRequest(NamedTuple):
    """How much a reader wants after its cursor."""

    from_seq: int
    records_max: int
    bytes_max: int


class RecordColumns:
    """Records in columns, and the same records as a message of an Arrow stream, built once."""

    __slots__ = ("_has_meta", "_has_tags", "_messages", "batch", "rows", "size_bytes")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.rows: int = batch.num_rows
        self.size_bytes: int = batch.nbytes
        self._has_tags = batch.column(TAG).null_count < self.rows
        self._has_meta = batch.column(META).null_count < self.rows
        self._messages: dict[tuple[bool, bool, str | None], Any] = {}

    def message(self, *, tags: bool, meta: bool, compression: str | None = None) -> Any:
        """The bytes of a message, with or without tags and meta; the last variant is cached.

        A stream is its schema, messages like this, and an end.
        """
        wanted = (tags or not self._has_tags, meta or not self._has_meta, compression)
        message = self._messages.get(wanted)
        if message is None:
            batch = self.shown(tags=wanted[0], meta=wanted[1])
            message = _compressed(batch, compression) if compression else batch.serialize()
            self._messages = {wanted: message}
        return message

    def shown(self, *, tags: bool, meta: bool) -> Any:
        """The columns as a batch; unwanted ones are empty."""
        import pyarrow as pa

        if tags and meta:
            return self.batch
        columns = self.batch.columns
        for place, is_wanted in ((TAG, tags), (META, meta)):
            if not is_wanted:
                columns[place] = pa.nulls(self.rows, pa.string())
        return pa.record_batch(columns, schema=self.batch.schema)


class _Run:
    """A cached run, valid while `gone` seqs of the topic have no record."""

    __slots__ = ("columns", "gone", "kept_bytes")

    def __init__(self, columns: RecordColumns, gone: int) -> None:
        self.columns = columns
        self.gone = gone
        self.kept_bytes = 2 * columns.size_bytes  # the columns, and a message of them


class ColumnRuns:
    """The columns of complete runs, by topic and position; least recently used runs are evicted."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._runs: OrderedDict[tuple[str, int, int], _Run] = OrderedDict()
        self.kept_bytes = 0

    def page(self, topic: Topic, wanted: ColumnRequest) -> tuple[list[RecordColumns], int]:
        """Columns of the records after a cursor, and the last seq examined.

        A page that is nearly full ends with its last complete run: part of a run would be built for
        this reader alone, and so would the other part for the next page. A page ends before a gap,
        which the next page reports. `NotLoaded` if a wanted record is in a file.

        At least one record comes, even if it is larger than `bytes_max`.
        """
        at, room = wanted.from_seq, wanted.bytes_max
        records_max = wanted.records_max
        found: list[RecordColumns] = []
        end_seq = before_hole(topic, at, topic.head_seq)
        while at < end_seq and records_max > 0:
            number = at // RUN_SEQS
            last_seq = min((number + 1) * RUN_SEQS, topic.head_seq)
            columns = self._run(topic, number, last_seq)
            if columns is None:
                taken, last_seq = topic.row.page(at, min(last_seq, end_seq), records_max, room)
                columns = RecordColumns(record_batch(taken))
            elif columns.rows > records_max and records_max * 4 <= wanted.records_max:
                break
            elif at > number * RUN_SEQS or columns.rows > records_max or last_seq > end_seq:
                part = range(at + 1, min(last_seq, end_seq) + 1)
                batch, last_seq = _cut(columns.batch, part, records_max)
                columns = RecordColumns(batch)
            if columns.size_bytes > room and not found:
                fit = _fitting(columns.batch, room)
                batch, last_seq = _cut(columns.batch, range(at + 1, last_seq + 1), fit)
                columns = RecordColumns(batch)
            if columns.rows:
                if columns.size_bytes > room and found:
                    break
                found.append(columns)
                room -= columns.size_bytes
                records_max -= columns.rows
            at = last_seq
        return found, at

    def _run(self, topic: Topic, number: int, last_seq: int) -> RecordColumns | None:
        """The columns of one run, up to a seq; cached if the run is complete.

        None if it has too many bytes: of records of a MiB, it would take gigabytes.
        """
        first_seq = number * RUN_SEQS + 1
        key = (topic.name, topic.epoch, number)
        run = self._runs.get(key)
        gone = topic.head_seq - topic.count  # grows with every removed record
        if run is not None:
            if run.gone != gone:
                run.gone = gone
                if run.columns.rows != topic.row.count_between(first_seq, last_seq):
                    run = None
            if run is not None:
                self._runs.move_to_end(key)
                return run.columns
        found, passed = topic.row.page(first_seq - 1, last_seq, _ALL, RUN_BYTES_MAX)
        if passed < last_seq:
            return None
        run = _Run(RecordColumns(record_batch(found)), gone)
        if last_seq == (number + 1) * RUN_SEQS:
            self._keep(key, run)
        return run.columns

    def _keep(self, key: tuple[str, int, int], run: _Run) -> None:
        old = self._runs.pop(key, None)
        self.kept_bytes += run.kept_bytes - (old.kept_bytes if old else 0)
        self._runs[key] = run
        while self.kept_bytes > self._bytes_max:
            _, gone = self._runs.popitem(last=False)
            self.kept_bytes -= gone.kept_bytes


def record_batch(found: Found) -> Any:
    """Records as columns: seq, ts, node, tag, data, meta."""
    import pyarrow as pa

    seqs, times, records = found
    if is_plain(records):
        node = tag = meta = pa.nulls(len(records), pa.string())
    else:
        node = _texts(pa, [record.node for record in records])
        tag = _texts(pa, [record.tag for record in records])
        meta = _optional_payloads(pa, [record.meta for record in records])
    arrays = [
        pa.array(np.array(seqs, np.uint64)),
        pa.array(np.asarray(times, np.int64)).cast(pa.timestamp("ms", tz="UTC")),
        node,
        tag,
        _payloads(pa, [record.data for record in records]),
        meta,
    ]
    return pa.record_batch(arrays, names=["seq", "ts", "node", "tag", "data", "meta"])


def _compressed(batch: Any, compression: str) -> Any:
    """The message of a batch in a compressed stream: the part between its schema and its end."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    schema_bytes = _PREFIX.size + _PREFIX.unpack_from(stream)[1]
    return stream.slice(schema_bytes, stream.size - schema_bytes - _PREFIX.size)


def _cut(batch: Any, part: range, records_max: int) -> tuple[Any, int]:
    """The rows of a range of seqs, no more than wanted, and the last seq they reach."""
    seqs = batch.column(0).to_numpy()
    first, end = map(int, np.searchsorted(seqs, (part.start, part.stop)))
    rows = min(end - first, records_max)
    last_seq = int(seqs[first + rows - 1]) if rows < end - first else part.stop - 1
    return batch.slice(first, rows), last_seq


def _fitting(batch: Any, bytes_max: int) -> int:
    """How many rows fit, from the first; at least one."""
    rows: int = batch.num_rows
    while rows > 1 and (size_bytes := batch.slice(0, rows).nbytes) > bytes_max:
        rows = max(1, min(rows - 1, rows * bytes_max // size_bytes))
    return rows


def _texts(pa: Any, texts: list[str | None]) -> Any:
    if texts.count(None) == len(texts):
        return pa.nulls(len(texts), pa.string())
    return pa.array(texts, pa.string())


def _payloads(pa: Any, payloads: list[Any]) -> Any:
    """JSON texts as one column: their joined bytes and the offsets."""
    offsets = np.zeros(len(payloads) + 1, np.int32)
    np.cumsum(list(map(len, payloads)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.string(), len(payloads), buffers)


def _optional_payloads(pa: Any, payloads: list[Any]) -> Any:
    if payloads.count(None) == len(payloads):
        return pa.nulls(len(payloads), pa.string())
    texts = [None if payload is None else bytes(payload) for payload in payloads]
    return pa.array(texts, pa.binary()).cast(pa.string())


METADATA: Final = (
    "topic", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "lag", "epoch", "tombstone",
)  # fmt: skip
RECORDS_MAX: Final = 65_536
BYTES_MAX: Final = 32 * MIB
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end-of-stream message: zero length."""


def larger(limits: TopicLimits) -> TopicLimits:
    """The limits on a page requested as Arrow."""
    return replace(
        limits,
        read_records_max=max(limits.read_records_max, RECORDS_MAX),
        read_bytes=max(limits.read_bytes, limits.read_bytes_max),
        read_bytes_max=max(limits.read_bytes_max, BYTES_MAX),
    )


def arrow_stream(
    topic: str,
    diff: DiffPage,
    pieces: Sequence[RecordColumns],
    request: ReadRequest,
    *,
    compression: str | None = None,
) -> bytes:
    """The page as one Arrow IPC stream, a batch for each run of records.

    Messages of runs that were requested before are cached; then a page is only concatenated.
    """
    import pyarrow as pa

    facts = page_facts(topic, diff)
    schema = pa.schema(
        [
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("node", pa.string()),
            pa.field("tag", pa.string()),
            pa.field("data", pa.string(), nullable=False),
            pa.field("meta", pa.string()),
        ],
        metadata={name: encode(facts[name]) for name in METADATA},
    )
    tags, meta = request.include_tags, request.include_meta
    messages = [piece.message(tags=tags, meta=meta, compression=compression) for piece in pieces]
    return b"".join([schema.serialize(), *messages, _END])


def page_facts(topic: str, diff: DiffPage) -> dict[str, Any]:
    """The fields of a page other than its records."""
    return {
        "topic": topic,
        "next_from_seq": diff.next_from_seq,
        "head_seq": diff.head_seq,
        "earliest_seq": diff.earliest_seq,
        "caught_up": diff.caught_up,
        "tombstone": None if diff.tombstone is None else diff.tombstone._asdict(),
        "lag": diff.lag,
        "epoch": diff.epoch,
    }
