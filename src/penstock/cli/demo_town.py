"""The people of the demonstration: meters that write, a watcher, a router, a worker, a crash."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from penstock.cli.demo_ledger import Ledger
from penstock.cli.demo_server import DemoServer
from penstock.client import (
    AsyncClient,
    AsyncJob,
    ClientError,
    ClientSettings,
    LeaseLost,
    Record,
    Records,
    RetryPolicy,
)
from penstock.flow.backoff import Backoff
from penstock.flow.histogram import LatencyHistogram

METERS: Final = 4
READINGS: Final = "readings"
ALARMS: Final = "alarms"
HIGH: Final = "high"
HIGH_EVERY: Final = 50
CALM_S: Final = 0.04
BURST_RECORDS: Final = 20
JOBS_AT_ONCE: Final = 16
SETTLE_S: Final = 15.0
LOAD_FROM, CRASH_AT, LOAD_UNTIL = 0.3, 0.55, 0.75
"""When the load begins, the server is killed, the load ends: shares of the time given."""

Tell = Callable[["Second | str"], None]


class Second(NamedTuple):
    """What happened in one second."""

    at_s: float
    written: float
    delivered: float
    done: float
    p50_ms: float
    p99_ms: float
    scheduler: dict[str, Any] | None
    """What the server's scheduler says of itself; None while there is no server."""


class Town:
    """Runs for some seconds against a server, and keeps what was promised and what arrived."""

    def __init__(self, server: DemoServer, seconds: float) -> None:
        self.server = server
        self.seconds = seconds
        self.ledger = Ledger()
        self.history: deque[Second] = deque(maxlen=600)
        self.event = "a server is started"
        self.delays = LatencyHistogram()
        """From just before a write was sent until the watcher had it, in nanoseconds."""
        self.down_ms: float | None = None
        self._recent = LatencyHistogram()
        self._loaded = False
        self._ended = False

    async def run(self, tell: Tell) -> None:
        """Everything, from the start of the server to its end."""
        try:
            self._say(tell, self.event)
            await self.server.start()
            async with AsyncClient(_settings(self.server.url)) as client:
                await self._prepare(client)
                await self._live(client, tell)
            await self.server.end()
        except ExceptionGroup as group:  # one of the people failed, and took the others along
            raise group.exceptions[0] from group
        finally:
            self.server.end_now()

    async def _prepare(self, client: AsyncClient) -> None:
        await client.put_topic(READINGS, durability="fsync")
        await client.put_topic(ALARMS, type="queue", durability="fsync")
        await client.put_router("high-readings", READINGS, ALARMS, filter=HIGH)

    async def _live(self, client: AsyncClient, tell: Tell) -> None:
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._watch(client)),
                tasks.create_task(self._work(client)),
                tasks.create_task(self._sample(client, tell, begun_s)),
            ]
            meters = [
                tasks.create_task(self._meter(client, f"meter-{number}"))
                for number in range(1, METERS + 1)
            ]
            await self._script(tell, begun_s)
            self._ended = True
            for meter in meters:
                await meter
            await self._settle()
            for helper in helpers:
                helper.cancel()

    async def _script(self, tell: Tell, begun_s: float) -> None:
        """What changes, and when."""
        self._say(tell, f"{METERS} meters write; each answer comes once the reading is on the disk")
        await _until(begun_s + self.seconds * LOAD_FROM)
        self._loaded = True
        self._say(tell, f"load: every meter sends batches of {BURST_RECORDS}, one after another")
        await _until(begun_s + self.seconds * CRASH_AT)
        self._say(tell, "the server is killed with SIGKILL in the middle of it, and started again")
        died_s = time.monotonic()
        await self.server.kill()
        await self.server.start()
        self.down_ms = (time.monotonic() - died_s) * 1_000
        self._say(tell, "it listens again: writers, watcher and worker go on where they were")
        await _until(begun_s + self.seconds * LOAD_UNTIL)
        self._loaded = False
        self._say(tell, "the load is over")
        await _until(begun_s + self.seconds)

    async def _settle(self) -> None:
        """Wait until everything that was acknowledged has arrived, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while self.ledger.missing or self.ledger.jobs_missing:
                    await asyncio.sleep(0.01)
        self.ledger.closed = True
        self.delays.add(self._recent)
        self._recent.clear()

    async def _meter(self, client: AsyncClient, meter: str) -> None:
        number = 0
        while not self._ended:
            count = BURST_RECORDS if self._loaded else 1
            numbers = range(number + 1, number + count + 1)
            await client.write(READINGS, [_reading(meter, n) for n in numbers], return_seqs=False)
            jobs = sum(n % HIGH_EVERY == 0 for n in numbers)
            self.ledger.acknowledged(meter, count, jobs)
            number += count
            if not self._loaded:
                await asyncio.sleep(CALM_S)

    async def _watch(self, client: AsyncClient) -> None:
        async with client.watch(READINGS) as watch:
            async for event in watch:
                if not isinstance(event, Records):
                    continue
                now_ns = time.monotonic_ns()
                for record in event.records:
                    reading = record.data
                    self.ledger.delivered(reading["meter"], reading["n"])
                    self._recent.record(now_ns - reading["sent_ns"])

    async def _work(self, client: AsyncClient) -> None:
        work = client.work(ALARMS, node="worker-1", count=JOBS_AT_ONCE)
        async with work, asyncio.TaskGroup() as doing:
            async for job in work:
                doing.create_task(self._do(job))

    async def _do(self, job: AsyncJob) -> None:
        with suppress(LeaseLost):  # by the kill: the job comes again, and is counted as such
            async with job:
                self.ledger.done(job.data["meter"], job.data["n"])

    async def _sample(self, client: AsyncClient, tell: Tell, begun_s: float) -> None:
        before = self._totals()
        at_s = begun_s
        quick = client.within(0.5)
        while True:
            await _until(at_s + 1.0)
            now_s = time.monotonic()
            try:
                scheduler = await quick.scheduler()
            except ClientError:
                scheduler = None
            totals = self._totals()
            rates = [(b - a) / (now_s - at_s) for a, b in zip(before, totals, strict=True)]
            p50_ns, p99_ns = self._recent.quantiles((0.5, 0.99))
            self.delays.add(self._recent)
            self._recent.clear()
            written, delivered, done = rates
            second = Second(
                now_s - begun_s, written, delivered, done, p50_ns / 1e6, p99_ns / 1e6, scheduler
            )
            self.history.append(second)
            tell(second)
            before, at_s = totals, now_s

    def _totals(self) -> tuple[int, int, int]:
        ledger = self.ledger
        return ledger.acked.total(), ledger.seen.total(), len(ledger.jobs_done)

    def _say(self, tell: Tell, event: str) -> None:
        self.event = event
        tell(event)


def _settings(url: str) -> ClientSettings:
    """Who waits for a crash to pass looks often, so that the demonstration goes on soon."""
    return ClientSettings(
        url,
        retry=RetryPolicy(cap_ms=200),
        reconnect=Backoff(base_ms=50, cap_ms=200, jitter=0.5, window_ms=60_000),
    )


def _reading(meter: str, number: int) -> Record:
    reading = {"meter": meter, "n": number, "kwh": number % 7 / 2, "sent_ns": time.monotonic_ns()}
    return Record(reading, tag=HIGH if number % HIGH_EVERY == 0 else None)


async def _until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
