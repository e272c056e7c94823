"""Kill a server hundreds of times under a mixed load: `python -m tests.soak.crash --kills 500`.

Every round has a seed and a directory of its own, and a mode: the store of segments, the same with
files so small that snapshots are made and records become cold all the time, or SQLite.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from random import SystemRandom
from typing import Any

from penstock.testing import seeded
from tests.integration.server.crash.runs import SMALL_FILES, crash, snapshots_in

MODES: dict[str, dict[str, Any]] = {
    "segment": {},
    "small": {"life_ms": (0, 2_500), **SMALL_FILES},
    "sqlite": {"STORE": "sqlite"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="in all rounds together")
    parser.add_argument("--round", type=int, default=50, help="kills of one directory")
    parser.add_argument("--mode", choices=MODES, help="one mode only; else they take turns")
    parser.add_argument("--seed", type=int, help="of the first round")
    arguments = parser.parse_args()
    modes = [arguments.mode] if arguments.mode else list(MODES)
    kills = answered = rounds = 0
    began_s = time.monotonic()
    while kills < arguments.kills:
        mode = modes[rounds % len(modes)]
        seed = SystemRandom().getrandbits(48)
        if rounds == 0 and arguments.seed is not None:
            seed = arguments.seed
        directory = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
        print(f"round {rounds}: mode {mode}, seed {seed}, {directory}", flush=True)
        with seeded(seed) as random:
            stirred = snapshots_in(directory) if mode == "small" else None
            run = crash(directory, random, arguments.round, stirred=stirred, **MODES[mode])
        shutil.rmtree(directory)
        kills, answered, rounds = kills + run.kills, answered + run.cast.answered, rounds + 1
        print(f"  {kills} kills, {answered} answers checked, {time.monotonic() - began_s:.0f} s")
    print(f"nothing that was answered was lost in {kills} kills")


if __name__ == "__main__":
    main()
