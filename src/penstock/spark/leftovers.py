"""Directories of Sparks that were killed: whoever starts the next one removes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from penstock.kernel.errors import Rejected
from penstock.tables.processes import is_alive, is_here, process_name

PREFIX: Final = "penstock-spark-"
_OWNER: Final = "owner"


def mark(work_dir: Path, pid: int) -> None:
    """Say which process a directory is for."""
    (work_dir / _OWNER).write_text(process_name(pid))


def sweep(parent: Path) -> list[Path]:
    """Remove the directories whose process is gone; one that is not marked yet stays."""
    return [
        found for found in sorted(parent.glob(f"{PREFIX}*")) if _is_left(found) and _gone(found)
    ]


def _is_left(work_dir: Path) -> bool:
    try:
        owner = (work_dir / _OWNER).read_text()
        return is_here(owner) and not is_alive(owner)
    except (OSError, UnicodeDecodeError, Rejected):
        return False


def _gone(work_dir: Path) -> bool:
    shutil.rmtree(work_dir, ignore_errors=True)
    return not work_dir.exists()
