"""Kill drivers and JVMs of a pipeline tens of times: `python -m tests.soak.pipeline --kills 30`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from random import SystemRandom

from penstock.client import Client
from penstock.testing import seeded
from tests.integration.spark_ingest.kills import kill_drivers, kill_jvms
from tests.integration.spark_topics.place import OPTIONS, the_spark, topic_server, url_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of drivers; a third of it of JVMs")
    parser.add_argument("--seed", type=int, help="to bring a run back")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else SystemRandom().getrandbits(48)
    print(f"seed {seed}")
    with seeded(seed) as random, topic_server() as server, tempfile.TemporaryDirectory() as place:
        url = url_of(server)
        with Client(url) as client:
            for name in ("drivers", "jvms"):
                client.put_topic(name)
                (Path(place) / name).mkdir()
            kill_drivers(
                Path(place) / "drivers", client, url, "drivers", the_spark().url, random,
                arguments.kills,
            )  # fmt: skip
            print(f"{arguments.kills} drivers killed, everything there once")
            kills = max(1, arguments.kills // 3)
            kill_jvms(Path(place) / "jvms", client, url, "jvms", OPTIONS, random, kills)
            print(f"{kills} JVMs killed, everything there once")


if __name__ == "__main__":
    main()
