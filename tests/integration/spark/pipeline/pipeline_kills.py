"""All of a pipeline under load, from devices to the lake, while its parts are killed.

Two hands kill at a time: one the edge, the other the driver or the JVM that the driver started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from penstock.client import AsyncClient, Client
from penstock.lake.catalog import Catalog, open_catalog
from penstock.metering.fleet import Fleet
from penstock.metering.load import LoadGenerator, LoadState, Target
from penstock.metering.readings import Reading
from penstock.metering.shapes import Steady
from penstock.spark.pipeline.cursors import cursor_of
from tests.integration.ingest.place import EdgeProcess
from tests.integration.lake.duck import Duck
from tests.integration.spark.pipeline.fleet import (
    BAD,
    BEGIN,
    Key,
    Prices,
    check_lake,
    fill_tariffs,
)
from tests.waiting import until

ROOT = Path(__file__).parents[4]
RAW = "ingest.raw"
WITHIN_S = 180.0
RATE_PER_S = 15
DEVICES, METERS, UNKNOWN = 8, 5, 3
BAD_EVERY = 17


class MixedFleet(Fleet):
    """A fleet that now and then sends what cannot be read; its last meters have no tariff."""

    __slots__ = ()

    def payload(self, device: int, number: int) -> bytes:
        if self.is_bad(device, number):
            return BAD[(device + number) % len(BAD)]
        return super().payload(device, number)

    def is_bad(self, device: int, number: int) -> bool:
        return (device * 7 + number + self.seed) % BAD_EVERY == 0


class DriverProcess:
    """The pipeline's driver, with a JVM of its own or a Spark that is there."""

    def __init__(self, directory: Path, lake: str, url: str, spark: str) -> None:
        self._log = directory / "driver.log"
        self._arguments = [lake, url, RAW, spark]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.spark.pipeline.driver", *self._arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
            )  # fmt: skip

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4_000:] if self._log.exists() else ""

    def check(self) -> bool:
        """Fail if it ended, which it never should."""
        assert self.process.poll() is None, f"the driver ended:\n{self.log}"
        return True

    def jvm(self) -> int | None:
        """The process of its JVM, if it has started one."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                try:
                    if Path(f"/proc/{child}/comm").read_text().strip() == "java":
                        return int(child)
                except OSError:
                    continue
        return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        """End it and its JVM, which ends when the pipe to it does."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


@dataclass(slots=True)
class Place:
    """What runs, and where one sees how far it is."""

    edge: EdgeProcess
    driver: DriverProcess
    load: LoadGenerator
    running: asyncio.Future[LoadState]
    lake: Catalog
    end_s: float

    @property
    def is_over(self) -> bool:
        """Whether there is no time for another kill."""
        return time.monotonic() > self.end_s

    @property
    def acked(self) -> int:
        return sum(device.core.acked for device in self.load.devices)

    @property
    def stored(self) -> int:
        cursor = cursor_of(self.lake, "metering")
        return 0 if cursor is None else cursor.seq

    def check(self) -> bool:
        """Fail if something ended that nobody killed."""
        assert not self.running.done(), self.running.result()
        assert self.edge.process.poll() is None, f"the edge ended:\n{self.edge.log}"
        return self.driver.check()


async def kill_pipeline(
    directory: Path,
    url: str,
    seed: int,
    *,
    edges: int,
    drivers: int,
    jvms: int,
    seconds: float = float("inf"),
    spark: str = "own",
) -> Counter[str]:
    """So many kills, or as many as the time allows; then the end of the load and a look at every
    message. What was killed. On a `spark` that is there, a URL, no JVM can be killed.
    """
    address = f"sqlite:{directory}/catalog.sqlite"
    fleet = MixedFleet(DEVICES, METERS, seed % 1_000, int(BEGIN.timestamp() * 1_000))
    known = range(1, DEVICES * METERS + 1 - UNKNOWN)
    victims = ["driver"] * drivers + ["jvm"] * jvms
    Random(f"{seed}:order").shuffle(victims)
    edge, driver = EdgeProcess(directory, url), DriverProcess(directory, address, url, spark)
    done: Counter[str] = Counter()
    with open_catalog(address, str(directory / "data")) as lake:
        fill_tariffs(url, RAW, known)
        try:
            await edge.start()
            load = LoadGenerator(Target("127.0.0.1", edge.port), fleet, Steady(RATE_PER_S))
            running = asyncio.ensure_future(load.run(seconds=1e6))
            place = Place(edge, driver, load, running, lake, time.monotonic() + seconds)
            driver.launch()
            await asyncio.gather(
                _kill_edges(place, Random(f"{seed}:edge"), edges, done),
                _kill_sparks(place, Random(f"{seed}:spark"), victims, done),
            )
            load.end()
            state = await place.running
            head = await _head(url)
            await until(lambda: driver.check() and place.stored >= head, "the rest", WITHIN_S)
        except BaseException as error:
            error.add_note(f"driver:\n{driver.log}\nedge:\n{edge.log}")
            raise
        finally:
            driver.close()
            edge.close()
        assert state.acked == state.sent > 0
        with Duck(address) as duck, Client(url) as client:
            sent, readings = _sent(fleet, state)
            meters = {str(meter) for meter in known}
            check_lake(lake, duck, sent, readings, meters, Prices(client, RAW))
    done["messages"] = state.acked
    return done


async def _kill_edges(place: Place, random: Random, kills: int, done: Counter[str]) -> None:
    for _ in range(kills):
        acked = place.acked
        await _wait(place, lambda old=acked: place.acked > old, "an ACK")
        await _pass(place, random.uniform(0.0, 4.0))
        if place.is_over:
            return
        place.edge.kill()
        place.edge.launch()
        done["edge"] += 1


async def _kill_sparks(
    place: Place, random: Random, victims: Sequence[str], done: Counter[str]
) -> None:
    for victim in victims:
        if random.random() < 0.4:  # in the middle of its work
            stored = place.stored
            await _wait(place, lambda old=stored: place.stored > old, "rows")
            await _pass(place, random.uniform(0.0, 1.5))
        else:  # while it begins
            await _pass(place, random.uniform(0.0, 8.0))
        if victim == "jvm":
            await _wait(place, place.driver.jvm, "a JVM")
        if place.is_over:
            return
        if victim == "jvm":
            pid = place.driver.jvm()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        else:
            place.driver.kill()
            place.driver.launch()
        done[victim] += 1


async def _wait(place: Place, condition: Callable[[], object], what: str) -> None:
    """Wait for something, as long as there is time for kills and nothing ends by itself."""
    await until(lambda: place.check() and (place.is_over or condition()), what, WITHIN_S)


async def _pass(place: Place, seconds: float) -> None:
    """Let a random while pass: the moment of the kill is what is drawn."""
    end_s = time.monotonic() + seconds
    await _wait(place, lambda: time.monotonic() > end_s, "a while")


async def _head(url: str) -> int:
    async with AsyncClient(url) as client:
        return (await client.get_topic(RAW)).head_seq


def _sent(fleet: MixedFleet, state: LoadState) -> tuple[dict[Key, bytes], dict[Key, list[Reading]]]:
    """Every message that devices sent, and the readings of those that can be read."""
    sent: dict[Key, bytes] = {}
    readings: dict[Key, list[Reading]] = {}
    for device, count in enumerate(state.sent_by_device):
        for number in range(count):
            key = fleet.name(device), str(number + 1)
            sent[key] = fleet.payload(device, number)
            if not fleet.is_bad(device, number):
                readings[key] = fleet.readings(device, number)
    return sent, readings
