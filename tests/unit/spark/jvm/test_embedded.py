"""What killed Sparks leave behind is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from penstock.spark.jvm.embedded import PREFIX, mark, sweep


def test_directories_of_processes_that_are_gone_are_removed_and_no_others(tmp_path: Path) -> None:
    names = ("dead", "alive", "unmarked", "garbled", "elsewhere")
    dead, alive, unmarked, garbled, elsewhere = (tmp_path / f"{PREFIX}{each}" for each in names)
    for each in (dead, alive, unmarked, garbled, elsewhere, tmp_path / "other"):
        (each / "blockmgr").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mark(dead, process.pid)
        mark(alive, os.getpid())
        assert sweep(tmp_path) == [], "it still runs"
    (garbled / "owner").write_bytes(b"\xff")
    (elsewhere / "owner").write_text("another-machine/1-1")
    assert sweep(tmp_path) == [dead]
    assert {each.name for each in tmp_path.iterdir()} == {
        *(f"{PREFIX}{name}" for name in names[1:]),
        "other",
    }
    assert sweep(tmp_path / "nowhere") == []
