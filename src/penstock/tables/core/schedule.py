"""Schedules: a duration, cron, calculated from the consumers, or on demand.

>>> parse_schedule("1h30m").text, parse_schedule("@daily").text, parse_schedule("calculated").text
('1h30m', '0 0 * * *', 'calculated')
>>> parse_schedule("10s").next_ms(5_000)
15000

Cron expressions are in UTC and have five fields, six with leading seconds, or are an `@` word. The
usual rules: if both the day of the month and the day of the week are restricted, either matches; 0
and 7 are Sunday; `*/15`, `8-18/2`, `1,15` and names of months and days are accepted.

>>> parse_cron("30 6 * * mon-fri").next_ms(0)        # Thursday 1 January 1970, 06:30
23400000
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from dataclasses import dataclass
from datetime import date
from typing import Final

from penstock.protocol.errors import InvalidSchedule

DAY_S: Final = 86_400
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_MONTHS_AHEAD_MAX: Final = 12 * 9
"""29 February may be eight years away, around a century year without one; nothing is rarer."""

_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_DAYS: Final = {
    name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
}
_ITEM: Final = re.compile(r"(?:(\*)|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]+))?")
INTERVAL_MS_MAX: Final = 366 * 86_400_000
LEAF_INTERVAL_MS: Final = 1_000
"""The interval of a calculated table without consumers that have an interval."""
_UNITS_MS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_DURATION: Final = re.compile(
    r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?"
)


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of an expression: its name, its range, and the names it accepts."""

    title: str
    least: int
    most: int
    names: dict[str, int]


_SECOND: Final = _Field("second", 0, 59, {})
_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of the month", 1, 31, {}),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """Fire times, at whole seconds in UTC. Made by `parse_cron`."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def next_ms(self, after_ms: int) -> int:
        """The first fire strictly after a given time."""
        found = self._search(after_ms // 1_000 + 1)
        if found is None:  # rejected by parse_cron
            raise InvalidSchedule(f"{self.text!r} never fires: there is no such date")
        return found * 1_000

    def fires(self) -> bool:
        """Whether it ever fires: 30 February never does."""
        return self._search(0) is not None

    def _search(self, from_s: int) -> int | None:
        day, of_day_s = from_s // DAY_S + _EPOCH_DAY, from_s % DAY_S
        start = date.fromordinal(day)
        for offset in range(_MONTHS_AHEAD_MAX):
            years, month = divmod(start.month - 1 + offset, 12)
            if month + 1 not in self.months:
                continue
            year = start.year + years
            first = start.day if offset == 0 else 1
            for number in range(first, monthrange(year, month + 1)[1] + 1):
                today = date(year, month + 1, number)
                if not self._on(today):
                    continue
                at_s = self._time(of_day_s if today == start else 0)
                if at_s is not None:
                    return (today.toordinal() - _EPOCH_DAY) * DAY_S + at_s
        return None

    def _on(self, today: date) -> bool:
        in_month = today.day in self.days
        in_week = today.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return in_month and in_week
        return in_month or in_week

    def _time(self, from_s: int) -> int | None:
        """The first fire of a day at or after a given second of the day."""
        hour, minute, second = from_s // 3600, from_s // 60 % 60, from_s % 60
        for at_hour in self.hours[bisect_left(self.hours, hour) :]:
            if at_hour > hour:
                return at_hour * 3600 + self.minutes[0] * 60 + self.seconds[0]
            for at_minute in self.minutes[bisect_left(self.minutes, minute) :]:
                if at_minute > minute:
                    return at_hour * 3600 + at_minute * 60 + self.seconds[0]
                place = bisect_left(self.seconds, second)
                if place < len(self.seconds):
                    return at_hour * 3600 + at_minute * 60 + self.seconds[place]
        return None


def parse_cron(text: str) -> Cron:
    """Parse an expression; `InvalidSchedule` names the field and its allowed values."""
    plain = " ".join(text.lower().split())
    if plain.startswith("@") and plain not in _WORDS:
        raise InvalidSchedule(f"{text!r} is not a schedule: use one of {', '.join(_WORDS)}")
    plain = _WORDS.get(plain, plain)
    places = plain.split(" ")
    if len(places) not in (5, 6):
        raise InvalidSchedule(f"a cron expression has 5 or 6 fields, not {len(places)}: {text!r}")
    second = "0" if len(places) == 5 else places[0]
    values = [_values(*pair) for pair in zip(_FIELDS, places[-5:], strict=True)]
    cron = Cron(
        text=plain,
        seconds=tuple(sorted(_values(_SECOND, second))),
        minutes=tuple(sorted(values[0])),
        hours=tuple(sorted(values[1])),
        days=frozenset(values[2]),
        months=frozenset(values[3]),
        weekdays=frozenset(value % 7 for value in values[4]),
        any_day=places[-3].startswith("*"),
        any_weekday=places[-1].startswith("*"),
    )
    if not cron.fires():
        raise InvalidSchedule(f"{text!r} never fires: there is no such date")
    return cron


def _values(field: _Field, text: str) -> set[int]:
    values: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _wrong(field, item)
        star, first, last, step = match.groups()
        low = field.least if star else _number(field, first, item)
        if star:
            high = 6 if field.most == 7 else field.most
        elif last is not None:
            high = _number(field, last, item)
        else:
            high = field.most if step else low
        if high < low or step == "0" or (step and int(step) > field.most):
            raise _wrong(field, item)
        values.update(range(low, high + 1, int(step or 1)))
    return values


def _number(field: _Field, text: str, item: str) -> int:
    value = field.names[text] if text in field.names else int(text) if text.isdecimal() else -1
    if not field.least <= value <= field.most:
        raise _wrong(field, item)
    return value


def _wrong(field: _Field, item: str) -> InvalidSchedule:
    return InvalidSchedule(
        f"expected a {field.title} from {field.least} to {field.most} "
        f"(also lists, ranges and steps such as 1,2 1-5 */2), found {item!r}"
    )


@dataclass(frozen=True, slots=True)
class Every:
    """Contents are at most this old."""

    interval_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.interval_ms <= INTERVAL_MS_MAX:
            raise InvalidSchedule(
                f"an interval must be above 0 and at most 366d, not {self.interval_ms} ms"
            )

    @property
    def text(self) -> str:
        """In the format that people write: largest units first."""
        parts, left_ms = [], self.interval_ms
        for unit, size_ms in (*_UNITS_MS.items(), ("ms", 1)):
            count, left_ms = divmod(left_ms, size_ms)
            parts += [f"{count}{unit}"] if count else []
        return "".join(parts)

    def next_ms(self, after_ms: int) -> int:
        """When contents that were fresh at a given time become stale."""
        return after_ms + self.interval_ms


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Contents are refreshed when a cron expression fires."""

    cron: Cron

    @property
    def text(self) -> str:
        """The expression, with `@` words expanded."""
        return self.cron.text

    def next_ms(self, after_ms: int) -> int:
        """The first fire after a given time."""
        return self.cron.next_ms(after_ms)


@dataclass(frozen=True, slots=True)
class Calculated:
    """As often as the most demanding consumer needs it."""

    text: str = "calculated"


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Only on request."""

    text: str = "on demand"


CALCULATED: Final = Calculated()
Schedule = Every | AtTimes | Calculated | OnDemand
Timed = Every | AtTimes


def parse_schedule(text: str) -> Schedule:
    """Parse a schedule, or raise `InvalidSchedule` with the alternatives."""
    plain = " ".join(text.lower().split())
    if plain == "calculated":
        return Calculated()
    if plain in ("on demand", "on-demand", "on_demand", "manual"):
        return OnDemand()
    if plain.startswith("@") or " " in plain:
        return AtTimes(parse_cron(plain))
    return Every(parse_duration_ms(plain))


def parse_duration_ms(text: str) -> int:
    """Parse `10s`, `1h30m`, `250ms`: integers with units, largest first."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise InvalidSchedule(
            "expected a duration such as '10s' or '1h30m', a cron expression of 5 or 6 fields, "
            f"'calculated' or 'on demand', found {text!r}"
        )
    sizes_ms = (*_UNITS_MS.values(), 1)
    return sum(int(count) * ms for count, ms in zip(match.groups("0"), sizes_ms, strict=True))
