"""A page of records as an Arrow stream: columns for programs that read many.

`seq` and `ts` are numbers, `node` and `tag` texts, `data` and `meta` the JSON that was written, as
text. What a JSON page says beside its records stands in the schema's metadata under the same
names, each as JSON, so that a reader needs nothing else to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.server.answers import encode
from penstock.topics.read import Diff, ReadRequest

if TYPE_CHECKING:
    import pyarrow as pa

METADATA: Final = (
    "topic", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "lag", "epoch", "tombstone",
)  # fmt: skip


def arrow_page(topic: str, diff: Diff, request: ReadRequest) -> bytes:
    """The page as one Arrow IPC stream with one batch."""
    import pyarrow as pa

    slots = diff.records
    schema = _schema(pa, page_facts(topic, diff))
    tags = [slot.record.tag if request.include_tags else None for slot in slots]
    metas = [slot.record.meta if request.include_meta else None for slot in slots]
    columns = [
        pa.array([slot.seq for slot in slots], pa.uint64()),
        pa.array([slot.ts_ms for slot in slots], pa.timestamp("ms", tz="UTC")),
        pa.array([slot.record.node for slot in slots], pa.string()),
        pa.array(tags, pa.string()),
        pa.array([bytes(slot.record.data) for slot in slots], pa.binary()).cast(pa.string()),
        pa.array([None if meta is None else bytes(meta) for meta in metas], pa.binary()).cast(
            pa.string()
        ),
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
