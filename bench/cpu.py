"""Who used the machine's cores for a while: processes that are named, and all others together."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Used(NamedTuple):
    """Seconds of cores, by group of processes; `others_s` is what all other processes used."""

    wall_s: float
    by_group_s: dict[str, float]
    others_s: float

    @property
    def total_s(self) -> float:
        """What the named processes used together."""
        return sum(self.by_group_s.values())

    @property
    def cores(self) -> float:
        """How many cores they kept busy."""
        return self.total_s / self.wall_s

    @property
    def others_cores(self) -> float:
        """How many cores were busy with something else."""
        return self.others_s / self.wall_s


class Meter:
    """Measures from the moment it is made until `read`."""

    def __init__(self, groups: dict[str, Iterable[int]]) -> None:
        self._groups = {name: list(pids) for name, pids in groups.items()}
        self._began = time.perf_counter()
        self._before = self._look()
        self._machine_before = _machine_s()

    def read(self) -> Used:
        """What was used since."""
        now, machine = self._look(), _machine_s()
        spent = {name: now[name] - before for name, before in self._before.items()}
        others = machine - self._machine_before - sum(spent.values())
        return Used(time.perf_counter() - self._began, spent, max(0.0, others))

    def _look(self) -> dict[str, float]:
        return {name: sum(map(_process_s, pids)) for name, pids in self._groups.items()}


def _process_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _machine_s() -> float:
    """Everything but idleness; time that a hypervisor took away counts as that of others."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, words)
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S
