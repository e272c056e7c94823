"""The record of a refresh: how it was requested, how it was executed, what it cost.

The configured and the executed mode are two fields: a fallback to FULL is never recorded as
DIFFERENTIAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

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

    def __post_init__(self) -> None:
        if self.executed is Mode.AUTO:
            raise InvalidTable("expected the mode that was executed, found AUTO")
        if self.outcome is RefreshOutcome.SUCCEEDED and self.executed is None:
            raise InvalidTable("expected an executed mode for a refresh that succeeded, found none")
        if self.finished_at_ms < self.started_at_ms:
            raise InvalidTable(
                f"expected an end after the start, found {self.finished_at_ms} before "
                f"{self.started_at_ms}"
            )

    @property
    def took_ms(self) -> int:
        """From start to commit."""
        return self.finished_at_ms - self.started_at_ms

    @property
    def fell_back(self) -> bool:
        """Whether a table that allows DIFFERENTIAL was refreshed in full."""
        return self.configured is not Mode.FULL and self.executed is Mode.FULL


@dataclass(frozen=True, slots=True)
class HistorySummary:
    """Summary statistics over several refreshes of one table."""

    refreshes: int
    failures: int
    fallbacks: int
    rows_written: int
    took_ms_max: int


def summarise(records: Sequence[RefreshRecord]) -> HistorySummary:
    """Summarise several refreshes."""
    return HistorySummary(
        refreshes=sum(record.outcome is RefreshOutcome.SUCCEEDED for record in records),
        failures=sum(record.outcome is RefreshOutcome.FAILED for record in records),
        fallbacks=sum(record.fell_back for record in records),
        rows_written=sum(record.rows_written for record in records),
        took_ms_max=max((record.took_ms for record in records), default=0),
    )
