"""Hours, days and months as people write them in a tariff: `22-6`, `mon-fri`, `10-2`.

A list has commas; a range may run over the end. The last hour of a range does not belong to it, the
last day and the last month do.

>>> sorted(hours_of("22-6")), sorted(days_of("sat,sun")), sorted(months_of("11-2,7"))
([0, 1, 2, 3, 4, 5, 22, 23], [6, 7], [1, 2, 7, 11, 12])
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time
from typing import Final
from zoneinfo import ZoneInfo

from penstock.metering.errors import BadTariff

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_NAMES: Final = (
    "Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays",
)  # fmt: skip
MONTH_NAMES: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
CELLS: Final = 12 * 7 * 24
"""Every hour of every weekday of every month: what a tariff has a price for."""


def hours_of(text: object) -> frozenset[int]:
    """The hours of `22-6` or `7-9,17-20`, each from 0 to 23."""
    found: set[int] = set()
    for part in _parts(text, "hours such as '22-6'"):
        first, dash, last = part.partition("-")
        if not dash or not _is_number(first, 0, 23) or not _is_number(last, 0, 24):
            raise _bad("hours such as '22-6', from 0 to 24", text)
        if int(first) == int(last):
            raise _bad("hours that begin and end at different times", text)
        found |= _run(int(first), (int(last) - 1) % 24, 0, 23)
    return frozenset(found)


def days_of(text: object) -> frozenset[int]:
    """The weekdays of `mon-fri` or `sat,sun`; Monday is 1."""
    return _inclusive(text, "days such as 'mon-fri' or 'sat,sun'", _day, 7)


def months_of(text: object) -> frozenset[int]:
    """The months of `10-2` or `7`."""
    return _inclusive(text, "months such as '10-2' or '7,8'", _month, 12)


def zone_of(name: object) -> ZoneInfo:
    """A time zone by its name; only names that every system knows."""
    if isinstance(name, str) and (name == "UTC" or "/" in name):
        try:
            return ZoneInfo(name)
        except (OSError, ValueError, LookupError):  # LookupError: it has no such zone
            pass
    raise _bad("a time zone such as 'Europe/Berlin' or 'UTC'", name)


def instant_of(text: object) -> datetime:
    """The moment that an RFC 3339 text names, which must say its offset."""
    if isinstance(text, str):
        try:
            found = datetime.fromisoformat(text)
            if found.tzinfo is not None:
                return found.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise _bad("a time such as '2026-01-01T00:00:00Z'", text)


def instant_text(moment: datetime) -> str:
    """A moment as documents have it.

    >>> instant_text(datetime(2026, 1, 1, tzinfo=UTC))
    '2026-01-01T00:00:00Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def begin_of(when: object, zone: ZoneInfo) -> datetime:
    """The moment that is meant: a day begins at midnight of the zone, times are local to it.

    >>> instant_text(begin_of("2026-07-01", ZoneInfo("Europe/Berlin")))
    '2026-06-30T22:00:00Z'
    """
    if isinstance(when, str):
        with suppress(ValueError):
            when = datetime.fromisoformat(when)
    if isinstance(when, date) and not isinstance(when, datetime):
        when = datetime.combine(when, time())
    if not isinstance(when, datetime):
        raise _bad("a day such as 2026-01-01, or a time", when)
    try:
        return (when if when.tzinfo is not None else when.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        raise _bad("a day such as 2026-01-01, or a time", str(when)) from None


def cell(month: int, weekday: int, hour: int) -> int:
    """The place of an hour among the prices of a tariff.

    >>> cell(1, 1, 0), cell(12, 7, 23)
    (0, 2015)
    """
    return ((month - 1) * 7 + weekday - 1) * 24 + hour


def cell_words(place: int) -> str:
    """An hour as people say it.

    >>> cell_words(cell(12, 7, 22))
    'Sundays in December at 22:00'
    """
    month, rest = divmod(place, 7 * 24)
    weekday, hour = divmod(rest, 24)
    return f"{DAY_NAMES[weekday]} in {MONTH_NAMES[month]} at {hour:02}:00"


def _inclusive(
    text: object, wanted: str, number_of: Callable[[str], int | None], most: int
) -> frozenset[int]:
    found: set[int] = set()
    for part in _parts(text, wanted):
        first, _, last = part.partition("-")
        begin, end = number_of(first), number_of(last or first)
        if begin is None or end is None or part.endswith("-"):
            raise _bad(wanted, text)
        found |= _run(begin, end, 1, most)
    return frozenset(found)


def _run(begin: int, end: int, least: int, most: int) -> set[int]:
    if begin <= end:
        return set(range(begin, end + 1))
    return set(range(begin, most + 1)) | set(range(least, end + 1))


def _parts(text: object, wanted: str) -> list[str]:
    if not isinstance(text, str):
        raise _bad(wanted, text)
    return [part.strip().lower() for part in text.split(",")]


def _day(text: str) -> int | None:
    return DAYS.index(text) + 1 if text in DAYS else None


def _month(text: str) -> int | None:
    return int(text) if _is_number(text, 1, 12) else None


def _is_number(text: str, least: int, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 2 and least <= int(text) <= most


def _bad(wanted: str, found: object) -> BadTariff:
    return BadTariff(f"expected {wanted}, found {found!r}")
