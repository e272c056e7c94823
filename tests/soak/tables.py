"""Kill stream tables hundreds of times on real Spark: `python -m tests.soak.tables --rounds 300`.

Each round writes to the sources and kills one process: a worker, the process that forks workers or
the coordinator at a moment of chance, or a worker or the coordinator at a step of its work, such as
one statement of a transaction. With `--own` the coordinator starts a Spark by itself, and its JVM
is killed too. After every so many rounds everything comes to rest and is checked: contents by
DuckDB at their frontiers, one change for each refresh on record, no locks, permits, reservations
or jobs left, and no file that no snapshot names once they are swept. Small files are put together
and old ones are swept all the while.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

from penstock.tables.core.failures import FailurePolicy
from penstock.testing import seeded
from tests.integration.postgres import postgres_server
from tests.integration.spark.refresh.crash import Run
from tests.integration.spark.refresh.place import SparkPlace

RETRY = FailurePolicy(base_ms=20, cap_ms=50, deaths_max=1_000_000)
SHARED = ("worker",) * 5 + ("worker at a step",) * 4 + ("coordinator", "coordinator at a step")
OWN = ("worker", "worker", "worker", "jvm", "coordinator")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="kills in all")
    parser.add_argument("--settle", type=int, default=20, help="kills between two checks")
    parser.add_argument("--own", action="store_true", help="coordinators start Spark themselves")
    parser.add_argument("--spark", metavar="URL", help="a Spark that runs; else one is started")
    parser.add_argument("--postgres", action="store_true", help="the catalog is in PostgreSQL")
    parser.add_argument("--differential", action="store_true", help="tables follow their changes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    seed = SystemRandom().getrandbits(48) if arguments.seed is None else arguments.seed
    home = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {seed}, {home}", flush=True)
    if arguments.postgres:
        with postgres_server() as words:
            attack(arguments, seed, f"postgres:{words}", home)
    else:
        attack(arguments, seed, f"sqlite:{home}/catalog.sqlite", home)
    shutil.rmtree(home)


def attack(arguments: argparse.Namespace, seed: int, address: str, home: Path) -> None:
    began = time.monotonic()
    kills: Counter[str] = Counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))

    def is_over() -> bool:
        return time.monotonic() - began >= arguments.seconds

    with seeded(seed) as random:
        place = SparkPlace(
            address, home / "place", own=arguments.own, remote=arguments.spark, lease_ms=5_000,
            retry=RETRY,
            max_concurrent_refreshes=2, max_workers=2, sweep_every_ms=1_000, sweep_grace_ms=5_000,
        )  # fmt: skip
        run = Run(place, random, "differential" if arguments.differential else "auto")
        try:
            kills = run.kills
            while kills.total() < arguments.rounds and not is_over():
                for _ in range(arguments.settle):
                    run.attack(OWN if arguments.own else SHARED)
                    if is_over():
                        break
                run.settle()
                told = ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
                refreshes = len(place.warehouse.history(limit=1_000_000))
                took = time.monotonic() - began
                print(f"  {told}: {refreshes} refreshes checked, {took:.0f} s", flush=True)
        finally:
            run.close()
            place.close()
    print(f"nothing was lost, applied twice or left behind in {kills.total()} kills")


if __name__ == "__main__":
    main()
