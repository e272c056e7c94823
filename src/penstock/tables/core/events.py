"""The core's inputs and outputs: plain data; nothing else crosses the boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.tables.core.failures import FailureKind
from penstock.tables.core.frontier import Frontier, Position
from penstock.tables.core.graph import StreamGraph
from penstock.tables.core.jobs import RefreshJob
from penstock.tables.core.model import Status
from penstock.tables.core.verdict import Reason

# events ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class SourcesMoved:
    """The current positions of relations that are not stream tables; omitted ones did not move."""

    positions: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job was handed to a worker; precedes every other event of the job."""

    job_id: int
    worker: str


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The result of refreshing one member: its input positions, and the table's own position.

    `position` is unchanged if the refresh changed no row; None if it was never known.
    """

    frontier: Frontier
    position: Position | None


@dataclass(frozen=True, slots=True)
class JobSucceeded:
    """A job and all its results are committed."""

    job_id: int
    refreshed: Mapping[str, Refreshed]


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job failed without visible effects; `member` is the table at fault, if known."""

    job_id: int
    kind: FailureKind
    detail: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A job was given up, without visible effects."""

    job_id: int
    detail: str = "cancelled"


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker process is gone, with its job if it had one."""

    worker: str


@dataclass(frozen=True, slots=True)
class GraphChanged:
    """The definitions in the catalog have changed."""

    graph: StreamGraph
    version: int


@dataclass(frozen=True, slots=True)
class SourcesMissing:
    """All relations that tables read and that are not in the lake."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class RefreshRequested:
    """A person wants a table refreshed; with `force` even if none of its inputs changed."""

    request_id: str
    table: str
    force: bool = False


class Contents(NamedTuple):
    """The stored facts about a table's contents."""

    frontier: Frontier
    position: Position | None
    fresh_ms: int


@dataclass(frozen=True, slots=True)
class MadeByHand:
    """People refreshed tables without the coordinator."""

    tables: Mapping[str, Contents]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """A person paused or resumed a table. Resuming catches up on what was missed."""

    table: str
    status: Status


@dataclass(frozen=True, slots=True)
class GateChanged:
    """A relation was gated against refreshing, or ungated."""

    relation: str
    closed: bool


@dataclass(frozen=True, slots=True)
class LocksChanged:
    """The complete set of tables on which other processes hold locks."""

    tables: frozenset[str]


@dataclass(frozen=True, slots=True)
class TokenWon:
    """A requested permit was granted."""


@dataclass(frozen=True, slots=True)
class TokenLost:
    """No permit was free."""


@dataclass(frozen=True, slots=True)
class PoolContended:
    """Whether other coordinators wait for permits.

    If so, a coordinator whose job ends asks for no permit until no other waits, or until it has
    given them enough time to take it.
    """

    contended: bool


@dataclass(frozen=True, slots=True)
class DrainChanged:
    """Start nothing new and let running jobs end; or resume."""

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

    job: RefreshJob


@dataclass(frozen=True, slots=True)
class Start:
    """Run a job: in a worker, or immediately in this process if `inline`.

    `stale` names stopped upstream units: the refresh reads their last good data and says so.
    `waited_ms` is how long it has been ready, waiting for a slot and a permit.
    """

    job: RefreshJob
    inline: bool
    stale: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    waited_ms: int = 0


@dataclass(frozen=True, slots=True)
class WouldDispatch:
    """Dry run: these units would have been started alongside a job that now runs alone."""

    job: RefreshJob
    alongside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseJob:
    """Store how a job ended, unless its row already has an outcome."""

    job: RefreshJob


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a job where it runs; a `JobCancelled` or its outcome must follow."""

    job: RefreshJob
    detail: str


@dataclass(frozen=True, slots=True)
class RecordSkip:
    """A due unit was skipped; recorded once per reason until it runs."""

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
    """Try to get a permit; respond with `TokenWon` or `TokenLost`."""


@dataclass(frozen=True, slots=True)
class ReleaseToken:
    """Return a permit."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """The outcome of a person's request."""

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
