"""What a core hands to the shell that drives it, and what it is built from.

A shell does the duties of a `Ready` in this order: send `now`; write snapshot, cut, entries and
hard state and sync them as one group; then send `after` and report `written`. A `Ready` without
anything to write has its `after` sent when all earlier writes are synced. Groups are written in the
order in which they were handed over.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.kernel.errors import Busy, Conflict, Unavailable
from penstock.log.store import HardState, LogEntry
from penstock.raft.members import Members
from penstock.raft.messages import Mark, Message


class Written(msgspec.Struct, frozen=True):
    """A receipt for one write. `cuts` tells apart writings of the same index."""

    index: int
    cuts: int
    hard: HardState
    mark: Mark | None = None


class Read(msgspec.Struct, frozen=True, gc=False):
    """A read that may be answered once `index` is applied."""

    context: int
    index: int


class Fetch(msgspec.Struct, frozen=True, gc=False):
    """Read entries from `first` to `last` in the store: a follower needs what memory lost."""

    to: int
    first: int
    last: int


class Ready(msgspec.Struct):
    """The duties since the last one."""

    written: Written
    hard: HardState | None = None
    snapshot: Mark | None = None
    cut_from: int = 0
    entries: Sequence[LogEntry] = ()
    now: Sequence[Message] = ()
    after: Sequence[Message] = ()
    apply: Sequence[LogEntry] = ()
    reads: Sequence[Read] = ()
    lost_reads: Sequence[int] = ()
    """Reads that will not be confirmed: leadership was lost or is handed over."""
    fetch: Sequence[Fetch] = ()

    @property
    def must_write(self) -> bool:
        """Whether there is anything for the disk."""
        return bool(self.hard or self.entries or self.snapshot or self.cut_from)


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a member has on its disk when it starts.

    `runs` are (first index, term) of the log below `entries`, beginning with its boundary; without
    them the log begins after the snapshot. `entries` must reach down to what is applied, which is
    the snapshot unless `applied` is larger. `last_index` ends the log where there are no `entries`.
    `founders` are meant by an entry that says that the log has no members of its own any more.
    """

    hard: HardState = HardState()
    mark: Mark = Mark(0, 0, Members(()))
    runs: Sequence[tuple[int, int]] = ()
    entries: Sequence[LogEntry] = ()
    applied: int = 0
    last_index: int = 0
    founders: Members = Members(())


class NotLeader(Unavailable):
    """Another member leads, or none does: nothing was taken. `leader` is 0 if it is not known."""

    code = "not_leader"


class NotServing(Unavailable):
    """This member leads but takes nothing now: it has just begun, or hands over. Try again."""

    code = "not_serving"


class UncommittedFull(Busy):
    """Too much waits for a majority; nothing was appended."""

    code = "uncommitted_full"


class ChangeInProgress(Conflict):
    """A change of members is not committed yet; wait for it."""

    code = "change_in_progress"


class TransferRefused(Conflict):
    """The member cannot take over: it is not a voter, or it is behind."""

    code = "transfer_refused"
