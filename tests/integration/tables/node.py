"""A coordinator in a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.app.tables import Warehouse
from penstock.tables.core.failures import FailurePolicy
from tests.integration.tables.place import ENGINE, Place


def start(place: Place, **settings: Any) -> subprocess.Popen[bytes]:
    given = {**place.settings, **settings}
    given["retry"] = {"base_ms": given["retry"].base_ms, "cap_ms": given["retry"].cap_ms,
                      "deaths_max": given["retry"].deaths_max}  # fmt: skip
    arguments = {
        "catalog": place.address,
        "data_path": place.data_path,
        "runner_options": place.options,
        **given,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.tables.node", json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def children_of(pid: int) -> list[int]:
    """The processes that a process started, by whichever of its threads."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(word) for word in file.read_text().split()]
    return found


def workers_of(pid: int) -> list[int]:
    """The processes below a coordinator: workers, and what forks them."""
    return [found for child in children_of(pid) for found in (child, *children_of(child))]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    arguments = json.loads(sys.argv[1])
    arguments["retry"] = FailurePolicy(**arguments["retry"])
    with Warehouse.open(runner=ENGINE, **arguments) as warehouse:
        loop = warehouse.coordinator(say=lambda line: print(line, file=sys.stderr))
        signal.signal(signal.SIGTERM, lambda *_: loop.stop())
        loop.run()


if __name__ == "__main__":
    main()
