"""A page of records as an Arrow stream: columns for programs that read many records.

`seq` and `ts` are numbers, `node` and `tag` strings, `data` and `meta` the JSON as written, as
text. The other fields of a JSON page are in the schema's metadata under the same names, each as
JSON, so that a reader can continue from the stream alone. A page may have far more records than a
JSON page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.kernel.units import MIB
from penstock.protocol.limits import TopicLimits
from penstock.server.api.answers import encode
from penstock.server.api.columns import Columns
from penstock.topics.core.read import Diff, ReadRequest

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
    diff: Diff,
    pieces: Sequence[Columns],
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


def page_facts(topic: str, diff: Diff) -> dict[str, Any]:
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
