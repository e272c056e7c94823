"""What a reading costs, worked out the plain way from documents of tariffs and meters.

Shares no code with the product: it looks at every assignment, version and band in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any
from zoneinfo import ZoneInfo

WEEK = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


def price_of(documents: Mapping[str, Any], meter: str, at: datetime) -> tuple[str, Decimal] | str:
    """The tariff and the price per kWh, or the word that a dead letter begins with."""
    assigned = latest(documents.get(f"meter:{meter}", {}).get("assignments", []), at)
    if assigned is None:
        return "unknown_meter"
    name = assigned["tariff"]
    tariff = documents.get(f"tariff:{name}")
    version = latest(tariff["versions"], at) if tariff else None
    if version is None:
        return "unknown_tariff"
    local = at.astimezone(ZoneInfo(tariff.get("zone", "UTC")))
    if version["kind"] == "flat":
        return name, Decimal(version["price_per_kwh"])
    found = [Decimal(band["price_per_kwh"]) for band in version["bands"] if fits(band, local)]
    (price,) = found or [Decimal(version["otherwise"])]
    return name, price


def charge_of(energy_wh: Decimal, price: Decimal) -> Decimal:
    """Six decimals, halves away from nothing."""
    with localcontext(prec=60):
        return (energy_wh * price / 1_000).quantize(Decimal("0.000001"), ROUND_HALF_UP)


def latest(entries: list[dict[str, Any]], at: datetime) -> dict[str, Any] | None:
    begun = [each for each in entries if datetime.fromisoformat(each["valid_from"]) <= at]
    return max(begun, key=lambda each: datetime.fromisoformat(each["valid_from"]), default=None)


def fits(band: Mapping[str, str], local: datetime) -> bool:
    tests = {
        "months": (local.month, int, True),
        "days": (local.isoweekday(), lambda text: WEEK.index(text) + 1, True),
        "hours": (local.hour, int, False),
    }
    for key, (value, number, closed) in tests.items():
        if key in band and not any(
            inside(value, part, number, closed=closed) for part in band[key].split(",")
        ):
            return False
    return True


def inside(value: int, part: str, number: Any, *, closed: bool) -> bool:
    first, _, last = part.partition("-")
    begin, end = number(first), number(last or first)
    if closed:
        return begin <= value <= end if begin <= end else value >= begin or value <= end
    return begin <= value < end if begin < end else value >= begin or value < end
