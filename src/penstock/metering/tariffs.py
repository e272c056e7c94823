"""Tariffs and their assignment to meters: entities of a space, read and checked as a whole.

A tariff is the entity `tariff:NAME`. Each version counts from a moment on until the next one and
has one price for every hour of every weekday of every month:

| kind | has |
|---|---|
| `flat` | `price_per_kwh` |
| `time_of_use` | `bands` of `hours` and `days`, each with its `price_per_kwh`, and `otherwise` |
| `seasonal` | the same, and every band has `months` |

A meter is the entity `meter:ID` with `assignments`: a tariff from a moment on until the next one.
Prices are decimals, as text; bands must not overlap; where they leave a gap, `otherwise` counts.

>>> night = {"valid_from": "2026-01-01T00:00:00Z", "kind": "time_of_use", "otherwise": "0.36",
...          "bands": [{"hours": "22-6", "price_per_kwh": "0.19"}]}
>>> tariff = parse_tariff({"versions": [night]})
>>> [str(tariff.versions[0].prices[cell(1, 1, hour)]) for hour in (5, 6)]
['0.19', '0.36']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from penstock.metering.errors import BadTariff, about
from penstock.metering.hours import (
    CELLS,
    begin_of,
    cell,
    cell_words,
    days_of,
    hours_of,
    instant_of,
    instant_text,
    months_of,
    zone_of,
)

SPACE: Final = "ingest.tariffs"
TARIFF: Final = "tariff:"
METER: Final = "meter:"
KINDS: Final = ("flat", "time_of_use", "seasonal")
ID_MAX: Final = 255
_PRICE: Final = re.compile(r"-?[0-9]{1,6}(\.[0-9]{1,6})?")
_PLAIN: Final = re.compile(rb"[A-Za-z0-9.:-]")
_ESCAPED: Final = re.compile(rb"_(_|[0-9A-F]{2})")


class Band(NamedTuple):
    """A price, and when it counts; no months, days or hours are all of them."""

    price: Decimal
    months: frozenset[int]
    days: frozenset[int]
    hours: frozenset[int]
    words: str

    def cells(self) -> Iterable[int]:
        """The hours that it is for."""
        return (
            cell(month, day, hour)
            for month in self.months for day in self.days for hour in self.hours
        )  # fmt: skip


class Version(NamedTuple):
    """A tariff from a moment on: a price for each of `CELLS`."""

    valid_from: datetime
    kind: str
    prices: tuple[Decimal, ...]


class Tariff(NamedTuple):
    """A tariff with all its versions, oldest first; its hours are those of the zone."""

    zone: ZoneInfo
    versions: tuple[Version, ...]


class Assignment(NamedTuple):
    """The tariff that a meter has from a moment on."""

    tariff: str
    valid_from: datetime


def tariff_id(name: str) -> str:
    """The entity of a tariff."""
    return _entity(TARIFF, name, "tariff")


def meter_id(meter: str) -> str:
    """The entity of a meter, whose id may be any text.

    >>> meter_id("17"), meter_id("cellar_2 west")
    ('meter:17', 'meter:cellar__2_20west')
    """
    return _entity(METER, meter, "meter")


def name_of(entity: str) -> str:
    """The tariff or the meter of an entity.

    >>> name_of("meter:cellar__2_20west")
    'cellar_2 west'
    """
    text = entity.partition(":")[2].encode()
    return _ESCAPED.sub(
        lambda found: b"_" if found[1] == b"_" else bytes.fromhex(found[1].decode()), text
    ).decode(errors="replace")


def parse_tariff(document: Any) -> Tariff:
    """The tariff of a document, or `BadTariff` that says what is wrong with it and where."""
    fields = _fields(document, "a tariff", {"versions"}, {"zone"})
    zone = zone_of(fields.get("zone", "UTC"))
    versions = []
    for number, found in enumerate(_list(fields["versions"], "versions"), start=1):
        with about(f"version {number}"):
            versions.append(_version(found))
    _check_order([version.valid_from for version in versions], "versions")
    return Tariff(zone, tuple(sorted(versions)))


def parse_meter(document: Any) -> tuple[Assignment, ...]:
    """The assignments of a document, oldest first, or `BadTariff`."""
    fields = _fields(document, "a meter", {"assignments"}, set())
    found = []
    for number, each in enumerate(_list(fields["assignments"], "assignments"), start=1):
        with about(f"assignment {number}"):
            entry = _fields(each, "an assignment", {"tariff", "valid_from"}, set())
            if not isinstance(entry["tariff"], str) or not entry["tariff"]:
                raise BadTariff(f"expected the name of a tariff, found {entry['tariff']!r}")
            found.append(Assignment(entry["tariff"], instant_of(entry["valid_from"])))
    _check_order([each.valid_from for each in found], "tariffs of the meter")
    return tuple(sorted(found, key=lambda each: each.valid_from))


def parse_price(text: object) -> Decimal:
    """A price, exactly as it is written.

    >>> parse_price("0.310")
    Decimal('0.310')
    """
    if isinstance(text, str) and _PRICE.fullmatch(text):
        return Decimal(text)
    hint = " (a number: write it in quotes)" if isinstance(text, int | float) else ""
    raise BadTariff(
        f"expected a price such as '0.31', at most 6 digits before and after the point, "
        f"found {text!r}{hint}"
    )


def with_versions(
    document: Any, versions: Sequence[Mapping[str, Any]], *, zone: str | None = None
) -> dict[str, Any]:
    """A tariff with more versions; one from the same moment on takes the place of the old one.

    Days, and times without an offset, are those of the tariff's zone.

    >>> flat = {"valid_from": "2026-07-01", "kind": "flat", "price_per_kwh": "0.30"}
    >>> with_versions(None, [flat], zone="Europe/Berlin")["versions"]
    [{'valid_from': '2026-06-30T22:00:00Z', 'kind': 'flat', 'price_per_kwh': '0.30'}]
    """
    before: Mapping[str, Any] = {"versions": []} if document is None else document
    if document is not None:
        parse_tariff(document)
    name = before.get("zone", zone or "UTC")
    if zone is not None and document is not None and zone != before.get("zone", "UTC"):
        raise BadTariff(
            f"expected zone {before.get('zone', 'UTC')!r} as this tariff has it, found {zone!r}: "
            "its hours would be others, of old versions too"
        )
    added = [_settled(each, zone_of(name)) for each in versions]
    made = {} if name == "UTC" else {"zone": name}
    parse_tariff(made | {"versions": added})  # so that errors count versions as they were given
    begins = {instant_of(each["valid_from"]) for each in added}
    kept = [each for each in before["versions"] if instant_of(each["valid_from"]) not in begins]
    made["versions"] = sorted([*kept, *added], key=lambda each: instant_of(each["valid_from"]))
    return made


def with_assignments(
    document: Any, assignments: Sequence[tuple[str, str]], zones: Mapping[str, ZoneInfo]
) -> dict[str, Any]:
    """A meter with more assignments: tariffs, and from when on in the tariff's own zone.

    One from the same moment on takes the place of the old one. `zones` are those of the tariffs
    that are there.

    >>> with_assignments(None, [("night", "2026-07-01")], {"night": ZoneInfo("UTC")})
    {'assignments': [{'tariff': 'night', 'valid_from': '2026-07-01T00:00:00Z'}]}
    """
    found = {} if document is None else {
        each.valid_from: each.tariff for each in parse_meter(document)
    }  # fmt: skip
    added: dict[Any, str] = {}
    for tariff, when in assignments:
        if tariff not in zones:
            known = ", ".join(sorted(zones)) or "none"
            raise BadTariff(
                f"there is no tariff {tariff!r}: give one of those that are there, {known}"
            )
        begin = begin_of(when, zones[tariff])
        if added.setdefault(begin, tariff) != tariff:
            raise BadTariff(
                f"the meter has two tariffs from {instant_text(begin)} on, {added[begin]!r} and "
                f"{tariff!r}: give one"
            )
    return {
        "assignments": [
            {"tariff": tariff, "valid_from": instant_text(begin)}
            for begin, tariff in sorted((found | added).items())
        ]
    }


def _version(document: Any) -> Version:
    if not isinstance(document, Mapping):
        raise BadTariff(f"expected a version with valid_from and kind, found {document!r}")
    kind = document.get("kind")
    if kind not in KINDS:
        raise BadTariff(f"expected kind {', '.join(KINDS[:-1])} or {KINDS[-1]}, found {kind!r}")
    if kind == "flat":
        fields = _fields(document, "a flat version", {"valid_from", "kind", "price_per_kwh"}, set())
        prices = (parse_price(fields["price_per_kwh"]),) * CELLS
        return Version(instant_of(fields["valid_from"]), kind, prices)
    what = f"a {kind} version"
    fields = _fields(document, what, {"valid_from", "kind", "bands"}, {"otherwise"})
    otherwise = parse_price(fields["otherwise"]) if "otherwise" in fields else None
    bands = []
    for number, found in enumerate(_list(fields["bands"], "bands"), start=1):
        with about(f"band {number}"):
            bands.append(_band(found, kind, number))
    return Version(instant_of(fields["valid_from"]), kind, _prices(bands, otherwise))


def _band(document: Any, kind: str, number: int) -> Band:
    times = {"hours", "days"} if kind == "time_of_use" else {"months", "hours", "days"}
    required = {"price_per_kwh"} if kind == "time_of_use" else {"price_per_kwh", "months"}
    fields = _fields(document, f"a {kind} band", required, times)
    if not times & fields.keys():
        raise BadTariff("a band has hours or days: one price for all is 'otherwise'")
    said = ", ".join(f"{key} {fields[key]}" for key in ("months", "days", "hours") if key in fields)
    return Band(
        parse_price(fields["price_per_kwh"]),
        months_of(fields.get("months", "1-12")),
        days_of(fields.get("days", "mon-sun")),
        hours_of(fields.get("hours", "0-24")),
        f"band {number} ({said})",
    )


def _prices(bands: Sequence[Band], otherwise: Decimal | None) -> tuple[Decimal, ...]:
    """The price of every hour, of which there must be exactly one."""
    owners: list[Band | None] = [None] * CELLS
    for band in bands:
        for place in band.cells():
            other = owners[place]
            if other is not None:
                raise BadTariff(
                    f"two prices for {cell_words(place)}: {other.words} and {band.words} overlap"
                )
            owners[place] = band
    prices = [otherwise if owner is None else owner.price for owner in owners]
    settled = tuple(price for price in prices if price is not None)
    if len(settled) < CELLS:
        raise BadTariff(
            f"no price for {cell_words(prices.index(None))}: add a band, or 'otherwise' for all "
            "other hours"
        )
    return settled


def _check_order(begins: list[datetime], what: str) -> None:
    for one, other in pairwise(sorted(begins)):
        if one == other:
            raise BadTariff(f"there are two {what} from {instant_text(one)} on")


def _fields(document: Any, what: str, required: set[str], optional: set[str]) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise BadTariff(f"expected {what} with {_words(required)}, found {document!r}")
    missing, unknown = required - document.keys(), document.keys() - required - optional
    if missing:
        raise BadTariff(f"expected {what} with {_words(required)}, found no {_words(missing)}")
    if unknown:
        raise BadTariff(
            f"expected {what} with nothing but {_words(required | optional)}, found also "
            f"{_words(unknown)}"
        )
    return document


def _list(found: Any, what: str) -> Sequence[Any]:
    if not isinstance(found, list) or not found:
        raise BadTariff(f"expected a list of {what}, found {found!r}")
    return found


def _words(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names)))


def _entity(prefix: str, name: str, what: str) -> str:
    try:
        plain = [
            byte if _PLAIN.match(byte) else b"__" if byte == b"_" else b"_%02X" % byte[0]
            for byte in (bytes([value]) for value in name.encode())
        ]
    except UnicodeEncodeError:
        raise BadTariff(f"a {what} has half a character (a lone surrogate): {name!a}") from None
    entity = prefix + b"".join(plain).decode()
    if not name or len(entity) > ID_MAX:
        raise BadTariff(
            f"expected a {what} of 1 to {ID_MAX - len(prefix)} characters, found {name[:60]!r}"
        )
    return entity


def _settled(version: Any, zone: ZoneInfo) -> dict[str, Any]:
    """A version whose beginning is a moment."""
    if not isinstance(version, Mapping) or "valid_from" not in version:
        raise BadTariff(f"expected a version with valid_from, found {version!r}")
    return {**version, "valid_from": instant_text(begin_of(version["valid_from"], zone))}
