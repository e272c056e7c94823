"""Readings as payloads: both forms, and what is wrong with those that are neither."""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pytest

from penstock.kernel.errors import Rejected
from penstock.metering.errors import BadPayload
from penstock.metering.readings import (
    HEADER,
    METER_MAX,
    READING,
    READING_DTYPE,
    Quality,
    Reading,
    decode,
    encode_json,
    encode_packed,
    pack_rows,
    unpack,
)

SENT = [Reading("17", 1_767_225_600_000, Decimal("1250.125"), Quality.ESTIMATED)]


def test_a_packed_payload_is_what_the_page_for_device_writers_says():
    payload = encode_packed(SENT, scale=3)
    assert payload == bytes.fromhex("9d010300 01000000") + bytes.fromhex(
        "1100000000000000 00a8da769b010000 4d13130000000000 0100"
    )
    assert (HEADER.size, READING.size, READING_DTYPE.itemsize) == (8, 26, 26)


def test_rows_of_many_payloads_can_be_read_at_once():
    payloads = [encode_packed([Reading(str(n), n, Decimal(n))], scale=0) for n in range(5)]
    rows = np.frombuffer(b"".join(each[HEADER.size :] for each in payloads), READING_DTYPE)
    assert rows["meter"].tolist() == rows["energy"].tolist() == [0, 1, 2, 3, 4]


def test_columns_are_packed_as_readings_are():
    rows = np.array([(17, 1_767_225_600_000, 1_250_125, 1)], READING_DTYPE)
    assert pack_rows(rows, scale=3) == encode_packed(SENT, scale=3)
    assert unpack(pack_rows(rows)).rows.tolist() == rows.tolist()


@pytest.mark.parametrize("energy", ["1250.125", '"1250.125"', "1250.1250"])
def test_json_takes_an_energy_as_a_number_or_as_text_and_never_as_a_float(energy):
    text = f'{{"readings":[{{"meter":"m-1","time_ms":5,"energy_wh":{energy}}}]}}'
    assert decode(text.encode()) == [Reading("m-1", 5, Decimal("1250.125"))]


def test_the_json_form_is_read_back_as_it_was():
    assert decode(encode_json(SENT)) == SENT


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "json"),
        (b"{", "json"),
        (b'{"readings":[{"meter":1}]}', "json"),
        (b'{"readings":[{"meter":"1","time_ms":99999999999999999999,"energy_wh":1}]}', "json"),
        (b'{"readings":[{"meter":"1","time_ms":1,"energy_wh":"NaN"}]}', "energy"),
        (b"\xff\xfe", "json"),
        (b"\x9d\x01", "size"),
        (encode_packed(SENT)[:-1], "size"),
        (encode_packed(SENT) + b"x", "size"),
        (b"\x9d\x02" + encode_packed(SENT)[2:], "version"),
        (b"\x9d\x01\x07" + encode_packed(SENT)[3:], "scale"),
        (HEADER.pack(0x9D, 1, 0, 0, 2**32 - 1), "size"),
        (HEADER.pack(0x9D, 1, 0, 0, 1) + READING.pack(2**63, 0, 0, 0), "meter"),
    ],
)
def test_a_bad_payload_is_told_by_a_stable_word(payload, reason):
    with pytest.raises(BadPayload) as caught:
        decode(payload)
    assert caught.value.reason == reason
    assert re.search("expected|not readings as JSON|is not an energy|is above", str(caught.value))


def test_another_first_byte_is_no_packed_payload():
    with pytest.raises(BadPayload) as caught:
        unpack(b"x" * 8)
    assert caught.value.reason == "magic"


@pytest.mark.parametrize(
    ("reading", "scale"),
    [
        (Reading("meter-x", 0, Decimal(1)), 3),
        (Reading("007", 0, Decimal(1)), 3),
        (Reading(str(METER_MAX + 1), 0, Decimal(1)), 3),
        (Reading("1", 0, Decimal("0.0001")), 3),
        (Reading("1", 2**63, Decimal(1)), 3),
        (Reading("1", 0, Decimal(1), 70_000), 3),
        (Reading("1", 0, Decimal(1)), 7),
    ],
)
def test_what_has_no_place_in_the_packed_form_is_refused(reading, scale):
    with pytest.raises(Rejected):
        encode_packed([reading], scale=scale)


def test_columns_of_another_shape_are_refused():
    with pytest.raises(Rejected):
        pack_rows(np.zeros(3, np.int64))
