"""Kill edge and topic server tens of times: `python -m tests.soak.ingest --kills 100`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from random import SystemRandom

import uvloop

from penstock.testing import seeded
from tests.conformance.servers import ServerProcess
from tests.integration.ingest.killing import kill_under_load
from tests.integration.ingest.place import lasting_port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="in all rounds together")
    parser.add_argument("--round", type=int, default=20, help="kills of one directory")
    parser.add_argument("--seed", type=int, help="of the first round")
    arguments = parser.parse_args()
    kills = messages = rounds = 0
    began_s = time.monotonic()
    while kills < arguments.kills:
        seed = SystemRandom().getrandbits(48)
        if rounds == 0 and arguments.seed is not None:
            seed = arguments.seed
        with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
            print(f"round {rounds}: seed {seed}, {name}", flush=True)
            messages += one_round(Path(name), seed, arguments.round)
        kills, rounds = kills + arguments.round, rounds + 1
        print(f"  {kills} kills, {messages} messages, {time.monotonic() - began_s:.0f} s")
    print(f"every message was there once after {kills} kills")


def one_round(directory: Path, seed: int, kills: int) -> int:
    port = lasting_port()
    server = ServerProcess(directory, PORT=port)
    server.start()
    try:
        with seeded(seed) as random:
            url = f"http://127.0.0.1:{port}"
            state = uvloop.run(kill_under_load(directory, server, url, random, kills=kills))
    finally:
        server.close()
    return state.acked


if __name__ == "__main__":
    main()
