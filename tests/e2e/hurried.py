"""A server for which a minute passes in a second: `python -m tests.e2e.hurried DIRECTORY SPEED`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from penstock.app.server import Server
from penstock.config import Settings
from penstock.protocol.own_topics import part_topic
from penstock.protocol.part_answers import IngestFacts, PartReport, StageState
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
    queue = {"type": "queue", "max_deliveries": 1, "cap_records": 10 * BATCH, "discard": "old"}
    for number in range(sys.maxsize):
        records = [{"data": {"n": number, "at": each}} for each in range(BATCH)]
        config = {"durability": "memory", "cap_records": 10 * BATCH}
        # A pause of the machine is a minute's wait for its clock: no reason to refuse its records.
        write = {"records": records, "config": config, "disable_backpressure": True}
        body = json.dumps(write).encode()
        await server.engine.append("meters", parse_write(body))
        await server.engine.append(f"t{number % TOPICS}", parse_write(body))
        jobs = {"records": [{"data": number}], "config": queue, "disable_backpressure": True}
        await server.engine.append("jobs", parse_write(json.dumps(jobs).encode()))
        told = {"records": [{"data": report(number, server.clock.now_ms())}]}
        await server.engine.append(part_topic("ingest.a"), parse_write(json.dumps(told).encode()))
        context.sampler.sample(0.0)
        await asyncio.sleep(1 / speed)


def report(number: int, now_ms: int) -> Any:
    """What a pipeline says of itself; it differs each time."""
    stages = [
        StageState(
            name=name, window=64, occupied=number % 64, occupancy=0.5, rate_per_s=20_000.0 + number,
            p50_ms=2.5, p99_ms=9.5, busy=0.5, bytes=1_000_000, items_in=number, items_out=number,
        )
        for name in ("accept", "reassemble", "parse", "evaluate", "store")
    ]  # fmt: skip
    bottleneck = stages[number % len(stages)].name
    facts = IngestFacts(stages=stages, bottleneck=bottleneck, budget_bytes=10**8, drain_per_s=2e4)
    said = PartReport(
        at=now_ms, since=now_ms - 60_000, pid=1, host="a", version="0", behind=number % 100,
        facts=to_builtins(facts),
    )  # fmt: skip
    return to_builtins(said)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2])))
