"""A page of records as an Arrow stream: columns for programs that read many.

`seq` and `ts` are numbers, `node` and `tag` texts, `data` and `meta` the JSON that was written, as
text. What a JSON page says beside its records stands in the schema's metadata under the same
names, each as JSON, so that a reader needs nothing else to go on. A page may have far more records
than one of JSON: nothing is made for each of them but its place in the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from penstock.kernel.units import MIB
from penstock.server.answers import encode
from penstock.topics.model import TopicLimits
from penstock.topics.read import Diff, ReadRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from msgspec import Raw

METADATA: Final = (
    "topic", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "lag", "epoch", "tombstone",
)  # fmt: skip
RECORDS_MAX: Final = 65_536
BYTES_MAX: Final = 32 * MIB


def larger(limits: TopicLimits) -> TopicLimits:
    """The limits on a page that is asked for as Arrow."""
    from dataclasses import replace

    return replace(
        limits,
        read_records_max=max(limits.read_records_max, RECORDS_MAX),
        read_bytes=max(limits.read_bytes, limits.read_bytes_max),
        read_bytes_max=max(limits.read_bytes_max, BYTES_MAX),
    )


def arrow_page(topic: str, diff: Diff, request: ReadRequest) -> bytes:
    """The page as one Arrow IPC stream with one batch."""
    import pyarrow as pa

    seqs, times, records = diff.found
    schema = _schema(pa, page_facts(topic, diff))
    tags = [record.tag for record in records] if request.include_tags else ()
    metas = [record.meta for record in records] if request.include_meta else ()
    columns = [
        pa.array(_numbers(seqs)),
        pa.array(np.asarray(times, np.int64)).cast(pa.timestamp("ms", tz="UTC")),
        _texts(pa, [record.node for record in records], len(records)),
        _texts(pa, tags, len(records)),
        _payloads(pa, [record.data for record in records]),
        _optional_payloads(pa, metas, len(records)),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    found: bytes = sink.getvalue().to_pybytes()
    return found


def page_facts(topic: str, diff: Diff) -> dict[str, Any]:
    """What a page says beside its records."""
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


def _numbers(seqs: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Seqs as an array; where there are no holes, without looking at each."""
    if seqs and seqs[-1] - seqs[0] + 1 == len(seqs):
        return np.arange(seqs[0], seqs[-1] + 1, dtype=np.uint64)
    return np.array(seqs, np.uint64)


def _texts(pa: Any, texts: Sequence[str | None], count: int) -> Any:
    if not any(texts) and "" not in texts:
        return pa.nulls(count, pa.string())
    return pa.array(texts, pa.string())


def _payloads(pa: Any, payloads: Sequence[Raw]) -> Any:
    """JSON texts as one column: their bytes joined, and where each begins."""
    offsets = np.zeros(len(payloads) + 1, np.int32)
    np.cumsum(list(map(len, payloads)), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.string(), len(payloads), buffers)


def _optional_payloads(pa: Any, payloads: Sequence[Raw | None], count: int) -> Any:
    if payloads.count(None) == len(payloads):
        return pa.nulls(count, pa.string())
    texts = [None if payload is None else bytes(payload) for payload in payloads]
    return pa.array(texts, pa.binary()).cast(pa.string())


def _schema(pa: Any, facts: dict[str, Any]) -> pa.Schema:
    text = pa.string()
    return pa.schema(
        [
            pa.field("seq", pa.uint64(), nullable=False),
            pa.field("ts", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("node", text),
            pa.field("tag", text),
            pa.field("data", text, nullable=False),
            pa.field("meta", text),
        ],
        metadata={name: encode(facts[name]) for name in METADATA},
    )
