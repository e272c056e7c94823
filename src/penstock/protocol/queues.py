"""A queue as people look at it: its jobs by state, its workers, its dead letters."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

LEASES_LOOKED_MAX: Final = 10_000
"""Leases whose workers are counted, those claimed first."""
LEASES_SHOWN_MAX: Final = 100
LETTERS_LOOKED_MAX: Final = 1_000
"""Records of the dead letter topic that are looked at, the newest."""
LETTERS_SHOWN_MAX: Final = 100
LETTERS_MOVED_MAX: Final = 10_000
"""Dead letters that one command moves or discards."""
REASON_BYTES_MAX: Final = 512
"""The reason of a nack."""


class QueueLease(Struct, frozen=True, kw_only=True):
    """A leased job; `deliveries` counts this one."""

    seq: int
    node: str
    deadline: int
    deliveries: int


class QueueWorker(Struct, frozen=True, kw_only=True):
    """A node that holds leases; `next_deadline` is when its first lease ends."""

    node: str
    leases: int
    next_deadline: int


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A job that was delivered too often.

    `seq` is its seq in the dead letter topic, `src_seq` the one that it had in the queue. `reason`
    is why its last delivery failed: what its worker said, or that its lease ended. `redrives` is
    how often it was made a job again before it died this time.
    """

    seq: int
    ts: int
    src_seq: int | None = None
    deliveries: int | None = None
    tag: str | None = None
    reason: str | None = None
    redrives: int = 0


class LetterReason(Struct, frozen=True, kw_only=True):
    """How many of the letters have a reason; None for those without one."""

    reason: str | None = None
    count: int


class Redriven(Struct, frozen=True, kw_only=True):
    """How many dead letters became jobs of a topic, all in one commit of it.

    `skipped` are seqs that were asked for and are not letters of the queue any more, or are held by
    a worker. With `more`, others wait that one command could not move: send it again.
    """

    queue: str
    to: str
    moved: int
    skipped: list[int]
    more: bool
    performance: dict[str, float] = {}


class Discarded(Struct, frozen=True, kw_only=True):
    """How many dead letters were deleted; `skipped` and `more` as in `Redriven`."""

    queue: str
    discarded: int
    skipped: list[int]
    more: bool
    performance: dict[str, float] = {}


class QueueState(Struct, frozen=True, kw_only=True):
    """A queue: its jobs by state, its workers, and its dead letters.

    `leases` are those that end first. `letters` are the newest; `dead` counts those among the
    newest 1,000 records of the dead letter topic, and is 0 if the caller may not read that topic.
    `dead_total` counts all that ever died. `reasons` groups those that `dead` counts, most first.
    """

    queue: str
    ready: int
    leased: int
    delayed: int
    dead: int
    dead_total: int
    in_per_s: float
    finished_per_s: float
    oldest_ready_ms: int | None = None
    """The age of the job that is leased next; None if no job is ready."""
    next_delayed_ms: int | None = None
    """In how long the next delayed job is ready; None if none is delayed."""
    lease_ms: int
    max_deliveries: int
    dead_letter: str | None = None
    workers: list[QueueWorker]
    leases: list[QueueLease]
    letters: list[DeadLetter]
    reasons: list[LetterReason] = []
    performance: dict[str, float] = {}
