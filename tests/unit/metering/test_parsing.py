from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.metering.parsing import parse_batches, parse_messages
from penstock.metering.readings import Reading, decode, encode_json, encode_packed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
READINGS = st.lists(
    st.builds(
        Reading,
        st.integers(0, 2**63 - 1).map(str),
        st.integers(-62_135_596_800_000, 253_402_300_799_999),
        st.integers(-(10**15) + 1, 10**15 - 1).map(lambda n: Decimal(n).scaleb(-3)),
        st.integers(0, 65_535),
    ),
    max_size=5,
)


def batch(payloads: list[bytes | None]) -> pa.RecordBatch:
    count = len(payloads)
    return pa.record_batch(
        {
            "_seq": pa.array(range(1, count + 1), pa.int64()),
            "device": pa.array([f"d{n}" for n in range(count)]),
            "message_id": pa.array([str(n) for n in range(count)]),
            "received_at": pa.array([NOW] * count, pa.timestamp("us", tz="UTC")),
            "payload": pa.array(payloads, pa.binary()),
        }
    )


def rows(found: pa.RecordBatch) -> list[dict[str, Any]]:
    return sorted(found.to_pylist(), key=lambda row: (row["_seq"], row["_row"] or 0))


@given(st.lists(st.tuples(READINGS, st.booleans()), max_size=6))
def test_every_reading_of_either_codec_is_a_row(messages: list[tuple[list[Reading], bool]]) -> None:
    payloads = [encode_packed(r) if packed else encode_json(r) for r, packed in messages]
    found = rows(parse_messages(batch(list(payloads))))
    expected = [
        (seq, number, r.meter, r.time_ms, r.energy_wh, r.quality, f"d{seq - 1}")
        for seq, payload in enumerate(payloads, start=1)
        for number, r in enumerate(decode(payload))
    ]
    assert [
        (
            row["_seq"], row["_row"], row["meter"],
            round(row["time"].timestamp() * 1_000), row["energy_wh"], row["quality"], row["device"],
        )
        for row in found
    ] == expected  # fmt: skip
    assert all(row["_reason"] is None for row in found)


def test_a_bad_message_is_one_row_with_a_reason_and_leaves_the_others_alone() -> None:
    good = [Reading("7", 0, Decimal("1.5")), Reading("8", 0, Decimal(-2))]
    huge = [Reading("7", 0, Decimal(10) ** 12)]
    payloads = [
        encode_packed(good), b"\x9d\x01", None, b"[]", encode_packed(huge, scale=0),
        encode_json([Reading("7", 0, Decimal("0.0000001"))]),
        encode_packed([Reading("7", 2**60, Decimal(1))]),
        encode_json([Reading("7", -(2**62), Decimal(1))]), b"\x9d\x02\0\0\0\0\0\0",
    ]  # fmt: skip
    found = rows(parse_messages(batch(payloads)))
    assert [(row["_seq"], row["_row"], row["meter"]) for row in found[:2]] == [
        (1, 0, "7"), (1, 1, "8"),
    ]  # fmt: skip
    assert [row["energy_wh"] for row in found[:2]] == [Decimal("1.5"), Decimal(-2)]
    bad = found[2:]
    assert [row["_seq"] for row in bad] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert [row["_reason"].partition(":")[0] for row in bad] == [
        "size", "encoding", "json", "energy", "energy", "time", "time", "version",
    ]  # fmt: skip
    assert all(row["_row"] is None and row["meter"] is None for row in bad)


def test_many_messages_come_in_several_batches() -> None:
    payload = encode_packed([Reading("7", 0, Decimal(1))])
    found = list(parse_batches(iter([batch([payload] * 1_500)])))
    assert [part.num_rows for part in found] == [1_024, 476]
    assert parse_messages(batch([])).num_rows == 0
    assert parse_messages(batch([encode_packed([])])).num_rows == 0
