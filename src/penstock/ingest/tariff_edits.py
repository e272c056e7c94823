"""Changes of tariffs and assignments as functions of the documents there are.

They are for handlers of a runtime: when somebody else was quicker, the same change is worked out
again on what is there then. A change that would leave a document nobody can price with is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from penstock.ingest.errors import BadTariff
from penstock.ingest.hours import begin_of, instant_of, instant_text, zone_of
from penstock.ingest.tariffs import parse_meter, parse_tariff


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
                f"expected one of the tariffs that are there, {known}; found {tariff!r}"
            )
        begin = begin_of(when, zones[tariff])
        if added.setdefault(begin, tariff) != tariff:
            raise BadTariff(
                f"expected one tariff of the meter from {instant_text(begin)} on, found "
                f"{added[begin]!r} and {tariff!r}"
            )
    return {
        "assignments": [
            {"tariff": tariff, "valid_from": instant_text(begin)}
            for begin, tariff in sorted((found | added).items())
        ]
    }


def _settled(version: Any, zone: ZoneInfo) -> dict[str, Any]:
    """A version whose beginning is a moment."""
    if not isinstance(version, Mapping) or "valid_from" not in version:
        raise BadTariff(f"expected a version with valid_from, found {version!r}")
    return {**version, "valid_from": instant_text(begin_of(version["valid_from"], zone))}
