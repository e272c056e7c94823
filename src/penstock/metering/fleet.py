"""A made-up fleet of meters: which readings each device sends, from a seed and nothing else.

>>> fleet = Fleet(devices=2, meters=3, seed=7)
>>> fleet.payload(1, 0) == Fleet(devices=2, meters=3, seed=7).payload(1, 0)
True
>>> fleet.readings(1, 4)[0].meter, fleet.readings(1, 4)[0].time_ms - fleet.start_ms
('4', 3600000)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.metering.readings import READING_DTYPE, Reading, decode, pack_rows

QUARTER_MS: Final = 900_000
DAY_QUARTERS: Final = 96
_MIX_METER, _MIX_NUMBER, _MIX_SEED = 2_654_435_761, 2_246_822_519, 3_266_489_917


@dataclass(frozen=True, slots=True)
class Fleet:
    """Devices with as many meters each; a message has one reading of each meter.

    Message `number` of a device is that of quarter hour `number` since the start. Meters are
    numbered from 1 on, device after device.
    """

    devices: int
    meters: int = 50
    seed: int = 0
    start_ms: int = 1_767_225_600_000
    scale: int = 3

    def name(self, device: int) -> str:
        """What a device is called."""
        return f"meters-{device:05d}"

    def payload(self, device: int, number: int) -> bytes:
        """A message in the packed form."""
        return pack_rows(self.rows(device, number), scale=self.scale)

    def readings(self, device: int, number: int) -> list[Reading]:
        """The readings of a message."""
        return decode(self.payload(device, number))

    def rows(self, device: int, number: int) -> NDArray[Any]:
        """The readings of a message as columns: what was used in its quarter hour."""
        rows = np.zeros(self.meters, READING_DTYPE)
        meters = np.arange(self.meters, dtype=np.uint64) + np.uint64(device * self.meters + 1)
        salt = (number * _MIX_NUMBER + self.seed * _MIX_SEED) % 2**63
        drawn = (meters * np.uint64(_MIX_METER) ^ np.uint64(salt)) >> np.uint64(13)
        rows["meter"] = meters
        rows["time_ms"] = self.start_ms + number * QUARTER_MS
        rows["energy"] = 5_000 + drawn.astype(np.int64) % 1_000 * _day_factor(number)
        rows["quality"] = (drawn >> np.uint64(20)) % np.uint64(200) == 0
        return rows


def _day_factor(number: int) -> int:
    """How much is used in a quarter hour of the day: little at night, most in the evening."""
    hour = number % DAY_QUARTERS / 4
    return 20 if hour < 6 else 80 if hour < 10 else 50 if hour < 17 else 120 if hour < 22 else 40
