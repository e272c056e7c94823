"""Meter readings as the payload of a message: packed binary, or JSON.

The packed form is a header of 8 bytes and 26 bytes for each reading, little-endian:

| bytes | header | | bytes | reading |
|---|---|---|---|---|
| 0 | 0x9D | | 0–7 | meter number, 0 … 2⁶³-1 |
| 1 | version, 1 | | 8–15 | time, signed, ms since 1970 UTC |
| 2 | scale: decimals of the energy, 0 … 6 | | 16–23 | energy, signed, Wh × 10^scale |
| 3 | 0 | | 24–25 | quality flags |
| 4–7 | number of readings | | | |

A payload whose first byte is not 0x9D is JSON:
`{"readings":[{"meter":"17","time_ms":1767225600000,"energy_wh":1250.125,"quality":0}]}`, where
`meter` may be any text, `energy_wh` a number or the text of one, and `quality` may be left out.

>>> sent = [Reading("17", 1_767_225_600_000, Decimal("1250.125")), Reading("18", 0, Decimal(7), 1)]
>>> payload = encode_packed(sent, scale=3)
>>> len(payload), decode(payload) == sent, decode(encode_json(sent)) == sent
(60, True, True)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from enum import IntFlag
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.kernel.errors import Rejected
from penstock.metering.errors import BadPayload

MAGIC: Final = 0x9D
VERSION: Final = 1
SCALE_MAX: Final = 6
READINGS_MAX: Final = 65_536
HEADER: Final = struct.Struct("<BBBBI")
READING: Final = struct.Struct("<QqqH")
READING_DTYPE: Final = np.dtype(
    [("meter", "<u8"), ("time_ms", "<i8"), ("energy", "<i8"), ("quality", "<u2")]
)
"""A packed reading for numpy: `np.frombuffer(payload, READING_DTYPE, offset=HEADER.size)`."""

METER_MAX: Final = 2**63 - 1


class Quality(IntFlag):
    """What a meter says about a reading beside its value; no flag is a good reading."""

    GOOD = 0
    ESTIMATED = 1
    CLOCK_UNSURE = 2
    TAMPERED = 4
    POWER_LOST = 8


class Reading(NamedTuple):
    """What a meter showed at a time: its whole energy so far or that of an interval, in Wh."""

    meter: str
    time_ms: int
    energy_wh: Decimal
    quality: int = 0


class Packed(NamedTuple):
    """The readings of a packed payload as columns that share its memory."""

    rows: NDArray[Any]
    """A structured array of `READING_DTYPE`; `energy` is in Wh × 10^scale."""
    scale: int


def encode_packed(readings: Sequence[Reading], *, scale: int = 3) -> bytes:
    """Readings in the packed form. `Rejected` if a value has no place in it."""
    factor = 10 ** _checked_scale(scale)
    rows = [
        (_meter(each.meter), each.time_ms, _scaled(each.energy_wh, factor, scale), each.quality)
        for each in readings
    ]
    try:
        packed = [READING.pack(*row) for row in rows]
    except struct.error as error:
        raise Rejected(f"a number does not fit a packed reading: {error}") from None
    return b"".join([HEADER.pack(MAGIC, VERSION, scale, 0, len(rows)), *packed])


def pack_rows(rows: NDArray[Any], *, scale: int = 3) -> bytes:
    """A structured array of `READING_DTYPE` in the packed form: the quick way for many."""
    if rows.dtype != READING_DTYPE:
        raise Rejected(f"expected rows of {READING_DTYPE}, found {rows.dtype}")
    return HEADER.pack(MAGIC, VERSION, _checked_scale(scale), 0, len(rows)) + rows.tobytes()


def encode_json(readings: Sequence[Reading]) -> bytes:
    """Readings in the JSON form, the energy as text so that nothing is rounded on the way."""
    return msgspec.json.encode({"readings": [each._asdict() for each in readings]})


def decode(payload: bytes) -> list[Reading]:
    """The readings of a payload in either form, or `BadPayload`."""
    if payload[:1] != b"\x9d":
        return _decode_json(payload)
    rows, scale = unpack(payload)
    return [
        Reading(str(meter), time_ms, Decimal(energy).scaleb(-scale), quality)
        for meter, time_ms, energy, quality in rows.tolist()
    ]


def unpack(payload: bytes | memoryview) -> Packed:
    """The columns of a packed payload, or `BadPayload`."""
    if len(payload) < HEADER.size:
        raise BadPayload("size", f"expected at least {HEADER.size} bytes, found {len(payload)}")
    magic, version, scale, _, count = HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise BadPayload("magic", f"expected {MAGIC:#x} as the first byte, found {magic:#x}")
    if version != VERSION:
        raise BadPayload("version", f"expected version {VERSION}, found {version}")
    if scale > SCALE_MAX:
        raise BadPayload("scale", f"expected a scale of at most {SCALE_MAX}, found {scale}")
    size_bytes = HEADER.size + count * READING.size
    if count > READINGS_MAX or len(payload) != size_bytes:
        raise BadPayload(
            "size", f"expected {size_bytes} bytes for {count} readings, found {len(payload)}"
        )
    rows = np.frombuffer(payload, READING_DTYPE, offset=HEADER.size)
    if count and int(rows["meter"].max()) > METER_MAX:
        raise BadPayload("meter", f"a meter number is above {METER_MAX}")
    return Packed(rows, scale)


class _JsonReading(msgspec.Struct):
    meter: str
    time_ms: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    energy_wh: Decimal
    quality: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0


class _JsonReadings(msgspec.Struct):
    readings: list[_JsonReading]


_DECODER: Final = msgspec.json.Decoder(_JsonReadings)


def _decode_json(payload: bytes) -> list[Reading]:
    try:
        found = _DECODER.decode(payload).readings
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPayload("json", f"not readings as JSON: {error}") from None
    for each in found:
        if not each.energy_wh.is_finite():
            raise BadPayload("energy", f"{each.energy_wh} is not an energy")
    return [Reading(each.meter, each.time_ms, each.energy_wh, each.quality) for each in found]


def _checked_scale(scale: int) -> int:
    if not 0 <= scale <= SCALE_MAX:
        raise Rejected(f"expected a scale from 0 to {SCALE_MAX}, found {scale}")
    return scale


def _meter(meter: str) -> int:
    if not (meter.isascii() and meter.isdigit() and str(int(meter)) == meter):
        raise Rejected(f"expected a meter number in the packed form, found {meter!r}")
    if int(meter) > METER_MAX:
        raise Rejected(f"expected a meter number up to {METER_MAX}, found {meter}")
    return int(meter)


def _scaled(energy_wh: Decimal, factor: int, scale: int) -> int:
    scaled = energy_wh * factor
    if scaled != scaled.to_integral_value():
        raise Rejected(f"expected an energy with at most {scale} decimals, found {energy_wh}")
    return int(scaled)
