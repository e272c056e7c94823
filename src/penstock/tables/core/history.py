"""A refresh as people see it: its progress while it runs, its record when it has ended.

The configured and the executed mode are two fields: a fallback to FULL is never recorded as
DIFFERENTIAL.

>>> RefreshProgress(stages=3, stages_done=1, tasks=8, tasks_done=6).share
0.75
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from penstock.protocol.errors import InvalidTable
from penstock.tables.core.frontier import Frontier
from penstock.tables.core.model import Mode


class ReasonCode(StrEnum):
    """Why a refresh was executed in its mode."""

    AS_CONFIGURED = "as_configured"
    FIRST_LOAD = "first_load"
    QUERY_CHANGED = "query_changed"
    NOT_DIFFERENTIABLE = "not_differentiable"
    VOLATILE = "volatile"
    FULL_IS_CHEAPER = "full_is_cheaper"
    HISTORY_EXPIRED = "history_expired"
    SOURCE_RECREATED = "source_recreated"
    STATE_LOST = "state_lost"
    STATE_DISAGREES = "state_disagrees"
    COMPILER_DISAGREES = "compiler_disagrees"
    REQUESTED = "requested"


class RefreshOutcome(StrEnum):
    """How a refresh ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """One refresh of one table. `executed` is None if it ended before execution."""

    table: str
    unit_key: str
    job_id: int
    outcome: RefreshOutcome
    configured: Mode
    executed: Mode | None
    reason: ReasonCode
    started_at_ms: int
    finished_at_ms: int
    reason_text: str = ""
    rows_read: int = 0
    delta_rows: int = 0
    rows_written: int = 0
    timings_ms: tuple[tuple[str, float], ...] = ()
    frontier: Frontier = field(default_factory=Frontier)
    snapshot: int | None = None
    stale: tuple[str, ...] = ()
    choice: Mapping[str, Any] | None = None
    """How the mode was chosen: both estimates, what they were made from, and what it cost."""

    def __post_init__(self) -> None:
        if self.executed is Mode.AUTO:
            raise InvalidTable("AUTO cannot be executed: record the mode that it became")
        if self.outcome is RefreshOutcome.SUCCEEDED and self.executed is None:
            raise InvalidTable("a refresh that succeeded has an executed mode")
        if self.finished_at_ms < self.started_at_ms:
            raise InvalidTable(
                f"a refresh cannot end at {self.finished_at_ms}, before its start at "
                f"{self.started_at_ms}"
            )

    @property
    def took_ms(self) -> int:
        """From start to commit."""
        return self.finished_at_ms - self.started_at_ms


@dataclass(frozen=True, slots=True)
class RefreshProgress:
    """The progress of a running refresh. What an engine cannot report stays 0.

    `table` is the member that is being refreshed. `rows` are rows read so far. Spark creates stages
    as it goes, so their number may grow. `left_ms` is an estimate, None if there is none.
    """

    table: str = ""
    rows: int = 0
    stages: int = 0
    stages_done: int = 0
    tasks: int = 0
    tasks_done: int = 0
    elapsed_ms: int = 0
    left_ms: int | None = None

    @property
    def share(self) -> float:
        """The completed share of the known work, from 0 to 1."""
        return min(1.0, self.tasks_done / self.tasks) if self.tasks else 0.0

    def of(self, table: str) -> RefreshProgress:
        """The same progress, for a given table."""
        return replace(self, table=table)

    def plain(self) -> dict[str, Any]:
        """As a JSON-compatible dict."""
        return asdict(self)


def read_progress(found: dict[str, Any]) -> RefreshProgress:
    """Parse the output of `plain`; ignores fields added by a newer version."""
    known = {field.name for field in fields(RefreshProgress)}
    return RefreshProgress(**{key: value for key, value in found.items() if key in known})
