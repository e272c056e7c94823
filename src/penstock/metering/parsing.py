"""Meter messages to readings, in Spark's Python workers: many messages at a time, as columns.

A message whose payload cannot be read becomes one row with a reason and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, Inexact, InvalidOperation, localcontext
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.metering.errors import BadPayload
from penstock.metering.price_lookup import decimals
from penstock.metering.readings import MAGIC, READING_DTYPE, decode, unpack

ENERGY: Final = pa.decimal128(18, 6)
ENERGY_LIMIT: Final = 10**18
"""In millionths of a Wh: what 18 digits hold."""

TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
MESSAGES_AT_ONCE: Final = 1_024

TIME: Final = pa.timestamp("us", tz="UTC")
PARSED: Final = pa.schema(
    [
        ("_seq", pa.int64()), ("_row", pa.int32()), ("_reason", pa.string()),
        ("device", pa.string()), ("message_id", pa.string()), ("received_at", TIME),
        ("meter", pa.string()), ("time", TIME), ("energy_wh", ENERGY), ("quality", pa.int32()),
    ]
)  # fmt: skip
_POWERS: Final = tuple(10**n for n in range(7))


class Columns:
    """The readings of one message; energies in millionths of a Wh."""

    __slots__ = ("meters", "micro", "quality", "times")

    def __init__(
        self, meters: pa.Array, times: NDArray[Any], micro: NDArray[Any], quality: NDArray[Any]
    ) -> None:
        self.meters, self.times, self.micro, self.quality = meters, times, micro, quality


def parse_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: raw messages in, a row for each reading or bad message out."""
    for batch in batches:
        for start in range(0, batch.num_rows, MESSAGES_AT_ONCE):
            yield parse_messages(batch.slice(start, MESSAGES_AT_ONCE))


def parse_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The readings of some messages, in their order; bad messages come last."""
    payloads = batch.column("payload").to_pylist()
    packed: list[NDArray[Any]] = []
    scales: list[int] = []
    places: list[int] = []
    others: list[tuple[int, Columns]] = []
    bad: list[tuple[int, str]] = []
    for place, payload in enumerate(payloads):
        try:
            if payload is None:
                raise BadPayload("encoding", "the record does not hold base64")
            if payload[:1] == _MAGIC:
                rows, scale = unpack(payload)
                packed.append(rows)
                scales.append(scale)
                places.append(place)
            else:
                others.append((place, _json_columns(payload)))
        except BadPayload as error:
            bad.append((place, f"{error.reason}: {error}"))
    made = []
    if packed:
        good, broken = _packed_rows(packed, scales, places)
        made.append(_rows(batch, *good))
        bad += broken
    made += [_rows(batch, np.full(len(c.times), place), np.arange(len(c.times)), c)
             for place, c in others]  # fmt: skip
    if bad:
        made.append(_bad_rows(batch, bad))
    if not made:
        return pa.RecordBatch.from_pylist([], schema=PARSED)
    table = pa.Table.from_batches(made).combine_chunks()
    return table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], PARSED)


_MAGIC: Final = bytes([MAGIC])


def _packed_rows(
    packed: list[NDArray[Any]], scales: list[int], places: list[int]
) -> tuple[tuple[NDArray[Any], NDArray[Any], Columns], list[tuple[int, str]]]:
    """All packed messages as one block; those with a value out of range are left out."""
    counts = np.array([len(rows) for rows in packed])
    # Through bytes: numpy looks at the fields of every piece that it joins.
    rows = np.frombuffer(b"".join([each.data for each in packed]), READING_DTYPE)
    factors = np.repeat(np.array([_POWERS[6 - scale] for scale in scales]), counts)
    of_message = np.repeat(np.array(places), counts)
    in_message = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    energy, times = rows["energy"], rows["time_ms"]
    limits = ENERGY_LIMIT // factors
    wrong_energy = (energy >= limits) | (energy <= -limits)
    wrong_time = (times < TIME_MS_MIN) | (times > TIME_MS_MAX)
    bad: list[tuple[int, str]] = []
    wrong = wrong_energy | wrong_time
    if wrong.any():
        messages = np.unique(of_message[wrong])
        of_energy = set(np.unique(of_message[wrong_energy]).tolist())
        bad = [
            (place, _ENERGY_REASON if place in of_energy else _TIME_REASON)
            for place in messages.tolist()
        ]
        keep = ~np.isin(of_message, messages)
        rows, factors = rows[keep], factors[keep]
        of_message, in_message = of_message[keep], in_message[keep]
    columns = Columns(
        pa.array(rows["meter"].astype(np.int64)).cast(pa.string()),
        rows["time_ms"],
        rows["energy"] * factors,
        rows["quality"],
    )
    return (of_message, in_message, columns), bad


_ENERGY_REASON: Final = "energy: 10^12 Wh or more, or more than 6 decimals"
_TIME_REASON: Final = "time: not in the years 1 to 9999"


def _json_columns(payload: bytes) -> Columns:
    readings = decode(payload)
    times = [reading.time_ms for reading in readings]
    if any(not TIME_MS_MIN <= time_ms <= TIME_MS_MAX for time_ms in times):
        raise BadPayload("time", _TIME_REASON.partition(": ")[2])
    return Columns(
        pa.array([reading.meter for reading in readings], pa.string()),
        np.array(times, np.int64),
        np.array([_micro(reading.energy_wh) for reading in readings], np.int64),
        np.array([reading.quality for reading in readings], np.int32),
    )


def _micro(energy_wh: Decimal) -> int:
    """An energy in millionths; one that would have to be rounded is refused."""
    with localcontext(prec=40) as context:
        context.traps[Inexact] = True
        try:
            micro = int(energy_wh.quantize(_MICRO) * 1_000_000)
        except (Inexact, InvalidOperation):
            micro = ENERGY_LIMIT
    if abs(micro) >= ENERGY_LIMIT:
        raise BadPayload("energy", _ENERGY_REASON.partition(": ")[2])
    return micro


_MICRO: Final = Decimal("0.000001")


def _rows(
    batch: pa.RecordBatch, places: NDArray[Any], numbers: NDArray[Any], found: Columns
) -> pa.RecordBatch:
    count = len(numbers)
    shared = [
        pc.take(batch.column(name), pa.array(places))
        for name in ("device", "message_id", "received_at")
    ]
    times = pa.array(found.times.astype(np.int64) * 1_000).cast(TIME)
    return pa.record_batch(
        [
            pc.take(batch.column("_seq"), pa.array(places)),
            pa.array(numbers, pa.int32()),
            pa.nulls(count, pa.string()),
            shared[0], shared[1], shared[2].cast(TIME),
            found.meters, times, decimals(found.micro, ENERGY), pa.array(found.quality, pa.int32()),
        ],
        schema=PARSED,
    )  # fmt: skip


def _bad_rows(batch: pa.RecordBatch, bad: list[tuple[int, str]]) -> pa.RecordBatch:
    places = pa.array([place for place, _ in bad])
    count = len(bad)
    return pa.record_batch(
        [
            pc.take(batch.column("_seq"), places),
            pa.nulls(count, pa.int32()),
            pa.array([reason for _, reason in bad], pa.string()),
            *(pc.take(batch.column(name), places) for name in ("device", "message_id")),
            pc.take(batch.column("received_at"), places).cast(TIME),
            *(pa.nulls(count, PARSED.field(name).type)
              for name in ("meter", "time", "energy_wh", "quality")),
        ],
        schema=PARSED,
    )  # fmt: skip
