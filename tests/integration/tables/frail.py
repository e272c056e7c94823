"""The engine of tests, in a forker that dies as often as the file named by FRAIL says."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.integration.tables import engine

FRAIL = "PENSTOCK_TEST_FRAIL"
make = engine.make


def preload() -> None:
    file = Path(os.environ[FRAIL])
    left = int(file.read_text())
    if left:
        file.write_text(str(left - 1))
        os.kill(os.getpid(), signal.SIGKILL)
