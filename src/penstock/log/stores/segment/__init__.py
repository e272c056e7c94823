"""One shared log of all partitions in checksummed segment files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.log.disk import OsDisk
from penstock.log.stores.segment.store import SegmentOptions, SegmentStore

__all__ = ["SegmentOptions", "SegmentStore", "open_segment"]


def open_segment(
    path: str | Path, *, on_held: Callable[[], None] = lambda: None, **options: Any
) -> SegmentStore:
    """A segment store in a directory of this machine.

    `on_held` is called as soon as the directory is locked, since reading its content may take long.
    """
    return SegmentStore(OsDisk(path, on_held=on_held), SegmentOptions(**options))
