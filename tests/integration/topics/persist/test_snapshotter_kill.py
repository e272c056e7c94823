"""Compaction ended by SIGKILL at every step, of the server and of the process that works for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from penstock.testing.seeds import seeded, seeds

ROOT = Path(__file__).parents[4]
CAP = 400
STEPS = (
    "process-started",
    "snapshots-made",
    "log-not-cut",
    "log-cut",
    "older-removed",
    "segments-removed",
)


def start(directory: Path, step: str) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("compacting_node.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(directory), step],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )


class Watched:
    """What one life of the process said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        first = process.stdout.readline().split()
        assert first[:1] == ["found"], first
        self.found = [int(word) for word in first[1:]]
        self.process = process

    def follow(self, acks: int | None = None) -> int:
        """Read what was acknowledged, to the end or so many; the last of it."""
        last = self.found[-1] + 1 if self.found else 0
        assert self.process.stdout is not None
        while acks is None or acks > 0:
            line = self.process.stdout.readline()
            if not line.endswith("\n"):
                break
            last = int(line.split()[1])
            acks = None if acks is None else acks - 1
        return last


def check(found: list[int], acked: int) -> None:
    """Everything that was acknowledged is there, in order, and nothing twice."""
    assert found == list(range(found[0], found[-1] + 1))
    assert found[-1] + 1 >= acked
    assert len(found) >= min(acked, CAP - 10)


@pytest.mark.parametrize("step", STEPS)
def test_a_node_killed_at_a_step_of_compaction_comes_back_whole(tmp_path: Path, step: str) -> None:
    acked = 0
    for life, wanted in enumerate((step, "none")):
        process = start(tmp_path, wanted)
        watched = Watched(process)
        if life:
            check(watched.found, acked)
        if wanted == "none":
            process.kill()
            process.communicate()
            return
        acked = watched.follow()
        process.communicate()
        assert process.returncode == -signal.SIGKILL


def test_nodes_and_compactors_killed_at_any_time_lose_nothing(tmp_path: Path) -> None:
    for seed in seeds(1):
        with seeded(seed) as random:
            kill_at_random(tmp_path / str(seed), random)


def kill_at_random(directory: Path, random: Random) -> None:
    acked = 0
    for life in range(5):
        process = start(directory, "none")
        watched = Watched(process)
        if life:
            check(watched.found, acked)
        watched.follow(random.randrange(1, 60))
        if random.random() < 0.5:
            for pid in children(process.pid):
                os.kill(pid, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL)
        acked = watched.follow()
        process.communicate()
        assert process.returncode != 0


def children(pid: int, seconds: float = 30) -> list[int]:
    """The processes of a process, once it has some."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += (task / "children").read_text().split()
        if found:
            return sorted({int(word) for word in found})
    raise AssertionError("no compactor was started")
