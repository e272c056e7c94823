"""Kill edge, driver and JVM under load: `python -m tests.soak.pipeline --kills 8`.

Every round has a directory, a topic server and a lake of its own. Kills of the edge go on beside
those of the driver and of the JVM, which cost a start of Spark each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

import uvloop

from penstock.testing import seeded
from tests.conformance.servers import ServerProcess
from tests.integration.spark_ingest.pipeline_kills import kill_pipeline
from tests.integration.spark_topics.place import url_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of each, in all rounds together")
    parser.add_argument("--round", type=int, default=5, help="kills of each in one directory")
    parser.add_argument("--seed", type=int, help="of the first round")
    arguments = parser.parse_args()
    done: Counter[str] = Counter()
    began_s = time.monotonic()
    seed = arguments.seed
    while (left := arguments.kills - done["jvm"]) > 0:
        seed = SystemRandom().getrandbits(48) if seed is None else seed
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
            print(f"seed {seed}, {name}", flush=True)
            done += one_round(Path(name), seed, min(left, arguments.round))
        seed = None
        print(f"  {dict(done)}, {time.monotonic() - began_s:.0f} s", flush=True)
    print("every acknowledged message was in the lake once, and its price right")


def one_round(directory: Path, seed: int, kills: int) -> Counter[str]:
    server = ServerProcess(directory).start()
    try:
        with seeded(seed):
            work = kill_pipeline(
                directory, url_of(server), seed, edges=kills, drivers=kills, jvms=kills
            )
            return uvloop.run(work)
    finally:
        server.close()


if __name__ == "__main__":
    main()
