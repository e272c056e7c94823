"""Kills at random moments, and what must be true afterwards. For tests and for long runs."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import suppress
from random import Random

from penstock.kernel.errors import Busy, Conflict
from tests.integration.tables import test_crash as model
from tests.integration.tables.node import kill
from tests.integration.tables_spark.node import below, is_gone, jvms_of, start, workers_of
from tests.integration.tables_spark.place import SparkPlace


class Run:
    """One warehouse under attack; `kills` says how often what was killed."""

    def __init__(self, place: SparkPlace, random: Random) -> None:
        self.place, self._random = place, random
        self.kills: Counter[str] = Counter()
        model.build(place)
        self._node = start(place)
        self._wait_for_work()

    def attack(self, victims: tuple[str, ...]) -> None:
        """Write, wait by chance, and kill one of the processes.

        Every other time something is refreshed first: on a busy machine nothing ever would be.
        """
        random = self._random
        if random.random() < 0.5:
            before = self._refreshes()
            self.place.write(random.choice(("raw_a", "raw_b")), [random.randrange(1_000)])
            self.place.until(lambda: self._refreshes() > before, "a refresh")
        for _ in range(random.randint(1, 3)):
            self.place.write(random.choice(("raw_a", "raw_b")), [random.randrange(1_000)])
            time.sleep(random.random() * 0.4)  # chance, not waiting: the kill comes at any step
        victim = random.choice(victims)
        if victim == "coordinator":
            self._kill_coordinator()
        else:
            pids = jvms_of(self._node.pid) if victim == "jvm" else workers_of(self._node.pid)
            if not pids:
                return
            kill(random.choice(pids))
            if victim == "jvm":
                self._wait_for_work()
        self.kills[victim] += 1

    def settle(self) -> None:
        """Everything comes to rest, and is as it must be."""
        place = self.place
        for table in model.TABLES:
            with suppress(Busy, Conflict):
                place.warehouse.resume(table)
        place.until(place.fresh, "all tables to be fresh")
        place.until(lambda: not place.warehouse.jobs(live_only=True), "jobs to end")
        model.check(place)

    def close(self) -> None:
        """Kill the coordinator once more: whatever it started goes with it."""
        self._end()

    def _refreshes(self) -> int:
        sql = "SELECT count(*) FROM penstock_refresh_history WHERE outcome = 'succeeded'"
        return int(self.place.lake.query(sql)[0][0])

    def _kill_coordinator(self) -> None:
        self._end()
        self._node = start(self.place)
        self._wait_for_work()

    def _end(self) -> None:
        left = below(self._node.pid)
        kill(self._node.pid)
        self._node.wait()
        self.place.until(lambda: all(is_gone(pid) for pid in left), "nobody to be left behind")

    def _wait_for_work(self) -> None:
        """Until somebody could be killed at work."""
        node: subprocess.Popen[bytes] = self._node
        self.place.until(
            lambda: len(workers_of(node.pid)) > 1 or node.poll() is not None, "workers"
        )
