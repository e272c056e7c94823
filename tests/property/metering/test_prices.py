"""Prices as the book has them, against a plain model, for any documents and any reading."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import combinations
from math import prod
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metering.errors import BadTariff
from penstock.metering.hours import CELLS, cell, instant_text
from penstock.metering.price_book import Book, Books
from penstock.metering.tariffs import meter_id, name_of, parse_tariff, tariff_id, with_versions
from tests.books import make_book
from tests.property.metering.naive_prices import WEEK, fits, price_of

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia")
NAMES = ("flat", "night", "summer")
METERS = ("1", "2", "3")
YEAR = datetime(2026, 1, 1, tzinfo=UTC)

prices = st.integers(-(10**6), 10**12 - 1).map(lambda n: f"{Decimal(n).scaleb(-6):f}")
moments = st.integers(-400 * 96, 400 * 96).map(lambda n: YEAR + timedelta(minutes=15 * n))


@st.composite
def ranges(draw: st.DrawFn, least: int, most: int, names: list[str] | None = None) -> str:
    number = st.integers(least, most)
    shown = (lambda n: names[n - least]) if names else str
    parts = draw(st.lists(st.tuples(number, number), min_size=1, max_size=2))
    return ",".join(shown(a) if a == b else f"{shown(a)}-{shown(b)}" for a, b in parts)


hours = (
    st.tuples(st.integers(0, 23), st.integers(0, 24))
    .filter(lambda pair: pair[0] != pair[1])
    .map(lambda pair: f"{pair[0]}-{pair[1]}")
)


@st.composite
def bands(draw: st.DrawFn, kind: str) -> dict[str, str]:
    band = {"price_per_kwh": draw(prices)}
    if kind == "seasonal":
        band["months"] = draw(ranges(1, 12))
    if draw(st.booleans()) or kind == "time_of_use":
        band["hours"] = draw(hours)
    if draw(st.booleans()):
        band["days"] = draw(ranges(1, 7, WEEK))
    return band


@st.composite
def versions(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(("flat", "time_of_use", "seasonal")))
    made: dict[str, Any] = {"valid_from": instant_text(draw(moments)), "kind": kind}
    if kind == "flat":
        return made | {"price_per_kwh": draw(prices)}
    made["bands"] = draw(st.lists(bands(kind), min_size=1, max_size=3))
    return made | ({"otherwise": draw(prices)} if draw(st.integers(0, 9)) else {})


def unique(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({each["valid_from"]: each for each in entries}.values())


def right(version: dict[str, Any]) -> bool:
    """Whether every hour has one price: bands meet nowhere, and fill a year if they must."""
    if version["kind"] == "flat":
        return True
    areas = [area(band) for band in version["bands"]]
    for one, other in combinations(areas, 2):
        if all(a & b for a, b in zip(one, other, strict=True)):
            return False
    covered = sum(prod(map(len, found)) for found in areas)
    return "otherwise" in version or covered == CELLS


def area(band: dict[str, str]) -> tuple[set[int], set[int], set[int]]:
    """The months, weekdays and hours of a band, each found by trying."""
    months = [datetime(2026, month, 1, tzinfo=UTC) for month in range(1, 13)]
    days = [datetime(2026, 6, day, tzinfo=UTC) for day in range(1, 8)]
    hours_ = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(24)]
    return (
        {at.month for at in months if fits({k: v for k, v in band.items() if k == "months"}, at)},
        {at.day for at in days if fits({k: v for k, v in band.items() if k == "days"}, at)},
        {at.hour for at in hours_ if fits({k: v for k, v in band.items() if k == "hours"}, at)},
    )


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from(NAMES))):
        listed = draw(st.lists(versions().filter(right), min_size=1, max_size=3))
        zone = draw(st.sampled_from(ZONES))
        found[f"tariff:{name}"] = {"zone": zone, "versions": unique(listed)}
    for meter in draw(st.sets(st.sampled_from(METERS))):
        entry = st.fixed_dictionaries(
            {"tariff": st.sampled_from(NAMES), "valid_from": moments.map(instant_text)}
        )
        listed = draw(st.lists(entry, min_size=1, max_size=3))
        found[f"meter:{meter}"] = {"assignments": unique(listed)}
    return found


class Looked:
    """What the query over a book finds."""

    def __init__(self, book: Book) -> None:
        self._lists = {row["list"]: row for row in book.lists.to_pylist()}
        self._spans = book.spans.to_pylist()

    def up(self, meter: str, at: datetime) -> tuple[str, Decimal] | str:
        found = [
            self._lists[span["list"]]
            for span in self._spans
            if span["meter"] == meter and span["valid_from"] <= at < span["valid_to"]
        ]
        if not found:
            return "unknown_meter"
        (row,) = found
        if row["problem"] is not None:
            return str(row["problem"]).partition(":")[0]
        local = at.astimezone(ZoneInfo(row["zone"]))
        return row["tariff"], row["prices"][cell(local.month, local.isoweekday(), local.hour)]


@settings(max_examples=60, deadline=None)
@given(documents(), st.lists(moments, min_size=1, max_size=8))
def test_every_reading_finds_the_price_that_the_documents_say(
    found: dict[str, Any], times: list[datetime]
) -> None:
    looked = Looked(make_book(found))
    begins = [
        datetime.fromisoformat(each["valid_from"])
        for doc in found.values()
        for each in (*doc.get("versions", ()), *doc.get("assignments", ()))
    ]
    edges = [begin + timedelta(microseconds=step) for begin in begins for step in (-1, 0, 1)]
    for at in (*times, *edges):
        for meter in METERS:
            assert looked.up(meter, at) == price_of(found, meter, at)


@settings(max_examples=40, deadline=None)
@given(st.lists(documents(), min_size=2, max_size=4), st.lists(moments, min_size=1, max_size=3))
def test_a_book_that_follows_changes_is_the_book_of_what_is_there(
    states: list[dict[str, Any]], times: list[datetime]
) -> None:
    books = Books()
    before: dict[str, Any] = {}
    for state in states:
        changed = {key for key in before.keys() | state.keys() if before.get(key) != state.get(key)}
        books.update(state, changed)
        looked = Looked(books.book)
        for at in times:
            for meter in METERS:
                assert looked.up(meter, at) == price_of(state, meter, at)
        before = state


@settings(max_examples=60, deadline=None)
@given(versions())
def test_a_version_is_refused_if_and_only_if_an_hour_has_no_price_or_two(
    version: dict[str, Any],
) -> None:
    if right(version):
        assert len(parse_tariff({"versions": [version]}).versions[0].prices) == CELLS
        return
    with pytest.raises(BadTariff, match=r"no price for |two prices for "):
        parse_tariff({"versions": [version]})


@settings(max_examples=30, deadline=None)
@given(st.lists(versions().filter(right), min_size=1, max_size=4), st.permutations(range(4)))
def test_versions_that_are_added_one_by_one_come_out_the_same_in_any_order(
    listed: list[dict[str, Any]], order: list[int]
) -> None:
    listed = unique(listed)
    one: dict[str, Any] | None = None
    for number in order:
        if number < len(listed):
            one = with_versions(one, [listed[number]])
    assert one == with_versions(None, listed)


@given(st.text(min_size=1, max_size=60))
def test_every_name_has_an_entity_of_its_own(name: str) -> None:
    try:
        entities = tariff_id(name), meter_id(name)
    except BadTariff:
        assert len(name.encode("utf-8", "surrogatepass")) * 3 > 240 or not name.isprintable()
        return
    assert [name_of(entity) for entity in entities] == [name, name]
