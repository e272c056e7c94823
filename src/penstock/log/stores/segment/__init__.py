"""One shared log of all partitions in checksummed segment files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.log.disk import OsDisk
from penstock.log.stores.segment.store import SegmentOptions, SegmentStore

__all__ = ["SegmentOptions", "SegmentStore", "open_segment"]


def open_segment(path: str | Path, **options: Any) -> SegmentStore:
    """A segment store in a directory of this machine."""
    return SegmentStore(OsDisk(path), SegmentOptions(**options))
