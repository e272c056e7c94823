"""Checks before a command touches a data directory: is it one, and of our version."""

from __future__ import annotations

from pathlib import Path

from penstock.kernel.errors import Rejected
from penstock.topics.persist.backup import LIST_FILE
from penstock.topics.persist.data_dir import LAYOUT_FILE, read_layout
from penstock.topics.persist.recovery import LAYOUT_VERSION


def check_layout(directory: Path) -> None:
    """Refuse a data directory with the layout of an unknown version."""
    layout = read_layout(directory)
    if layout is not None and layout.version != LAYOUT_VERSION:
        raise Rejected(
            f"expected a data directory with layout {LAYOUT_VERSION}, the one this version knows, "
            f"found layout {layout.version} in {directory / LAYOUT_FILE}"
        )


def refuse_backup(directory: Path) -> None:
    """Refuse to serve a backup: the first write would make its files differ from its manifest."""
    if (directory / LIST_FILE).exists():
        raise Rejected(
            f"expected a data directory, found a backup in {directory}; make one of it with: "
            f"penstock restore {directory} --data-dir NEW"
        )
