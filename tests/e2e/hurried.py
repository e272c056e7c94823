"""A server for which a minute passes in a second: `python -m tests.e2e.hurried DIRECTORY SPEED`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from penstock.app.server import Server
from penstock.config import Settings
from penstock.server.live.hub import PEEK_S, TICK_S, Hub
from penstock.topics.core.batch import parse_write

TOPICS = 50
BATCH = 100


class HurriedClock:
    """The system's clock from now on, but faster."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began_ns, self._began_ms = time.monotonic_ns(), time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._began_ms + (self.monotonic_ns() - self._began_ns) // 1_000_000

    def monotonic_ms(self) -> int:
        return self.monotonic_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        passed_ns = time.monotonic_ns() - self._began_ns
        return self._began_ns + int(passed_ns * self._speed)


async def serve(directory: Path, speed: float) -> None:
    """Serve until killed; each second of its clock has a sample, a frame and new records."""
    settings = Settings(port=0, store="memory", data_dir=directory / "data", log="off")
    server = Server(settings, clock=HurriedClock(speed))
    host, port = await server.listen()
    await server.open()
    assert server.application is not None
    assert server.engine is not None
    context = server.application.context
    assert context.live is not None
    context.live = Hub(context.live.twins, tick_s=TICK_S / speed, peek_s=PEEK_S / speed)
    context.sampler.stop()
    (directory / "url").write_text(f"http://{host}:{port}")
    for number in range(sys.maxsize):
        records = [{"data": {"n": number, "at": each}} for each in range(BATCH)]
        config = {"durability": "memory", "cap_records": 10 * BATCH}
        # A pause of the machine is a minute's wait for its clock: no reason to refuse its records.
        write = {"records": records, "config": config, "disable_backpressure": True}
        body = json.dumps(write).encode()
        await server.engine.append("meters", parse_write(body))
        await server.engine.append(f"t{number % TOPICS}", parse_write(body))
        context.sampler.sample(0.0)
        await asyncio.sleep(1 / speed)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2])))
