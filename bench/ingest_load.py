"""Meters for `bench_ingest`: `python -m bench.ingest_load PORT MESSAGES PER_SECOND`.

Every reading's time is that of its sending, so that what arrives tells how long it took. A rate of
0 is as fast as the edge takes them.
"""

from __future__ import annotations

import asyncio
import sys
import time

import numpy as np
import uvloop

from penstock.ingest.device import Device
from penstock.metering.readings import READING_DTYPE, pack_rows

DEVICES = 16
READINGS = 50
METER_COUNT = 2_000


async def main(port: int, messages: int, per_second: float) -> None:
    devices = [Device("127.0.0.1", port, f"bench-{number}") for number in range(DEVICES)]
    for device in devices:
        device.start()
    share = messages // DEVICES
    rate = per_second / DEVICES
    await asyncio.gather(*(send(device, share, rate) for device in devices))
    for device in devices:
        await device.close()


async def send(device: Device, count: int, per_second: float) -> None:
    random = np.random.default_rng(int(device.name.rpartition("-")[2]))
    rows = np.zeros(READINGS, READING_DTYPE)
    rows["energy"] = random.integers(0, 10**6, READINGS)
    begun = time.monotonic()
    for number in range(count):
        if per_second:
            await asyncio.sleep(begun + number / per_second - time.monotonic())
        rows["meter"] = random.integers(0, METER_COUNT, READINGS)
        rows["time_ms"] = time.time_ns() // 1_000_000
        await device.send(pack_rows(rows))
    await device.flush()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
