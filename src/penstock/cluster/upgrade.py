"""Which version of the log's entries a cluster writes: the newest one that all its members read.

What a member reads is in the roster, as it said when it was last linked to the leader of partition
0, and so is the version that is written: all leaders follow the same log. That version goes up when
the last member reads the next one, and never down: entries of it are in the logs.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.cluster.handshake import UNTOLD
from penstock.raft.members import ENTRIES, Change, Entries, Members


def read_by(roster: Members) -> dict[int, int]:
    """The newest version that each member is known to read.

    One that has not said it yet counts as a program of the time when clusters began.
    """
    return dict.fromkeys(roster.everyone(), UNTOLD.read) | dict(roster.entries.reads)


def next_entries(roster: Members, told: Mapping[int, int], active: int) -> Change | None:
    """What the leader of partition 0 logs once members have said what they read, if that is news.

    `told` is of the members that are linked, and of the leader itself; `active` is what it writes.
    """
    known = dict(roster.entries.reads) | dict(told)
    reads = {member: known[member] for member in known if member in roster}
    common = min((read_by(roster) | reads).values())
    active = max(active, roster.entries.active, common)
    entries = Entries(active, tuple(sorted(reads.items())))
    return None if entries == roster.entries else Change(ENTRIES, entries=entries)


def held_by(roster: Members, active: int) -> tuple[str, ...]:
    """The members without which a newer version would be written; none if no member reads one."""
    reads = read_by(roster)
    if max(reads.values(), default=active) <= active:
        return ()
    return tuple(each.name for each in roster.named if reads.get(each.id, active) <= active)
