from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.kernel.errors import Rejected
from penstock.spark.ingest.tariffs import METERS, TARIFFS, Band, Book, band_row, cell, make_book


def day(month: int, number: int = 1) -> datetime:
    return datetime(2026, month, number, tzinfo=UTC)


def book(assigned: list[tuple[str, str, datetime]], bands: list[dict[str, Any]]) -> Book:
    rows = [dict(zip(METERS.names, row, strict=True)) for row in assigned]
    return make_book(
        pa.Table.from_pylist(rows, schema=METERS), pa.Table.from_pylist(bands, schema=TARIFFS)
    )


def prices(found: Book, version: int) -> list[Decimal | None]:
    made: list[Decimal | None] = found.versions["prices"][version].as_py()
    return made


def test_a_flat_tariff_asks_the_same_at_any_hour() -> None:
    found = book([("1", "flat", day(1))], [band_row("flat", day(1), 1, Band(Decimal("0.3")))])
    assert set(prices(found, 0)) == {Decimal("0.300000")}
    assert len(prices(found, 0)) == 12 * 7 * 24


def test_hours_and_months_may_run_over_the_end() -> None:
    night = Band(Decimal("0.1"), from_hour=22, to_hour=6)
    winter = Band(Decimal("0.2"), from_month=11, to_month=2)
    found = book(
        [("1", "t", day(1))],
        [
            band_row("t", day(1), 1, night),
            band_row("t", day(1), 2, winter),
            band_row("t", day(1), 3, Band(Decimal("0.3"), days="12345")),
        ],
    )
    asked = prices(found, 0)
    assert asked[cell(7, 1, 22)] == asked[cell(7, 1, 5)] == asked[cell(1, 7, 0)] == Decimal("0.1")
    assert asked[cell(12, 6, 12)] == asked[cell(2, 1, 6)] == Decimal("0.2")
    assert asked[cell(7, 5, 21)] == asked[cell(7, 1, 6)] == Decimal("0.3")
    assert asked[cell(7, 6, 12)] is None


def test_spans_are_cut_where_the_tariff_or_the_assignment_changes() -> None:
    bands = [
        band_row("a", day(1), 1, Band(Decimal(1))),
        band_row("a", day(3), 1, Band(Decimal(2))),
        band_row("b", day(2), 1, Band(Decimal(3))),
    ]
    assigned = [("7", "a", day(1)), ("7", "b", day(5)), ("8", "a", day(2)), ("9", "none", day(1))]
    spans = book(assigned, bands).spans.to_pylist()
    found = [(s["meter"], s["valid_from"].month, s["valid_to"].year, s["version"]) for s in spans]
    assert found == [
        ("7", 1, 2026, 0), ("7", 3, 2026, 1), ("7", 5, 9999, 2),
        ("8", 2, 2026, 0), ("8", 3, 9999, 1),
    ]  # fmt: skip
    assert [s["valid_to"] for s in spans[:2]] == [day(3), day(5)]


def test_an_assignment_before_the_first_version_begins_with_it() -> None:
    found = book([("7", "b", day(1))], [band_row("b", day(4), 1, Band(Decimal(3)))])
    assert found.spans["valid_from"].to_pylist() == [day(4)]


def test_two_prices_for_one_thing_are_refused() -> None:
    band = band_row("a", day(1), 1, Band(Decimal(1)))
    with pytest.raises(Rejected, match="expected one band 1 of tariff 'a'"):
        book([], [band, band])
    with pytest.raises(Rejected, match="expected one tariff of meter '7' from 2026"):
        book([("7", "a", day(1)), ("7", "b", day(1))], [band])


def test_an_empty_book_has_its_columns() -> None:
    found = book([], [])
    assert (found.spans.num_rows, found.versions.num_rows) == (0, 0)
    assert found.spans.column_names == ["meter", "valid_from", "valid_to", "version"]
