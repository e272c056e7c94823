"""A coordinator in a process of its own, for tests that kill it.

A file `coordinator` beside the faults of tables, with the text `die N`, lets it die after so many
statements and commits from then on, of whatever thread of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.app.tables import Warehouse
from penstock.lake.catalog import Catalog
from penstock.tables.core.failures import FailurePolicy
from tests.integration.spark.refresh.engine import Counting, Fault
from tests.integration.spark.refresh.place import SparkPlace
from tests.integration.tables.node import children_of

FAULT = "coordinator"


def start(place: SparkPlace) -> subprocess.Popen[bytes]:
    given: dict[str, Any] = {
        **place.settings,
        "catalog": place.address,
        "data_path": place.data_path,
        "runner": place.runner,
        "runner_options": place.options,
        FAULT: str(place.faults / FAULT),
    }
    retry = given["retry"]
    given["retry"] = {"base_ms": retry.base_ms, "cap_ms": retry.cap_ms,
                      "deaths_max": retry.deaths_max}  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.spark.refresh.node", json.dumps(given)],
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


class Doom:
    """Counts the steps of a coordinator while the file is there, and kills it in the end."""

    def __init__(self, lake: Catalog, file: Path) -> None:
        self._file, self._left = file, -1
        self._lock = threading.Lock()
        self._write = lake.database.write
        lake.database.write = self.write  # type: ignore[method-assign]

    @contextmanager
    def write(self, **how: Any) -> Iterator[Any]:
        with self._write(**how) as cursor:
            yield Counting(cursor, self.step)
        self.step()

    def step(self) -> None:
        with self._lock:
            if self._left < 0:
                fault = Fault(self._file)
                self._left = int(fault.step) if fault.word == "die" else -1
            elif self._left == 0:
                Fault(self._file).die()
            else:
                self._left -= 1


def main() -> None:
    arguments = json.loads(sys.argv[1])
    arguments["retry"] = FailurePolicy(**arguments["retry"])
    file = Path(arguments.pop(FAULT))
    with Warehouse.open(**arguments) as warehouse:
        Doom(warehouse.lake, file)
        loop = warehouse.coordinator(say=lambda line: print(line, file=sys.stderr))
        signal.signal(signal.SIGTERM, lambda *_: loop.stop())
        loop.run()


if __name__ == "__main__":
    main()
