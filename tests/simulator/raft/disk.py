"""The disk of one simulated member: what is synced, and what a start reads from it."""

from __future__ import annotations

from penstock.log.store import HardState, LogEntry
from penstock.raft.members import Members
from penstock.raft.messages import Mark
from penstock.raft.ready import Ready, Restored
from tests.simulator.raft.checker import Violation


class Disk:
    """Synced state alone: what is on its way is held by the member and lost with it."""

    def __init__(self, members: Members) -> None:
        self.hard = HardState()
        self.mark = Mark(0, 0, members)
        self.boundary = (0, 0)
        self.entries: list[LogEntry] = []

    @property
    def last_index(self) -> int:
        return self.boundary[0] + len(self.entries)

    def term_at(self, index: int) -> int:
        """The term of a synced entry, 0 if it is in a snapshot, -1 if there is none."""
        place = index - self.boundary[0] - 1
        if place < 0:
            return 0
        return self.entries[place].term if place < len(self.entries) else -1

    def write(self, ready: Ready) -> None:
        """Sync one group."""
        if ready.snapshot is not None:
            self.mark = ready.snapshot
            self.boundary, self.entries = (ready.snapshot.index, ready.snapshot.term), []
        if ready.cut_from:
            del self.entries[max(ready.cut_from - self.boundary[0] - 1, 0) :]
        if ready.entries:
            first = ready.entries[0].index
            if first != self.last_index + 1:
                raise Violation(f"a log of {self.last_index} entries is continued at {first}")
            self.entries += ready.entries
        if ready.hard is not None:
            self.hard = ready.hard

    def snapshot(self, mark: Mark) -> None:
        self.mark = mark

    def compact(self, index: int) -> None:
        count = index - self.boundary[0]
        if count > 0:
            self.boundary = (index, self.entries[count - 1].term)
            del self.entries[:count]

    def read(self, first: int, last: int, count: int) -> list[LogEntry]:
        """Entries for a follower; none if they were compacted."""
        base = self.boundary[0] + 1
        if first < base:
            return []
        return self.entries[first - base : min(last + 1, first + count) - base]

    def restored(self) -> Restored:
        return Restored(
            hard=self.hard, mark=self.mark, runs=(self.boundary,), entries=list(self.entries)
        )
