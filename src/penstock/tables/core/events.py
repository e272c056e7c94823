"""What the coordinator's core is told, and what it wants done: plain data, nothing else crosses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, Position
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import Job
from penstock.tables.core.model import Status
from penstock.tables.core.verdict import Reason

# events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class SourcesMoved:
    """Where relations that are not stream tables stand now; those not named have not moved."""

    positions: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job was handed to a worker; said before anything else is said of the job."""

    job_id: int
    worker: str


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What a refresh made of one member: the inputs it stands for, and where the table is now.

    `position` stays the same if the refresh changed no row; None if that was never known.
    """

    frontier: Frontier
    position: Position | None


@dataclass(frozen=True, slots=True)
class JobSucceeded:
    """A job and everything it made is committed."""

    job_id: int
    refreshed: Mapping[str, Refreshed]


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job failed and nothing of it is visible; `member` is the table at fault, if known."""

    job_id: int
    kind: FailureKind
    detail: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A job was given up and nothing of it is visible."""

    job_id: int
    detail: str = "cancelled"


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker process is gone, with whatever it had in hand."""

    worker: str


@dataclass(frozen=True, slots=True)
class GraphChanged:
    """The catalog has other definitions now."""

    graph: StreamGraph
    version: int


@dataclass(frozen=True, slots=True)
class SourcesMissing:
    """These relations that tables read are not in the lake; all others are."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class RefreshRequested:
    """A person wants a table refreshed; `force` also if nothing it reads has changed."""

    request_id: str
    table: str
    force: bool = False


class Contents(NamedTuple):
    """What the catalog says of a table's contents."""

    frontier: Frontier
    position: Position | None
    fresh_ms: int


@dataclass(frozen=True, slots=True)
class MadeByHand:
    """People refreshed tables by themselves, past the coordinator."""

    tables: Mapping[str, Contents]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A person paused or resumed a table. Resuming catches up what was missed."""

    table: str
    status: Status


@dataclass(frozen=True, slots=True)
class GateChanged:
    """A relation was closed for refreshing, or opened again."""

    relation: str
    closed: bool


@dataclass(frozen=True, slots=True)
class LocksChanged:
    """Which tables others hold locks on now, all of them."""

    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class TokenWon:
    """A permit that was asked for is ours."""


@dataclass(frozen=True, slots=True)
class TokenLost:
    """There was no permit left."""


@dataclass(frozen=True, slots=True)
class PoolContended:
    """Whether other coordinators wait for permits.

    If so, a coordinator whose job ends asks for no permit until nobody else waits, or until it has
    waited long enough for them to come and take it.
    """

    contended: bool


@dataclass(frozen=True, slots=True)
class DrainChanged:
    """Start nothing new and let what runs end; or go on."""

    draining: bool


Event = (
    Tick
    | SourcesMoved
    | SourcesMissing
    | JobStarted
    | JobSucceeded
    | JobFailed
    | JobCancelled
    | WorkerDied
    | GraphChanged
    | RefreshRequested
    | MadeByHand
    | StatusChanged
    | GateChanged
    | LocksChanged
    | TokenWon
    | TokenLost
    | PoolContended
    | DrainChanged
)

# effects -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Store a new job, before it is started."""

    job: Job


@dataclass(frozen=True, slots=True)
class Start:
    """Have a job run: by a worker, or here and now if `inline`.

    `stale` names units above that stand still: the refresh reads their last good data and says so.
    `waited_ms` is how long it could have run already, had there been a slot and a permit for it.
    """

    job: Job
    inline: bool
    stale: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    waited_ms: int = 0


@dataclass(frozen=True, slots=True)
class WouldDispatch:
    """Dry run: a job that runs alone now would have been started along with these units."""

    job: Job
    alongside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseJob:
    """Store how a job ended, unless its row says already that it ended."""

    job: Job


@dataclass(frozen=True, slots=True)
class Cancel:
    """Make whoever runs a job give it up; a `JobCancelled` or its outcome must follow."""

    job: Job
    detail: str


@dataclass(frozen=True, slots=True)
class RecordSkip:
    """A unit that was due was passed over; once for each reason until it runs."""

    unit_key: str
    members: tuple[str, ...]
    reason: Reason
    text: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """A table is suspended, in error, or active again."""

    table: str
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class AskToken:
    """Try to get a permit; answer with `TokenWon` or `TokenLost`."""


@dataclass(frozen=True, slots=True)
class ReleaseToken:
    """Give a permit back."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """What became of a person's request."""

    request_id: str
    ok: bool
    detail: str = field(default="")


Effect = (
    Enqueue
    | Start
    | WouldDispatch
    | CloseJob
    | Cancel
    | RecordSkip
    | SetStatus
    | AskToken
    | ReleaseToken
    | AnswerRequest
)
