"""A coordinator with a Spark of its own, in a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from penstock.tables.retry import RetryPolicy
from penstock.tables.shell import Warehouse
from tests.integration.tables.node import children_of
from tests.integration.tables_spark.place import SparkPlace


def start(place: SparkPlace) -> subprocess.Popen[bytes]:
    given: dict[str, Any] = {
        **place.settings,
        "catalog": place.address,
        "data_path": place.data_path,
        "runner": place.runner,
        "runner_options": place.options,
    }
    retry = given["retry"]
    given["retry"] = {"base_ms": retry.base_ms, "cap_ms": retry.cap_ms,
                      "deaths_max": retry.deaths_max}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.tables_spark.node", json.dumps(given)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def below(pid: int) -> list[int]:
    """All processes that a process started, and those that they did."""
    return [found for child in children_of(pid) for found in (child, *below(child))]


def jvms_of(pid: int) -> list[int]:
    return [child for child in children_of(pid) if _command(child).startswith("java")]


def workers_of(pid: int) -> list[int]:
    """The workers, and the process that forks them."""
    jvms = jvms_of(pid)
    return [found for found in below(pid) if found not in jvms]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def main() -> None:
    arguments = json.loads(sys.argv[1])
    arguments["retry"] = RetryPolicy(**arguments["retry"])
    with Warehouse.open(**arguments) as warehouse:
        loop = warehouse.coordinator(say=lambda line: print(line, file=sys.stderr))
        signal.signal(signal.SIGTERM, lambda *_: loop.stop())
        loop.run()


if __name__ == "__main__":
    main()
