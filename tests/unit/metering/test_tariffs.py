from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from penstock.metering.errors import BadTariff
from penstock.metering.hours import begin_of, cell, days_of, hours_of, months_of, zone_of
from penstock.metering.tariffs import (
    Assignment,
    meter_id,
    name_of,
    parse_meter,
    parse_price,
    parse_tariff,
    with_assignments,
    with_versions,
)

JULY = "2026-07-01T00:00:00Z"
NIGHT = {"hours": "22-6", "price_per_kwh": "0.19"}


def flat(price: Any = "0.31", since: Any = JULY) -> dict[str, Any]:
    return {"kind": "flat", "valid_from": since, "price_per_kwh": price}


def by_hours(*bands: dict[str, Any], kind: str = "time_of_use", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "valid_from": JULY, "bands": list(bands), **more}


def refusal(*versions: Any, **more: Any) -> str:
    with pytest.raises(BadTariff) as caught:
        parse_tariff({"versions": list(versions), **more})
    return caught.value.message


def test_a_flat_tariff_asks_the_same_at_any_hour() -> None:
    (version,) = parse_tariff({"versions": [flat("0.310000")]}).versions
    assert set(version.prices) == {Decimal("0.31")}
    assert len(version.prices) == 12 * 7 * 24


def test_bands_count_in_their_hours_and_otherwise_in_all_others() -> None:
    weekend = {"hours": "6-22", "days": "sat,sun", "price_per_kwh": "0.2"}
    (version,) = parse_tariff({"versions": [by_hours(NIGHT, weekend, otherwise="0.4")]}).versions
    asked = version.prices
    assert asked[cell(7, 1, 22)] == asked[cell(1, 7, 5)] == Decimal("0.19")
    assert asked[cell(7, 6, 6)] == asked[cell(7, 7, 21)] == Decimal("0.2")
    assert asked[cell(7, 5, 6)] == asked[cell(1, 1, 21)] == Decimal("0.4")


def test_seasons_may_run_over_the_end_of_the_year() -> None:
    winter = {"months": "10-2", "price_per_kwh": "0.37"}
    summer = {"months": "3-9", "price_per_kwh": "0.22"}
    (version,) = parse_tariff({"versions": [by_hours(winter, summer, kind="seasonal")]}).versions
    assert [version.prices[cell(month, 1, 0)] for month in (2, 3, 9, 10)] == [
        Decimal(text) for text in ("0.37", "0.22", "0.22", "0.37")
    ]


def test_versions_are_sorted_by_their_beginning() -> None:
    found = parse_tariff({"versions": [flat("2"), flat("1", "2026-01-01T01:00:00+02:00")]})
    assert [str(version.prices[0]) for version in found.versions] == ["1", "2"]
    assert found.versions[0].valid_from == datetime(2025, 12, 31, 23, tzinfo=UTC)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (flat() | {"kind": "flatt"}, "expected kind flat, time_of_use or seasonal, found 'flatt'"),
        (flat(0.31), ("expected a price such as '0.31', at most 6 digits before and after the "
                     "point, found 0.31 (a number: write it in quotes)")),
        (flat("0,31"), "found '0,31'"),
        (flat("1e-3"), "found '1e-3'"),
        (flat("NaN"), "found 'NaN'"),
        (flat("0.1234567"), "found '0.1234567'"),
        (flat(since="2026-07-01"), ("expected a time such as '2026-01-01T00:00:00Z', found "
                                   "'2026-07-01'")),
        (flat(since=None), "found None"),
        ({"kind": "flat", "valid_from": JULY}, ("expected a flat version with kind, price_per_kwh, "
                                               "valid_from, found no price_per_kwh")),
        (flat() | {"bands": []}, ("with nothing but kind, price_per_kwh, valid_from, found also "
                                 "bands")),
        (by_hours(NIGHT), ("no price for Mondays in January at 06:00: add a "
                          "band, or 'otherwise' for all other hours")),
        (by_hours(NIGHT, NIGHT | {"hours": "20-23"}, otherwise="1"),
         ("two prices for Mondays in January at 22:00: band 1 (hours "
         "22-6) and band 2 (hours 20-23) overlap")),
        (by_hours(otherwise="1"), "expected a list of bands, found []"),
        (by_hours({"price_per_kwh": "1"}), ("band 1: a band has hours or days: one "
                                           "price for all is 'otherwise'")),
        (by_hours(NIGHT | {"months": "1"}), ("band 1: expected a time_of_use band with nothing but "
                                            "days, hours, price_per_kwh, found also months")),
        (by_hours(NIGHT, kind="seasonal"), ("band 1: expected a seasonal band with months, "
                                           "price_per_kwh, found no months")),
        (by_hours(NIGHT | {"hours": "22"}), ("band 1: expected hours such as '22-6', from 0 to 24, "
                                            "found '22'")),
        ("flat", "expected a version with valid_from and kind, found 'flat'"),
    ],
)  # fmt: skip
def test_a_version_that_makes_no_sense_is_refused_with_what_is_wrong(
    version: Any, said: str
) -> None:
    found = refusal(version)
    assert found.startswith("version 1: ")
    assert said in found


def test_a_document_that_makes_no_sense_is_refused_with_what_is_wrong() -> None:
    assert refusal() == "expected a list of versions, found []"
    assert refusal(flat(), flat("0.4")) == f"there are two versions from {JULY} on"
    assert "expected a time zone such as 'Europe/Berlin'" in refusal(flat(), zone="Berlin")
    assert "found 'Europe/Nowhere'" in refusal(flat(), zone="Europe/Nowhere")
    assert "found '../etc/passwd'" in refusal(flat(), zone="../etc/passwd")
    assert "found also name" in refusal(flat(), name="night")
    with pytest.raises(BadTariff, match="expected a tariff with versions, found 7"):
        parse_tariff(7)


def test_assignments_are_sorted_and_two_for_one_time_refused() -> None:
    late, early = (
        {"tariff": "b", "valid_from": JULY},
        {"tariff": "a", "valid_from": "2026-01-01T00:00:00Z"},
    )
    found = parse_meter({"assignments": [late, early]})
    assert [each.tariff for each in found] == ["a", "b"]
    assert found[1] == Assignment("b", datetime(2026, 7, 1, tzinfo=UTC))
    with pytest.raises(BadTariff, match="two tariffs of the meter from 2026-07-01"):
        parse_meter({"assignments": [late, late | {"tariff": "c"}]})
    with pytest.raises(BadTariff, match="assignment 1: expected the name of a tariff, found None"):
        parse_meter({"assignments": [late | {"tariff": None}]})


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (hours_of, "6-6"), (hours_of, "6-25"), (hours_of, "-6"), (hours_of, ""), (hours_of, 6),
        (hours_of, "6–9"), (days_of, "monday"), (days_of, "mon-"), (days_of, "1-5"),
        (months_of, "0"), (months_of, "13"), (months_of, "1-"), (months_of, "²"),
        (zone_of, "CET-1CEST"), (zone_of, None), (parse_price, "-"), (parse_price, "1."),
        (parse_price, "1234567"), (parse_price, "１"), (parse_price, Decimal("0.3")),
    ],
)  # fmt: skip
def test_what_is_neither_hours_nor_days_nor_a_price_is_refused(parse: Any, text: Any) -> None:
    with pytest.raises(BadTariff, match=r"^expected .*found "):
        parse(text)


def test_a_day_begins_at_midnight_of_the_zone_and_a_time_may_say_its_own() -> None:
    berlin = zone_of("Europe/Berlin")
    assert begin_of("2026-07-01", berlin) == datetime(2026, 6, 30, 22, tzinfo=UTC)
    assert begin_of("2026-07-01T06:30", berlin) == datetime(2026, 7, 1, 4, 30, tzinfo=UTC)
    assert begin_of("2026-07-01T06:30Z", berlin) == datetime(2026, 7, 1, 6, 30, tzinfo=UTC)
    for wrong in ("soon", 7, "0001-01-01"):
        with pytest.raises(BadTariff, match="expected a day such as 2026-01-01"):
            begin_of(wrong, berlin)


def test_names_become_ids_and_come_back() -> None:
    for name in ("17", "a_b", "ä/ö", "_20", "a:b.c-d", "🙂"):
        assert name_of(meter_id(name)) == name
    with pytest.raises(BadTariff, match="expected a meter of 1 to 249 characters"):
        meter_id("x" * 250)
    with pytest.raises(BadTariff, match="half a character"):
        meter_id("\ud800")


def test_a_version_takes_the_place_of_the_one_from_the_same_moment_on() -> None:
    first = with_versions(None, [flat("1", "2026-01-01"), flat("2", "2026-07-01")])
    again = with_versions(first, [flat("3", "2026-07-01")])
    assert [each["price_per_kwh"] for each in again["versions"]] == ["1", "3"]
    assert with_versions(again, [flat("3", "2026-07-01")]) == again


def test_a_change_of_the_zone_or_on_top_of_a_bad_document_is_refused() -> None:
    first = with_versions(None, [flat()], zone="Europe/Berlin")
    assert with_versions(first, [flat("2", "2026-08-01")])["zone"] == "Europe/Berlin"
    with pytest.raises(BadTariff, match="expected zone 'Europe/Berlin' as this tariff has it"):
        with_versions(first, [flat()], zone="UTC")
    with pytest.raises(BadTariff, match="expected kind"):
        with_versions({"versions": [flat() | {"kind": "x"}]}, [flat()])


def test_a_meter_keeps_its_assignments_and_gets_no_unknown_tariff() -> None:
    zones = {"a": zone_of("UTC"), "b": zone_of("Europe/Berlin")}
    first = with_assignments(None, [("a", "2026-01-01")], zones)
    both = with_assignments(first, [("b", "2026-07-01")], zones)
    assert both["assignments"] == [
        {"tariff": "a", "valid_from": "2026-01-01T00:00:00Z"},
        {"tariff": "b", "valid_from": "2026-06-30T22:00:00Z"},
    ]
    with pytest.raises(
        BadTariff, match="there is no tariff 'c': give one of those that are there, a, b"
    ):
        with_assignments(None, [("c", "2026-01-01")], zones)
    with pytest.raises(BadTariff, match="'a' and 'b': give one"):
        with_assignments(None, [("a", "2026-01-01T00:00Z"), ("b", "2026-01-01T00:00Z")], zones)
