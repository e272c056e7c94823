"""Kills at random moments and steps, and what must be true then. For tests and for long runs."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from contextlib import suppress
from random import Random

from penstock.kernel.errors import Busy, Conflict
from tests.integration.lake.duck import Duck
from tests.integration.spark.refresh.node import FAULT, below, is_gone, jvms_of, start, workers_of
from tests.integration.spark.refresh.place import SparkPlace
from tests.integration.tables.attacked import SOURCES, build, check, glance
from tests.integration.tables.node import kill

WHOLE = """SELECT (SELECT count(*) FROM left_side) AS left_rows,
    (SELECT count(*) FROM right_side) AS right_rows, (SELECT count(*) FROM joined) AS joined_rows,
    (SELECT max(n) FROM followed) AS followed_rows"""
READS = {"left_side": "raw_a", "joined": "raw_a", "followed": "raw_a", "plain": "raw_b",
         "spread": "raw_b"}  # fmt: skip
"""Tables in whose refresh a worker dies, and the source whose news starts it."""

SUMS = """SELECT id % 3 AS third, CAST(sum(id) AS BIGINT) AS total, count(*) AS n FROM raw_b
    GROUP BY id % 3"""
"""Its sums and counts are stored, and must survive what its rows survive."""

STAGED = (
    f"SELECT total % 2 AS odd, CAST(sum(n) AS BIGINT) AS n FROM ({SUMS}) AS x GROUP BY total % 2"
)
"""Sums of these, which are a table of their own inside the query."""

STEPS = ("start", "made", "commit", "statement", "statement", "committed")
DELTA_STEPS = ("ran", "located", "fed")
"""Steps of a differential refresh: the query ran, rows were located, the feed was written."""
STATEMENTS = 20
"""More statements than a commit of one table has, fewer than one of a group."""

COORDINATOR_STEPS = 60
"""About as many statements as a coordinator runs while something is refreshed."""


class Run:
    """One warehouse under attack; `kills` says how often what was killed, and how."""

    def __init__(self, place: SparkPlace, random: Random, mode: str = "auto") -> None:
        self.place, self._random = place, random
        self.kills: Counter[str] = Counter()
        self._steps = (*STEPS, *DELTA_STEPS) if mode == "differential" else STEPS
        build(place, mode)
        self._reads = dict(READS)
        if mode == "differential":
            place.warehouse.create("sums", SUMS, schedule="30ms", mode=mode)
            place.warehouse.create("staged", STAGED, schedule="30ms", mode=mode)
            self._reads |= {"sums": "raw_b", "staged": "raw_b"}
        if not place.own:
            # Larger than it is taken for: Spark's tasks write its files.
            create = place.warehouse.create
            query = "SELECT id, id % 3 AS third FROM raw_b"
            create("spread", query, schedule="30ms", mode="full")
        self._node = start(place)
        self._wait_for_work()
        place.until(lambda: "followed" in place.frontiers(), "the group to be there")
        self._reader = Duck(place.address)

    def attack(self, victims: tuple[str, ...]) -> None:
        """Write, and kill one of the processes at a moment or at a step of its work.

        Now and then something is refreshed first: on a busy machine nothing ever would be.
        """
        if self._random.random() < 0.15:
            before = self._refreshes()
            self._write()
            self.place.until(lambda: self._refreshes() > before, "a refresh")
        match self._random.choice(victims):
            case "worker at a step":
                self._kill_at_step()
            case "coordinator at a step":
                self._kill_coordinator_at_step()
            case victim:
                self._kill_at_moment(victim)
        glance(self.place)
        self._look()

    def settle(self) -> None:
        """Everything comes to rest, and is as it must be."""
        place = self.place
        for table in place.warehouse.tables():
            with suppress(Busy, Conflict):
                place.warehouse.resume(table.name)
        place.until(place.fresh, "all tables to be fresh")
        check(place)
        if "sums" in self._reads:
            self._check_state()

    def _check_state(self) -> None:
        """What is stored of the sums is what the rows say now."""
        ((job_id,),) = self.place.lake.query(
            "SELECT job_id FROM penstock_frontiers WHERE table_name = 'sums'"
        )
        named = self.place.lake.query(
            "SELECT value FROM penstock_warehouse WHERE name = 'state:sums'"
        )
        if named != [(str(job_id),)]:
            return  # the last refresh was a full one: the state is not used, and filled anew
        kept = self._reader.rows("SELECT k0, __n, s0, n0 FROM lake.penstock_state.sums ORDER BY k0")
        now = self._reader.rows("""SELECT id % 3 AS k0, count(*) AS __n, sum(id) AS s0,
            count(id) AS n0 FROM raw_b GROUP BY id % 3 ORDER BY k0""")
        assert [list(map(int, row.values())) for row in kept] == [
            list(map(int, row.values())) for row in now
        ]

    def close(self) -> None:
        """Kill the coordinator once more: whatever it started goes with it."""
        self._reader.close()
        self._end()

    def _look(self) -> None:
        """Whoever reads sees all of a unit's last refresh."""
        (seen,) = self._reader.rows(WHOLE)
        assert seen["left_rows"] == seen["right_rows"], seen
        assert seen["joined_rows"] == seen["followed_rows"], seen

    # moments

    def _kill_at_moment(self, victim: str) -> None:
        random = self._random
        for _ in range(random.randint(1, 3)):
            self._write()
            time.sleep(random.random() * 0.3)  # chance, not waiting: the kill comes at any step
        if victim == "coordinator":
            self._end()
            self._start_again()
            self.kills[victim] += 1
        else:
            pids = jvms_of(self._node.pid) if victim == "jvm" else workers_of(self._node.pid)
            if not pids:
                return
            victims = pids if random.random() < 0.2 else [random.choice(pids)]
            for pid in victims:
                kill(pid)
            if victim == "jvm":
                self._wait_for_work()
            self.kills[victim] += len(victims)

    # steps

    def _kill_at_step(self) -> None:
        """A worker dies at a step of a refresh, wherever in its unit's work that is."""
        place, random = self.place, self._random
        table, step = random.choice(list(self._reads)), random.choice(self._steps)
        if step == "statement":
            step = f"statement {random.randrange(STATEMENTS)}"
        place.fault(table, f"die {step}")
        place.write(self._reads[table], [random.randrange(1_000)])
        place.until(
            lambda: not (place.faults / table).exists() or place.fresh(), f"death at {step}"
        )
        if (place.faults / table).exists():  # there are not so many statements in its commit
            place.fault(table, None)
            return
        self.kills["worker at a step"] += 1

    def _kill_coordinator_at_step(self) -> None:
        left: set[int] = set(below(self._node.pid))

        def has_died() -> bool:
            left.update(below(self._node.pid))
            return self._node.poll() is not None

        self.place.fault(FAULT, f"die {self._random.randrange(COORDINATOR_STEPS)}")
        self._write()
        self.place.until(has_died, "the coordinator to die")
        assert not (self.place.faults / FAULT).exists(), "it died by itself"
        self._until_gone(left)
        self._start_again()
        self.kills["coordinator at a step"] += 1

    # processes

    def _write(self) -> None:
        self.place.write(self._random.choice(SOURCES), [self._random.randrange(1_000)])

    def _refreshes(self) -> int:
        sql = "SELECT count(*) FROM penstock_refresh_history WHERE outcome = 'succeeded'"
        return int(self.place.lake.query(sql)[0][0])

    def _start_again(self) -> None:
        """Another coordinator; the next attack finds it at work, or still at its first steps."""
        self._node = start(self.place)
        if self._random.random() < 0.7:
            self._wait_for_work()

    def _end(self) -> None:
        left = set(below(self._node.pid))
        kill(self._node.pid)
        self._node.wait()
        self._until_gone(left)

    def _until_gone(self, left: set[int]) -> None:
        self.place.until(lambda: all(is_gone(pid) for pid in left), "nobody to be left behind")

    def _wait_for_work(self) -> None:
        """Until somebody could be killed at work."""
        node: subprocess.Popen[bytes] = self._node
        self.place.until(
            lambda: len(workers_of(node.pid)) > 1 or node.poll() is not None, "workers"
        )
        assert node.poll() is None, "the coordinator ended by itself"
