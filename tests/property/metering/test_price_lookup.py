"""Prices and charges for many readings at once, against a plain model, for any documents."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metering.hours import cell
from penstock.metering.parsing import ENERGY, PARSED
from penstock.metering.price_lookup import PriceLookup, _Zone, cells, charges, micros_of
from penstock.metering.pricing import price_readings
from tests.books import make_book
from tests.property.metering.naive_prices import charge_of, price_of
from tests.property.metering.test_prices import METERS, ZONES, documents, moments

MICRO = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
energies = st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-6))


def readings(found: list[tuple[str, datetime, Decimal]]) -> pa.RecordBatch:
    columns: dict[str, Any] = {field.name: [None] * len(found) for field in PARSED}
    columns |= {
        "_seq": list(range(len(found))),
        "_row": [0] * len(found),
        "meter": [meter for meter, _, _ in found],
        "time": [at for _, at, _ in found],
        "energy_wh": [energy for _, _, energy in found],
    }
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in PARSED], schema=PARSED)


@settings(max_examples=60, deadline=None)
@given(
    documents(),
    st.lists(st.tuples(st.sampled_from((*METERS, "unheard")), moments, energies), min_size=1),
)
def test_every_reading_gets_the_price_and_charge_that_the_documents_say(
    found: dict[str, Any], wanted: list[tuple[str, datetime, Decimal]]
) -> None:
    begins = [
        datetime.fromisoformat(each["valid_from"])
        for doc in found.values()
        for each in (*doc.get("versions", ()), *doc.get("assignments", ()))
    ]
    edges = [begin + step * MICRO for begin in begins for step in (-1, 0, 1)]
    wanted = [*wanted, *((meter, at, Decimal(5)) for at in edges for meter in METERS)]
    book = make_book(found)
    priced = price_readings(readings(wanted), PriceLookup(book.spans, book.lists), 3, 17)
    for (meter, at, energy), row in zip(wanted, priced.to_pylist(), strict=True):
        expected = price_of(found, meter, at)
        if isinstance(expected, str):
            assert row["_reason"].partition(":")[0] == expected
            continue
        assert row["_reason"] is None
        assert (row["tariff"], row["price_per_kwh"]) == expected
        assert row["charge"] == charge_of(energy, expected[1])
        assert (row["tariffs_epoch"], row["tariffs_seq"]) == (3, 17)


@given(st.lists(st.tuples(energies, st.integers(-(10**12) + 1, 10**12 - 1)), min_size=1))
def test_charges_are_exact_whatever_their_size(found: list[tuple[Decimal, int]]) -> None:
    energy = micros_of(pa.array([each for each, _ in found], ENERGY))
    made = charges(energy, np.array([price for _, price in found], np.int64))
    assert made.to_pylist() == [charge_of(each, Decimal(price).scaleb(-6)) for each, price in found]


@given(
    st.sampled_from((*ZONES, "America/Los_Angeles", "Africa/Monrovia", "Europe/Amsterdam")),
    st.lists(
        st.integers(-62_104_060_800, 253_370_764_800).map(lambda s: EPOCH + timedelta(seconds=s)),
        min_size=1,
    ),
)
def test_local_times_are_those_of_the_zone(name: str, found: list[datetime]) -> None:
    local = [each.astimezone(ZoneInfo(name)) for each in found]
    times_us = np.array([(each - EPOCH) // MICRO for each in found], np.int64)
    assert cells(_Zone(name).local(times_us)).tolist() == [
        cell(each.month, each.isoweekday(), each.hour) for each in local
    ]


def test_the_first_and_the_last_moment_have_a_local_time_in_every_zone() -> None:
    ends_us = np.array([(each - EPOCH) // MICRO for each in (FIRST, LAST)], np.int64)
    for name in ZONES:
        local = _Zone(name).local(ends_us)
        assert (np.abs(local - ends_us) <= timedelta(hours=16) // MICRO).all()


def test_a_book_without_meters_prices_nothing() -> None:
    book = make_book({})
    rows = price_readings(
        readings([("1", EPOCH, Decimal(1))]), PriceLookup(book.spans, book.lists), 1, 1
    )
    assert rows["_reason"][0].as_py().startswith("unknown_meter")
