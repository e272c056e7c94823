"""A member's log in memory: the term of every entry, and the entries of its end.

Terms are kept as runs, so a log of millions of entries costs as much as it has terms. Entries that
are not applied yet are always here; applied ones stay until their bytes exceed a bound, for
followers that are a little behind. What was evicted is read from the store.

The log also knows how far the disk is. `cuts` counts how often its end was cut off: a sync that
was begun before a cut says nothing about what was written in its place, even if index and term are
the same again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from penstock.log.store import Damaged, LogEntry
from penstock.raft.messages import Mark


class RaftLog:
    """Entries `boundary + 1 … last_index`; of these `held_from …` are in memory."""

    def __init__(self, mark: Mark) -> None:
        self.cuts = self.last_index = self.last_term = 0
        self.handed = self.synced = 0  # what the disk was given, and what it has confirmed
        self._starts: list[int] = []
        self._terms: list[int] = []
        self._entries: list[LogEntry] = []
        self._ends: list[int] = []  # bytes of all entries up to this one, since the last reset
        self._bytes_before = self.held_from = 0
        self.reset(mark.index, mark.term)

    @property
    def boundary(self) -> int:
        """The last index that is no longer in the log."""
        return self._starts[0]

    def reset(self, index: int, term: int) -> None:
        """Forget everything and continue after an entry that a snapshot holds."""
        self.last_index = self.synced = self.handed = index
        self.last_term = term
        self._starts, self._terms = [index], [term]
        self._entries, self._ends, self._bytes_before = [], [], 0
        self.held_from = index + 1
        self.cuts += 1

    def restore(
        self, runs: Sequence[tuple[int, int]], entries: Sequence[LogEntry], last_index: int = 0
    ) -> None:
        """Continue with what the store has: (first index, term) of each run, and the end."""
        if runs:
            self._starts, self._terms = [start for start, _ in runs], [term for _, term in runs]
            last_index = max(last_index, self.last_index)
            self.last_index = entries[0].index - 1 if entries else last_index
            self.last_term = self.term_at(self.last_index)
            self.held_from = self.last_index + 1
        self.append(entries)
        self.synced = self.handed = self.last_index

    def term_at(self, index: int) -> int:
        """The term of an entry, or -1 if it is not in the log."""
        starts = self._starts
        if index >= starts[-1]:
            return self._terms[-1] if index <= self.last_index else -1
        at = bisect_right(starts, index) - 1
        return self._terms[at] if at >= 0 else -1

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Add entries that follow the last one."""
        ends = self._ends
        total = ends[-1] if ends else self._bytes_before
        for entry in entries:
            if entry.term != self.last_term:
                self._starts.append(entry.index)
                self._terms.append(entry.term)
                self.last_term = entry.term
            total += len(entry.payload)
            ends.append(total)
        self._entries += entries
        self.last_index += len(entries)

    def first_conflict(self, entries: Sequence[LogEntry]) -> int:
        """The place in `entries` of the first one that this log does not have."""
        for place, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term:
                return place
        return len(entries)

    def cut(self, index: int) -> None:
        """Remove the entry at `index` and all behind it."""
        if index < self.held_from:
            raise Damaged(f"entry {index} is applied and cannot be cut from the log")
        del self._entries[index - self.held_from :], self._ends[index - self.held_from :]
        while self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()
        self.last_index, self.last_term = index - 1, self._terms[-1]
        self.synced, self.handed = min(self.synced, index - 1), min(self.handed, index - 1)
        self.cuts += 1

    def confirm(self, index: int, cuts: int) -> bool:
        """Take the report of a sync; whether it moved `synced`.

        Syncs end in the order in which they began, so one of before a cut may be passed over: what
        was written behind the cut confirms what is before it.
        """
        if cuts != self.cuts or index <= self.synced:
            return False
        self.synced = index
        return True

    def slice(self, first: int, last: int) -> list[LogEntry]:
        """The entries `first … last`, which must be held."""
        return self._entries[first - self.held_from : last + 1 - self.held_from]

    def take(self, first: int, bytes_max: int) -> list[LogEntry]:
        """Held entries from `first` on: as many as fit, but at least one."""
        at = first - self.held_from
        before = self._ends[at - 1] if at else self._bytes_before
        end = bisect_right(self._ends, before + bytes_max, at)
        return self._entries[at : max(end, at + 1)]

    def bytes_after(self, index: int) -> int | None:
        """How many bytes of entries are behind `index`; None if not all of them are held."""
        at = index + 1 - self.held_from
        if at < 0:
            return None
        ends = self._ends
        if at >= len(ends):
            return 0
        return ends[-1] - (ends[at - 1] if at else self._bytes_before)

    def last_at_most(self, index: int, term: int) -> int:
        """The last index up to `index` whose term is at most `term`."""
        at = bisect_right(self._starts, min(index, self.last_index)) - 1
        if at < 0 or self._terms[at] <= term:
            return min(index, self.last_index)
        while at > 0 and self._terms[at] > term:
            at -= 1
        return self._starts[at + 1] - 1 if self._terms[at] <= term else self._starts[0]

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends like this has all that this one may have confirmed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def compact(self, index: int) -> None:
        """Forget everything up to and including `index`."""
        if index <= self.boundary:
            return
        term = self.term_at(index)
        at = bisect_right(self._starts, index)
        self._starts, self._terms = [index, *self._starts[at:]], [term, *self._terms[at:]]
        self._release(index)

    def evict(self, applied: int, bytes_max: int) -> None:
        """Release applied entries until the held bytes are within the bound.

        Begins a quarter above it: each release moves all that stays.
        """
        ends = self._ends
        if not ends or ends[-1] - self._bytes_before <= bytes_max + bytes_max // 4:
            return
        count = bisect_left(ends, ends[-1] - bytes_max) + 1
        self._release(min(applied, self.held_from + count - 1))

    def _release(self, upto: int) -> None:
        count = min(upto + 1 - self.held_from, len(self._entries))
        if count > 0:
            self._bytes_before = self._ends[count - 1]
            del self._entries[:count], self._ends[:count]
        self.held_from = max(self.held_from, upto + 1)
