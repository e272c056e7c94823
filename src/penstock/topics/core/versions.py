"""Versions of the log's entries: what each can say, and which one a node writes.

Version 1 has neither `Began` nor `Passed`, version 2 neither `Removed` nor reasons in `JobsNacked`.
A node alone writes the newest version; one of a cluster writes what all members are known to read,
and refuses what cannot be said in that.

>>> WrittenVersion(2, ("b",)).says(3), WrittenVersion(3).says(3)
(False, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.protocol.errors import UpgradePending
from penstock.topics.core.entries import JobsNacked, Removed

NEWEST: Final = 3
"""The newest version, which this program writes and reads with all before it."""
OLDEST_WRITTEN: Final = 2
"""Entries are never written in an older version."""
REMOVALS: Final = 3
"""From this version on single records can be taken out."""
REASONS: Final = 3
"""From this version on a nack can say why."""
COMPLETE: Final = max(REMOVALS, REASONS)
"""From this version on every entry can be said."""


def needed(entry: object) -> int:
    """The oldest version that is written and can say an entry."""
    if type(entry) is Removed:
        return REMOVALS
    if type(entry) is JobsNacked and entry.reason:
        return REASONS
    return OLDEST_WRITTEN


class WrittenVersion(NamedTuple):
    """The version that a node writes, and the members that read no newer one.

    It never goes down, so what was decided for one version can be written later.
    """

    version: int
    held_by: tuple[str, ...] = ()

    def says(self, version: int) -> bool:
        """Whether entries that need a version can be written."""
        return version <= self.version

    def check(self, entries: Iterable[object]) -> None:
        """Refuse entries that need a newer version, before anything is changed."""
        wanted = max(map(needed, entries), default=OLDEST_WRITTEN)
        if wanted > self.version:
            raise UpgradePending(wanted, self.version, self.held_by)
