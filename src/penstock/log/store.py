"""What a store is: the one interface behind which entries rest.

A store keeps, for each partition, a run of entries with consecutive indexes, a hard state (term
and vote) and a snapshot boundary (the last entry that compaction took away). It never decides
anything: it writes what it is told, in the order it is told, and says whether that worked.

A *group* is a list of operations over any number of partitions that becomes durable with one sync.
Operations of one partition apply in list order. A partition's operations in a group succeed or
fail together; a store with several files may fail some partitions of a group and not others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.kernel.errors import Corrupt, Gone, Rejected, Unavailable, Unknown


class Entry(NamedTuple):
    """One record of a partition's log."""

    index: int  # type: ignore[assignment]  # hides a method of tuples that is not used here
    term: int
    payload: bytes


class Append(NamedTuple):
    """Add entries; the first index must follow the partition's last one."""

    partition: int
    entries: Sequence[Entry]


class SetHardState(NamedTuple):
    """Remember the term and the vote. Must be synced before any reply is given."""

    partition: int
    term: int
    vote: int


class Sync(NamedTuple):
    """Change nothing. In a group that is synced: the partition's earlier entries become durable."""

    partition: int


class Truncate(NamedTuple):
    """Forget every entry at or after `from_index` (a new leader overwrote them)."""

    partition: int
    from_index: int


class Compact(NamedTuple):
    """Forget every entry up to and including `upto_index`; its term becomes the boundary's."""

    partition: int
    upto_index: int


class InstallBoundary(NamedTuple):
    """A snapshot from elsewhere replaces the log: drop all entries, go on after `index`."""

    partition: int
    index: int  # type: ignore[assignment]
    term: int


Operation = Append | SetHardState | Sync | Truncate | Compact | InstallBoundary


class HardState(NamedTuple):
    """What a partition must never forget: its term and whom it voted for (0: nobody)."""

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
    """What a person or a dashboard wants to know of a store."""

    kind: str
    path: str | None
    partitions: int
    entries: int
    bytes_on_disk: int
    syncs: int
    read_only_reason: str | None
    rotations: int = 0
    """Files that were begun since the store was opened, where it has several."""


class NotContiguous(Rejected):
    """An append does not start right after the partition's last entry."""

    code = "not_contiguous"


class Compacted(Gone):
    """The index asked for lies at or below the snapshot boundary."""

    code = "compacted"


class ReadOnly(Unavailable):
    """The store stopped taking writes after an error of the disk; reads go on."""

    code = "read_only"


class DiskFull(ReadOnly):
    """No space is left; writes are taken again by themselves once there is."""

    code = "disk_full"


class Starved(ReadOnly):
    """The machine has no descriptor or memory for a new file; writes go on once it has."""

    code = "starved"


class SyncFailed(Unknown):
    """The sync of a group failed: its entries are not visible, yet may be there after a restart.

    The store takes no more writes until it is opened again.
    """

    code = "sync_failed"


class Damaged(Corrupt):
    """Bytes that were durable once are not what was written."""

    code = "damaged"


class UnknownFormat(Corrupt):
    """The files are of a format version that this program does not know."""

    code = "unknown_format"


class Closed(Unavailable):
    """The store was closed; open it again."""

    code = "closed"


class AlreadyOpen(Unavailable):
    """Another process holds the directory's lock."""

    code = "already_open"


class Underway(Protocol):
    """A write that the disk does by itself."""

    @property
    def done_fd(self) -> int:
        """An eventfd that becomes readable soon after it is done; read it, then ask `is_done`.

        It may be readable for the write before, too.
        """
        ...

    def is_done(self) -> bool:
        """Whether `finish` would not wait."""
        ...

    def finish(self) -> Mapping[int, Exception]:
        """What `write` would return; waits if it is not done. Must be called, once."""
        ...


class Store(Protocol):
    """Blocking storage for the logs of many partitions.

    Several threads may `write` at a time if no partition is in two of their groups. Reads may come
    from any thread at any time and see exactly the groups whose `write` has returned.
    """

    def stage(self, group: Sequence[Operation], bytes_max: int) -> Sequence[Operation] | None:
        """Do ahead, in any thread, what `write` need not do for a whole group; changes nothing.

        No partition of it may be in a group that is being written. What comes back is the same
        operations, and only good for `write` and `begin`; None if their payloads are more than
        `bytes_max` bytes together.
        """
        ...

    def write(self, group: Sequence[Operation], *, sync: bool) -> Mapping[int, Exception]:
        """Apply a group, with one sync if asked, and return what failed, by partition.

        An empty mapping means that all of it is done (and durable, if synced). A partition in the
        mapping has changed nothing.
        """
        ...

    def begin(self, group: Sequence[Operation], *, sync: bool) -> Underway | None:
        """Start a `write` that ends without a thread, and return at once.

        None, with nothing done, if this group has to be a call of `write`: only some stores can
        do this, and not always. Several may be under way if they share no partition; one thread
        begins them all and finishes them in that order. Until then every `write` waits.
        """
        ...

    def read(
        self, partition: int, first_index: int, *, max_entries: int, max_bytes: int
    ) -> list[Entry]:
        """Entries from `first_index` on, at least one if there is one, within both limits.

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
        """The term and vote last made durable."""
        ...

    def partitions(self) -> list[int]:
        """Every partition ever written, in order."""
        ...

    def damaged(self) -> Mapping[int, Exception]:
        """Partitions that cannot be read whole, and why. They must not be written."""
        ...

    def reclaim(self) -> int:
        """Give back space that compaction freed; returns how many bytes.

        May take a while, and may be called at any time by any thread; writes go on in between. A
        store that gives back space by itself returns 0.
        """
        ...

    def status(self) -> StoreStatus:
        """A snapshot for people; cheap, and never waits for a write."""
        ...

    def close(self) -> None:
        """Release files and the lock. Writes after this are refused."""
        ...
