"""The answers of routes about the parts of a deployment: parts, pipeline, waiting, verdict.

Every part reports itself once a second to a topic `penstock.parts.<kind>.<node>`; the server joins
what it reads there. Times are milliseconds since 1970 by the server's clock, unless a name ends
with `_ms` and says a span: `age_ms`, `stuck_ms`, `for_ms`.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from penstock.protocol.answers import FailedPartition

AWAY_AFTER_MS: Final = 5_000
"""A part that has been silent for longer is away."""
REPORT_EVERY_MS: Final = 1_000
STATUS_TAG: Final = "status"
GOODBYE_TAG: Final = "ended"
"""A part's last record: it ended in good order, and is not missed."""
COMMAND_TAG: Final = "command"
ANSWER_TAG: Final = "answer"
LEVELS: Final = ("ok", "slow", "failing", "refusing", "away")
"""The levels of a verdict, from best to worst."""


class PartReport(Struct, frozen=True, kw_only=True):
    """What a part writes of itself once a second; `facts` differ by its kind."""

    at: int
    """The part's own time."""
    since: int
    pid: int
    host: str
    version: str
    state: str = "ok"
    """ok, waiting, held or failing."""
    text: str = ""
    behind: int | None = None
    facts: dict[str, Any] = {}


class PartState(Struct, frozen=True, kw_only=True):
    """A part, as of its last report.

    `state` is `ok` or another word of the part itself, or `away` once it is silent for five
    seconds, or `ended` if it ended in good order. `facts` is its own report.
    """

    part: str
    """`<kind>.<node>`, as in the name of its topic."""
    kind: str
    """server, ingest, tables or worker."""
    node: str
    state: str
    text: str
    pid: int | None = None
    host: str | None = None
    version: str | None = None
    since: int | None = None
    """When it started."""
    seen: int | None = None
    """When it last reported."""
    age_ms: int | None = None
    away_since: int | None = None
    """When its last report came, if it is away."""
    behind: int | None = None
    facts: dict[str, Any] = {}


class PartList(Struct, frozen=True, kw_only=True):
    """Every part that reports to this server, and the server itself first."""

    at: int
    parts: list[PartState]
    performance: dict[str, float] = {}


class StageState(Struct, frozen=True, kw_only=True):
    """A stage of the pipeline; p50 and p99 are None if it finished nothing in the last second."""

    name: str
    window: int
    occupied: int
    occupancy: float
    rate_per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    busy: float = 0.0
    bytes: int = 0
    """The memory of what is in the window, by the mean size of its items."""
    items_in: int = 0
    items_out: int = 0
    credits_granted: int = 0
    backpressure_events: int = 0
    refused: bool = False
    stuck_ms: int = 0
    warming: bool = False
    held: bool = False
    may_hold: bool = False
    """Whether `hold` and `go` work on this stage."""
    note: str = ""
    """The planner's last decision about it."""


class PlannerDecision(Struct, frozen=True, kw_only=True):
    """What the planner decided about a window, and why."""

    at: int
    stage: str
    action: str
    window: int
    reason: str


class PipelineMemory(Struct, frozen=True, kw_only=True):
    """The memory of all windows, of the budget."""

    used_bytes: int
    budget_bytes: int
    by_stage: dict[str, int]


class PipelineState(Struct, frozen=True, kw_only=True):
    """The ingest pipeline, as it last reported itself.

    `state` is `running`, `held`, `waiting` (it reports a trouble), `away`, `ended`, or `none` if
    no pipeline ever reported; then the lists are empty.
    """

    at: int
    state: str
    text: str
    part: str | None = None
    seen: int | None = None
    away_since: int | None = None
    stages: list[StageState] = []
    bottleneck: str | None = None
    behind: int | None = None
    """Messages that are durable and not in the lake yet; None without a pipeline behind."""
    behind_ms: int | None = None
    """For how long that is work at the present pace; None if nothing is stored at present."""
    stored_seq: int | None = None
    drain_per_s: int | None = None
    trouble: str | None = None
    memory: PipelineMemory | None = None
    decisions: list[PlannerDecision] = []
    edge: dict[str, int] = {}
    tariffs: dict[str, Any] | None = None
    performance: dict[str, float] = {}


class LostWorker(Struct, frozen=True, kw_only=True):
    """A worker that ended while its coordinator went on; `unit` is what it refreshed, if anything.

    A part with tables tells the last ones as `lost` in its facts.
    """

    part: str
    pid: int
    unit: str | None
    at: int


class IngestFacts(Struct, frozen=True, kw_only=True):
    """The facts of an ingest part. `decisions` are those since its last report."""

    stages: list[StageState]
    bottleneck: str | None = None
    decisions: list[PlannerDecision] = []
    budget_bytes: int = 0
    edge: dict[str, int] = {}
    stored_seq: int | None = None
    drain_per_s: int | None = None
    trouble: str | None = None
    tariffs: dict[str, Any] | None = None
    reads: list[str] = []
    """Topics and spaces that it reads, as queries name them: `topics.meters.raw`."""
    writes: list[str] = []
    """Lake tables that it writes."""


class StageHistory(Struct, frozen=True, kw_only=True):
    """A stage over time, one value for each of `t`."""

    window: list[int | None]
    occupancy: list[float | None]
    rate_per_s: list[float | None]
    p50_ms: list[float | None]
    p99_ms: list[float | None]
    bytes: list[int | None]
    held: list[bool | None]


class PipelineHistory(Struct, frozen=True, kw_only=True):
    """The pipeline second by second, oldest first, of 15 minutes at most, as columns."""

    t: list[int]
    bottleneck: list[str | None]
    behind: list[int | None]
    acked: list[int | None]
    stages: dict[str, StageHistory]
    performance: dict[str, float] = {}


class PartCommand(Struct, frozen=True, kw_only=True):
    """A record of `penstock.commands.<part>` that asks for something."""

    id: str
    action: str
    """hold or go."""
    stage: str


class PartAnswer(Struct, frozen=True, kw_only=True):
    """The record of the same topic that answers a command."""

    id: str
    done: bool
    held: bool
    text: str


class StageSwitched(Struct, frozen=True, kw_only=True):
    """What a part answered to a command."""

    stage: str
    held: bool
    part: str
    text: str
    performance: dict[str, float] = {}


class Waiting(Struct, frozen=True, kw_only=True):
    """One thing that waits, why, and what would help."""

    kind: str
    """topic, watcher, queue, table, stream or ingest."""
    name: str
    since: int | None
    for_ms: int | None
    state: str
    """waiting, late, error, paused or away."""
    reason: str
    """A code for programs."""
    text: str
    help: str
    """What would help; empty if time alone does."""
    link: str


class WaitingList(Struct, frozen=True, kw_only=True):
    """Everything that waits, the longest first."""

    at: int
    waiting: list[Waiting]
    total: int
    performance: dict[str, float] = {}


class VerdictFact(Struct, frozen=True, kw_only=True):
    """A fact that the verdict rests on."""

    code: str
    level: str
    text: str
    link: str = ""
    failed: FailedPartition | None = None
    """The partition that is out of service, with the damaged file and the position in it."""


class Verdict(Struct, frozen=True, kw_only=True):
    """How things stand: one sentence, one line below it, and the facts with links.

    `level` is the worst of the facts': one of `LEVELS`. `facts` has the worst first.
    """

    at: int
    level: str
    sentence: str
    line: str
    facts: list[VerdictFact]
    performance: dict[str, float] = {}
