"""Meters for `bench_windows`: `python -m bench.windows_load PORT SHAPE LOW HIGH PERIOD_S READINGS`.

Rates are in messages a second, each with so many readings. A device that has to wait keeps at most
`HELD_MAX` messages: a meter that cannot send reads no faster because of it. Says what was offered,
sent and acknowledged every second, and ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import Any

import uvloop
from numpy.typing import NDArray

from bench.ingest_load import METER_COUNT
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, LoadState, Target
from penstock.metering.shapes import named_shape

DEVICES = 16
HELD_MAX = 64
TELL_MS = 1_000


class Run(Fleet):
    """Devices with names of their own: an earlier run may have left messages unfinished."""

    def name(self, device: int) -> str:
        return f"run-{os.getpid()}-{device}"

    def rows(self, device: int, number: int) -> NDArray[Any]:
        """Of meters that have a tariff, however many readings a message has."""
        rows = super().rows(device, number)
        rows["meter"] %= METER_COUNT
        return rows


class Meters(LoadGenerator):
    """A load whose devices hold back what they cannot send, up to a limit."""

    def _fall_due(self, count: int) -> None:
        super()._fall_due(count)
        self._due[:] = [min(due, HELD_MAX) for due in self._due]


async def main(
    port: int, shape: str, rates: tuple[float, float], period_s: float, readings: int
) -> None:
    load = Meters(
        Target("127.0.0.1", port),
        Run(DEVICES, readings),
        named_shape(
            shape, low_per_s=rates[0], high_per_s=rates[1], period_ms=int(period_s * 1_000), seed=1
        ),
    )
    told_ms = 0

    def tell(state: LoadState) -> None:
        nonlocal told_ms
        if state.elapsed_ms >= told_ms + TELL_MS:
            told_ms = state.elapsed_ms
            print(json.dumps([told_ms, state.offered, state.sent, state.acked]), flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.end)
    await load.run(seconds=3_600, on_progress=tell)


if __name__ == "__main__":
    uvloop.run(
        main(
            int(sys.argv[1]),
            sys.argv[2],
            (float(sys.argv[3]), float(sys.argv[4])),
            float(sys.argv[5]),
            int(sys.argv[6]),
        )
    )
