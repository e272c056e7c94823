"""The facts of the machine that a measurement was made on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import penstock
from penstock.flow import fairqueue


def machine_facts() -> dict[str, Any]:
    """What a reader needs in order to judge a number."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "penstock": f"{penstock.__version__} ({build()})",
        "date": datetime.now(UTC).date().isoformat(),
    }


def build() -> str:
    """Whether the hot modules are compiled."""
    return "pure" if str(fairqueue.__file__).endswith(".py") else "compiled"


def cpu_model() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
