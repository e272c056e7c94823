"""Bodies of writes against Python's own JSON: the same is taken, and counted by its tokens."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from penstock.kernel.errors import Rejected
from penstock.topics.core.batch import Batch, parse_write
from penstock.topics.core.record import RawRecord, Routed, depth_of

TEXTS = st.text(max_size=6)  # no lone surrogates
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS.filter(lambda value: not isinstance(value, float) or math.isfinite(value)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
METAS = st.none() | st.dictionaries(TEXTS, VALUES, max_size=3)
OPTIONAL_TEXTS = st.none() | TEXTS
RECORDS = st.fixed_dictionaries(
    {"data": VALUES}, optional={"tag": OPTIONAL_TEXTS, "node": OPTIONAL_TEXTS, "meta": METAS}
)
BODIES = st.fixed_dictionaries(
    {"records": st.lists(RECORDS, min_size=1, max_size=4)},
    optional={
        "node": OPTIONAL_TEXTS,
        "idempotency_key": OPTIONAL_TEXTS,
        "create": st.booleans(),
        "junk": VALUES,
    },
)
STYLES = st.fixed_dictionaries(
    {
        "indent": st.sampled_from([None, 0, 1, "\t"]),
        "separators": st.sampled_from([(",", ":"), (" , ", "\r: ")]),
        "ensure_ascii": st.booleans(),
    }
)


def compact(value: Any, style: dict[str, Any]) -> int:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=style["ensure_ascii"])
    return len(text.encode())


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(body=BODIES, style=STYLES)
def test_a_write_is_what_python_reads_and_its_size_is_that_of_compact_json(
    body: dict[str, Any], style: dict[str, Any]
) -> None:
    batch = parse_write(json.dumps(body, **style).encode()).batch
    assert len(batch) == len(body["records"])
    for record, size_bytes, wanted in zip(batch.records, batch.sizes, body["records"], strict=True):
        meta, node = wanted.get("meta"), wanted.get("node")
        assert json.loads(bytes(record.data)) == wanted["data"]
        assert (None if record.meta is None else json.loads(bytes(record.meta))) == meta
        assert record.tag == wanted.get("tag")
        assert record.node == (body.get("node") if node is None else node)
        meta_bytes = compact(meta, style) if meta is not None else 0
        assert size_bytes == compact(wanted["data"], style) + meta_bytes
        assert depth_of(bytes(record.data)) == depth(wanted["data"])
    assert batch.size_bytes == sum(batch.sizes)
    again = Batch.decoded(batch.body)
    assert again == batch
    assert again.sizes == batch.sizes


@settings(max_examples=300)
@given(
    body=BODIES,
    style=STYLES,
    cut=st.tuples(st.integers(0, 200), st.integers(0, 3)),
    put=st.binary(max_size=3) | st.sampled_from([b"\xff", b"\\", b'"', b"]", b"}", b",", b"null"]),
)
def test_a_damaged_body_is_refused_or_still_json_to_everyone(
    body: dict[str, Any], style: dict[str, Any], cut: tuple[int, int], put: bytes
) -> None:
    text = json.dumps(body, **style).encode()
    at = cut[0] % (len(text) + 1)
    damaged = text[:at] + put + text[at + cut[1] :]
    try:
        batch = parse_write(damaged).batch
    except Rejected:
        return
    json.loads(damaged)
    for record in batch.records:
        json.loads(bytes(record.data))
    assert Batch.decoded(batch.body) == batch


@given(
    records=st.lists(
        st.builds(
            lambda data, tag, node, meta, hops, style: (
                Routed(Raw(dumped(data, style)), tag, node, meta and Raw(dumped(meta, style)), hops)
                if hops
                else RawRecord(
                    Raw(dumped(data, style)), tag, node, meta and Raw(dumped(meta, style))
                )
            ),
            VALUES,
            OPTIONAL_TEXTS,
            OPTIONAL_TEXTS,
            st.none() | st.dictionaries(TEXTS, VALUES, min_size=1, max_size=2),
            st.integers(0, 8),
            STYLES,
        ),
        max_size=4,
    )
)
def test_copies_come_back_from_their_bytes_as_they_were(records: list[RawRecord]) -> None:
    batch = Batch.of(records)
    again = Batch.decoded(batch.body)
    assert (again, again.sizes) == (batch, batch.sizes)
    assert [type(record) for record in again.records] == [type(record) for record in records]


def dumped(value: Any, style: dict[str, Any]) -> bytes:
    return json.dumps(value, **style).encode()
