"""Schedules: a duration, cron, calculated from the consumers, or on demand.

>>> parse_schedule("1h30m").text, parse_schedule("@daily").text, parse_schedule("calculated").text
('1h30m', '0 0 * * *', 'calculated')
>>> parse_schedule("10s").next_ms(5_000)
15000
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.protocol.errors import InvalidSchedule
from penstock.tables.core.cron import Cron, parse_cron

INTERVAL_MS_MAX: Final = 366 * 86_400_000
LEAF_INTERVAL_MS: Final = 1_000
"""The interval of a calculated table without consumers that have an interval."""

_UNITS_MS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_DURATION: Final = re.compile(
    r"(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?"
)


@dataclass(frozen=True, slots=True)
class Every:
    """Contents are at most this old."""

    interval_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.interval_ms <= INTERVAL_MS_MAX:
            raise InvalidSchedule(
                f"expected an interval above 0 and up to 366d, found {self.interval_ms} ms"
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
