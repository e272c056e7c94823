"""Meters for `bench_ingest`: `python -m bench.ingest_load PORT SECONDS PER_SECOND FILE`.

Sends so many messages a second for so long, and writes when each was acknowledged, by device and
message id, to a file. A rate of 0 is as fast as the edge takes them.
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


class Meters:
    """One device, and when its messages were acknowledged."""

    def __init__(self, port: int, number: int, run: str) -> None:
        self.device = Device("127.0.0.1", port, f"bench-{run}-{number}")
        self.acked: dict[int, float] = {}
        self.device.on_acked = self._acked
        self._random = np.random.default_rng(number)

    def _acked(self, message_ids: tuple[int, ...]) -> None:
        now = time.time()
        for message_id in message_ids:
            self.acked[message_id] = now

    async def send(self, seconds: float, per_second: float) -> None:
        random = self._random
        rows = np.zeros(READINGS, READING_DTYPE)
        rows["energy"] = random.integers(0, 10**6, READINGS)
        begun = time.monotonic()
        number = 0
        while time.monotonic() < begun + seconds:
            if per_second:
                await asyncio.sleep(begun + number / per_second - time.monotonic())
            rows["meter"] = random.integers(0, METER_COUNT, READINGS)
            rows["time_ms"] = time.time_ns() // 1_000_000
            await self.device.send(pack_rows(rows))
            number += 1
        await self.device.flush()


async def main(port: int, seconds: float, per_second: float, path: str) -> None:
    run = path.rpartition("/")[2].partition(".")[0]
    meters = [Meters(port, number, run) for number in range(DEVICES)]
    for each in meters:
        each.device.start()
    await asyncio.gather(*(each.send(seconds, per_second / DEVICES) for each in meters))
    for each in meters:
        await each.device.close()
    found = [(each.device.name, number, at) for each in meters for number, at in each.acked.items()]
    names, numbers, times = zip(*found, strict=True)
    np.savez(path, device=np.array(names), message=np.array(numbers), acked=np.array(times))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
