"""The store interface: storage for the logs of many partitions.

For each partition a store keeps a run of entries with consecutive indexes, a hard state (term and
vote) and a snapshot boundary (the last entry removed by compaction). It makes no decisions: it
writes operations in the given order and reports whether that succeeded.

A *group* is a list of operations over any number of partitions that becomes durable with one sync.
Operations of one partition apply in list order. A partition's operations in a group succeed or fail
together; a store with several files may fail some partitions of a group and not others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.kernel.errors import Corrupt, Gone, Rejected, Unavailable, Unknown


class LogEntry(NamedTuple):
    """One record of a partition's log."""

    index: int  # type: ignore[assignment]  # hides a method of tuples that is not used here
    term: int
    payload: bytes


class Append(NamedTuple):
    """Add entries; the first index must follow the partition's last one."""

    partition: int
    entries: Sequence[LogEntry]


class SetHardState(NamedTuple):
    """Store the term and the vote. Must be synced before any reply is sent."""

    partition: int
    term: int
    vote: int


class Sync(NamedTuple):
    """Change nothing. In a synced group, the partition's earlier entries become durable."""

    partition: int


class Truncate(NamedTuple):
    """Remove every entry at or after `from_index` (a new leader overwrote them)."""

    partition: int
    from_index: int


class Compact(NamedTuple):
    """Remove every entry up to and including `upto_index`; its term becomes the boundary's."""

    partition: int
    upto_index: int


class InstallBoundary(NamedTuple):
    """A snapshot from elsewhere replaces the log: drop all entries, continue after `index`."""

    partition: int
    index: int  # type: ignore[assignment]
    term: int


Operation = Append | SetHardState | Sync | Truncate | Compact | InstallBoundary


class HardState(NamedTuple):
    """A partition's durable term and vote (0: no vote)."""

    term: int = 0
    vote: int = 0


class Bounds(NamedTuple):
    """The snapshot boundary and the last entry; the log holds boundary_index + 1 … last_index."""

    boundary_index: int = 0
    boundary_term: int = 0
    last_index: int = 0
    last_term: int = 0


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of a store, for people and dashboards."""

    kind: str
    path: str | None
    partitions: int
    entries: int
    bytes_on_disk: int
    syncs: int
    read_only_reason: str | None
    rotations: int = 0
    """Files created since the store was opened, where it has several."""


class NotContiguous(Rejected):
    """An append does not start right after the partition's last entry."""

    code = "not_contiguous"


class Compacted(Gone):
    """The requested index is at or below the snapshot boundary."""

    code = "compacted"


class ReadOnly(Unavailable):
    """The store refuses writes after a disk error; reads continue."""

    code = "read_only"


class DiskFull(ReadOnly):
    """The disk is full; writes resume automatically once there is space."""

    code = "disk_full"


class Starved(ReadOnly):
    """The machine has no descriptor or memory for a new file; writes resume once it has."""

    code = "starved"


class SyncFailed(Unknown):
    """The sync of a group failed: its entries are not visible, but may exist after a restart.

    The store refuses writes until it is reopened.
    """

    code = "sync_failed"


class Damaged(Corrupt):
    """Bytes that were durable differ from what was written."""

    code = "damaged"


class UnknownFormat(Corrupt):
    """The files have a format version that this program does not support."""

    code = "unknown_format"


class StoreClosed(Unavailable):
    """The store is closed; open it again."""

    code = "closed"


class AlreadyOpen(Unavailable):
    """Another process holds the directory's lock."""

    code = "already_open"


class Underway(Protocol):
    """A write that is completed asynchronously."""

    @property
    def done_fd(self) -> int:
        """An eventfd that becomes readable soon after completion; read it, then check `is_done`.

        It may also be readable because of an earlier write.
        """
        ...

    def is_done(self) -> bool:
        """Whether `finish` would return without waiting."""
        ...

    def finish(self) -> Mapping[int, Exception]:
        """What `write` would return; waits for completion. Must be called exactly once."""
        ...


class LogStore(Protocol):
    """Blocking storage for the logs of many partitions.

    Several threads may `write` at a time if no partition is in two of their groups. Any thread may
    read at any time and sees exactly the groups whose `write` has returned.
    """

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Prepare a group ahead of `write`, in any thread; changes nothing.

        No partition of it may be in a group that is being written. The result has the same
        operations, and is only valid for `write` and `begin`; None if the payloads exceed
        `bytes_max` in total.
        """
        ...

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group, with one sync if requested, and return the errors by partition.

        An empty mapping means that all of it is done (and durable, if synced). A partition in the
        mapping has not changed.
        """
        ...

    def begin(self, group: Sequence[Operation], *, sync: bool) -> Underway | None:
        """Start a `write` that completes without a thread, and return at once.

        None, with nothing done, if this group has to be a call of `write`: only some stores support
        this, and not always. Several may be in flight if they share no partition; one thread begins
        them all and finishes them in that order. Until then every `write` waits.
        """
        ...

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[LogEntry]:
        """Entries from `first_index` on, at least one if any exists, within both limits.

        Past the end: an empty list. At or below the boundary: `Compacted`.
        """
        ...

    def term_at(self, partition: int, index: int) -> int:
        """The term of an entry or of the boundary. Below: `Compacted`; past the end: `Rejected`."""
        ...

    def bounds(self, partition: int) -> Bounds:
        """Boundary and last entry; all zero for a partition never written."""
        ...

    def hard_state(self, partition: int) -> HardState:
        """The last durable term and vote."""
        ...

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        ...

    def damaged(self) -> Mapping[int, Exception]:
        """Partitions that cannot be read completely, and why. They must not be written."""
        ...

    def reclaim(self) -> int:
        """Free space after compaction; return how many bytes.

        May take a while, and may be called at any time by any thread; writes continue in between. A
        store that frees space automatically returns 0.
        """
        ...

    def status(self) -> StoreStatus:
        """A snapshot for people; cheap, and never waits for a write."""
        ...

    def close(self) -> None:
        """Release files and the lock. Writes after this are refused."""
        ...
