"""Kill edge, driver and JVM under load: `python -m tests.soak.pipeline --rounds 6`.

Every round has a directory, a topic server and a lake of its own. Kills of the edge go on beside
those of the driver and of the JVM, which cost a start of Spark each. With `--seconds` a round kills
as often as it can in that time, and then looks.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import SystemRandom

import uvloop

from penstock.testing import seeded
from tests.conformance.servers import ServerProcess
from tests.integration.spark.one import one_spark
from tests.integration.spark.pipeline.pipeline_kills import kill_pipeline
from tests.integration.spark.topics.place import url_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--edges", type=int, default=10, help="kills of the edge in a round")
    parser.add_argument("--drivers", type=int, default=5, help="kills of the driver in a round")
    parser.add_argument(
        "--jvms", type=int, default=5, help="kills of the JVM in a round; 0: drivers share one"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of kills in a round")
    parser.add_argument("--seed", type=int, help="of the first round")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its time"))
    done: Counter[str] = Counter()
    began_s = time.monotonic()
    for number in range(arguments.rounds):
        seed = SystemRandom().getrandbits(48)
        if number == 0 and arguments.seed is not None:
            seed = arguments.seed
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
            print(f"round {number}: seed {seed}, {name}", flush=True)
            done += one_round(Path(name), seed, arguments)
        print(f"  {dict(done)}, {time.monotonic() - began_s:.0f} s", flush=True)
    print("every acknowledged message was in the lake once, and its price right")


def one_round(directory: Path, seed: int, wanted: argparse.Namespace) -> Counter[str]:
    server = ServerProcess(directory).start()
    try:
        with seeded(seed):
            work = kill_pipeline(
                directory, url_of(server), seed, edges=wanted.edges, drivers=wanted.drivers,
                jvms=wanted.jvms, seconds=wanted.seconds,
                spark="own" if wanted.jvms else one_spark().url,
            )  # fmt: skip
            return uvloop.run(work)
    finally:
        server.close()


if __name__ == "__main__":
    main()
