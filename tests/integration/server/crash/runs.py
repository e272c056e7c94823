"""A server that is killed again and again under a mixed load, and looked at after each start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.conformance.servers import START_S, ServerProcess
from tests.conformance.wire import Api, until
from tests.integration.server.crash.churn import Churn
from tests.integration.server.crash.crowd import Member, Shared
from tests.integration.server.crash.fading import Fading
from tests.integration.server.crash.jobs import Feeder, Jobs, Worker
from tests.integration.server.crash.names import placed
from tests.integration.server.crash.routed import Routed
from tests.integration.server.crash.solo import Solo
from tests.integration.server.crash.wire import Gone, Wire

SMALL_FILES = {
    "LOG_SEGMENT_BYTES": 65_536,
    "COMPACT_LOG_BYTES": 20_000,
    "SEGMENT_MAX_EVENTS": 40,
    "SEGMENT_MAX_AGE_MS": 500,
    "HOT_RETAIN_SEGMENTS": 1,
}
"""Settings with which snapshots are made and records become cold all the time."""

START_TRIES = 4
STIR_S = 120.0
_COMPLAINT = re.compile(r"Traceback|ERROR|CRITICAL")


@dataclass
class Cast:
    """Everyone who works on the server, and everything that is checked."""

    actors: Sequence[Any]
    checked: Sequence[Any]

    @classmethod
    def of(cls, random: Random) -> Cast:
        def seed() -> int:
            return random.getrandbits(48)

        solos = [Solo(f"solo{number}", seed()) for number in range(2)]
        shared = [Shared("shared-fsync", "fsync"), Shared("shared-disk", "disk")]
        members = [Member(f"member{number}", seed(), shared) for number in range(3)]
        queues = [
            Jobs(placed("queue-d", 0), placed("dead-d", 1), durable=True, near=False),
            Jobs(placed("queue-r", 1), placed("dead-r", 1), durable=False, near=True),
        ]
        workers = [Worker(f"worker{number}", seed(), queues) for number in range(2)]
        others = [Routed("routed", seed()), Fading("fading", seed()), Churn("churn", seed())]
        actors = [*solos, *members, Feeder("feeder", seed(), queues), *workers, *others]
        return cls(actors, [*solos, *shared, *queues, *others])

    @property
    def answered(self) -> int:
        return sum(actor.answered for actor in self.actors)


@dataclass
class Run:
    """One server's many lives."""

    server: ServerProcess
    random: Random
    life_ms: tuple[int, int] = (20, 300)
    stirred: Callable[[], object] | None = None
    cast: Cast = field(init=False)
    kills: int = 0
    lives: int = 0

    def __post_init__(self) -> None:
        self.cast = Cast.of(self.random)

    def go(self, kills: int) -> None:
        """Live and die so many times, and look at everything in the end."""
        try:
            while self.kills < kills:
                self._begin()
                asyncio.run(self._live())
                self._complain()
            self._start()
            asyncio.run(self._finish())
            self._complain()
        finally:
            self.server.discard()

    def _begin(self) -> None:
        """Start the server; now and then kill it on its way, some time after it began."""
        while self.random.random() < 0.15:
            self.server.launch()
            try:
                self.server.wait(self.random.uniform(0.1, 1.2))
            except Exception:
                self.server.kill()
            self.kills += 1
        self._start()

    def _start(self) -> None:
        """Start the server, on a machine that may be busy; one that hangs is made to say where."""
        self.server.launch()
        for patience in reversed(range(START_TRIES)):
            try:
                api = Api(self.server.listening())
                until(lambda api=api: api.get("/readyz").status == 200, "ready", START_S)
                return
            except AssertionError as error:
                if self.server.process.poll() is None:
                    if patience:
                        continue
                    self.server.terminate(signal.SIGABRT)
                    self.server.wait()
                error.add_note(self.server.log)
                raise

    async def _live(self) -> None:
        host, port = self.server.address
        before = self.stirred and self.stirred()
        wires = [Wire(host, port) for _ in (*self.cast.actors, None)]
        try:
            for each in self.cast.checked:
                await each.check(wires[-1])
            load = [
                asyncio.ensure_future(_act_on(actor, wire))
                for actor, wire in zip(self.cast.actors, wires, strict=False)
            ]
            if self.lives % 2 == 0:
                await self._stir(before, load)
            self.lives += 1
            span_s = self.random.uniform(*self.life_ms) / 1e3
            await asyncio.wait(load, timeout=span_s, return_when=asyncio.FIRST_EXCEPTION)
            await self._end()
            await asyncio.gather(*load)
        finally:
            for wire in wires:
                wire.close()

    async def _stir(self, before: object, load: Sequence[asyncio.Future[None]]) -> None:
        """Wait until that what the run is about has moved, however busy the machine is."""
        deadline_s = time.monotonic() + STIR_S
        while self.stirred is not None and self.stirred() == before:
            assert time.monotonic() < deadline_s, f"nothing moved in {STIR_S} s: {before}"
            done, _ = await asyncio.wait(load, timeout=0.02, return_when=asyncio.FIRST_EXCEPTION)
            if done:
                return

    async def _end(self) -> None:
        """Mostly a kill; sometimes the server is asked to end first, and killed meanwhile."""
        if self.random.random() < 0.15:
            self.server.terminate(signal.SIGTERM)
            await asyncio.sleep(self.random.uniform(0, 0.15))
        self.server.kill()
        self.kills += 1

    async def _finish(self) -> None:
        wire = Wire(*self.server.address)
        try:
            for each in self.cast.checked:
                await each.finish(wire)
        finally:
            wire.close()

    def _complain(self) -> None:
        """The server's log has no word of anything that failed."""
        log = self.server.log
        found = _COMPLAINT.search(log)
        assert found is None, log[max(0, found.start() - 500) :]


async def _act_on(actor: Any, wire: Wire) -> None:
    """Go on until the server is gone."""
    try:
        while True:
            await actor.act(wire)
    except Gone:
        return


def crash(directory: Path, random: Random, kills: int, **options: Any) -> Run:
    """Kill a server so many times; `life_ms` says how long it may live, the rest are settings.

    `stirred` looks at what the run is about: every second life begins its span only when that has
    changed, so that servers are killed around it.
    """
    life_ms = options.pop("life_ms", (20, 300))
    stirred = options.pop("stirred", None)
    os.environ["PYTHONFAULTHANDLER"] = "1"
    try:
        run = Run(ServerProcess(directory, **options), random, life_ms, stirred)
    finally:
        del os.environ["PYTHONFAULTHANDLER"]
    run.go(kills)
    return run


def snapshots_in(directory: Path) -> Callable[[], frozenset[Path]]:
    """A look at the snapshots that a server in this directory has made."""
    snapshots = directory / "data" / "snapshots"

    def look() -> frozenset[Path]:
        return frozenset(snapshots.iterdir()) if snapshots.is_dir() else frozenset()

    return look
