"""Which failures a retry can fix, and when the unit is retried.

Failures are recognised by the names that Spark and Penstock give them. One is permanent if the
query itself is wrong: it does not parse, names something missing, mixes types, or computes more
than its types hold. An unreachable engine is not the fault of any table. Everything else may pass.
Data that a function rejects (a division by zero) may be gone with the next change, so it is retried
and eventually suspended.

>>> classify(EngineFailure("AnalysisException", condition="UNRESOLVED_COLUMN")).value
'permanent'
>>> classify(EngineFailure("SparkException", condition="FAILED_READ_FILE.NO_HINT")).value
'retryable'
>>> policy = FailurePolicy(jitter=0.0)
>>> once = RetryState().failed(policy, now_ms=0, random=Random(1))
>>> once.retry_at_ms, once.failed(policy, now_ms=1_000, random=Random(1)).retry_at_ms
(1000, 3000)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected


class FailureKind(StrEnum):
    """What a failure means for its table."""

    PERMANENT = "permanent"
    RETRYABLE = "retryable"
    COLLISION = "collision"
    AWAY = "away"
    LOST = "lost"
    """The engine ended during the refresh: perhaps because of it, perhaps not."""

    @property
    def blameless(self) -> bool:
        """Whether it says nothing certain about the table: not recorded in its history."""
        return self in (FailureKind.COLLISION, FailureKind.AWAY, FailureKind.LOST)


class EngineFailure(NamedTuple):
    """An error as data: its class name, and for Spark its condition and SQLSTATE."""

    error_class: str
    condition: str | None = None
    sql_state: str | None = None


PERMANENT: Final = FailureKind.PERMANENT
RETRYABLE: Final = FailureKind.RETRYABLE
COLLISION: Final = FailureKind.COLLISION
AWAY: Final = FailureKind.AWAY
LOST: Final = FailureKind.LOST

CONDITIONS: Final = {
    # a missing name
    "CATALOG_NOT_FOUND": PERMANENT,
    "COLUMN_NOT_FOUND": PERMANENT,
    "FIELD_NOT_FOUND": PERMANENT,
    "ROUTINE_NOT_FOUND": PERMANENT,
    "SCHEMA_NOT_FOUND": PERMANENT,
    "TABLE_OR_VIEW_NOT_FOUND": PERMANENT,
    "UNRESOLVED_COLUMN": PERMANENT,
    "UNRESOLVED_FIELD": PERMANENT,
    "UNRESOLVED_MAP_KEY": PERMANENT,
    "UNRESOLVED_ROUTINE": PERMANENT,
    "UNRESOLVED_USING_COLUMN_FOR_JOIN": PERMANENT,
    "UNRESOLVABLE_TABLE_VALUED_FUNCTION": PERMANENT,
    # an ambiguous name
    "AMBIGUOUS_COLUMN_OR_FIELD": PERMANENT,
    "AMBIGUOUS_COLUMN_REFERENCE": PERMANENT,
    "AMBIGUOUS_LATERAL_COLUMN_ALIAS": PERMANENT,
    "AMBIGUOUS_REFERENCE": PERMANENT,
    "AMBIGUOUS_REFERENCE_TO_FIELDS": PERMANENT,
    "COLUMN_ALREADY_EXISTS": PERMANENT,
    # incompatible types or shapes
    "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE": PERMANENT,
    "DATATYPE_MISMATCH": PERMANENT,
    "INCOMPARABLE_PIVOT_COLUMN": PERMANENT,
    "INCOMPATIBLE_COLUMN_TYPE": PERMANENT,
    "INVALID_EXTRACT_BASE_FIELD_TYPE": PERMANENT,
    "INVALID_EXTRACT_FIELD_TYPE": PERMANENT,
    "NUM_COLUMNS_MISMATCH": PERMANENT,
    "UNEXPECTED_INPUT_TYPE": PERMANENT,
    "WRONG_NUM_ARGS": PERMANENT,
    # an invalid query
    "GROUP_BY_AGGREGATE": PERMANENT,
    "GROUP_BY_POS_OUT_OF_RANGE": PERMANENT,
    "INVALID_SUBQUERY_EXPRESSION": PERMANENT,
    "INVALID_WHERE_CONDITION": PERMANENT,
    "MISSING_AGGREGATION": PERMANENT,
    "MISSING_GROUP_BY": PERMANENT,
    "NESTED_AGGREGATE_FUNCTION": PERMANENT,
    "ORDER_BY_POS_OUT_OF_RANGE": PERMANENT,
    "PARSE_EMPTY_STATEMENT": PERMANENT,
    "PARSE_SYNTAX_ERROR": PERMANENT,
    "UNSUPPORTED_EXPR_FOR_OPERATOR": PERMANENT,
    "UNSUPPORTED_FEATURE": PERMANENT,
    "UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY": PERMANENT,
    # a type that is too narrow for what the query computes
    "ARITHMETIC_OVERFLOW": PERMANENT,
    # otherwise of a permanent class, but caused by the environment, not the query
    "CANNOT_LOAD_FUNCTION_CLASS": RETRYABLE,
    "INVALID_HANDLE": RETRYABLE,
    "PATH_NOT_FOUND": RETRYABLE,
    "UNABLE_TO_INFER_SCHEMA": RETRYABLE,
}
"""Spark's error conditions, without the part after the dot. Checked before anything else."""

ERROR_CLASSES: Final = {
    "AnalysisException": PERMANENT,
    "ParseException": PERMANENT,
    "SparkNoSuchElementException": RETRYABLE,
    "UnsupportedOperationException": PERMANENT,
    # Penstock's own errors, by what the caller should do next
    "CatalogAway": AWAY,
    "Corrupt": PERMANENT,
    "EngineAway": AWAY,
    "EngineLost": LOST,
    "InvalidQuery": PERMANENT,
    "InvalidTable": PERMANENT,
    "LockHeld": COLLISION,
    "Rejected": PERMANENT,
    "TableNotFound": PERMANENT,
}
"""Error classes, for errors whose condition is not listed."""

_QUERY_IS_WRONG: Final = "42"
"""SQLSTATEs of this class are syntax errors and broken references."""


def classify(failure: EngineFailure) -> FailureKind:
    """Classify a failure: by condition, then SQLSTATE, then class; otherwise it is retryable."""
    condition = (failure.condition or "").partition(".")[0]
    if condition in CONDITIONS:
        return CONDITIONS[condition]
    if (failure.sql_state or "").startswith(_QUERY_IS_WRONG):
        return PERMANENT
    return ERROR_CLASSES.get(failure.error_class.rpartition(".")[2], RETRYABLE)


AWAY_MS_MAX: Final = 1_000
"""Maximum delay before an unreachable engine is probed again.

A probe is cheap, and work resumes soon after it succeeds.
"""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Delays from `base_ms` to `cap_ms`, and how many consecutive failures suspend a table.

    A worker may die for reasons unrelated to its query, so deaths are counted separately and the
    first one causes no delay; but a query that kills its worker each time must be stopped too. The
    same holds for an engine that others run: `losses_max` counts how often it was lost under a
    unit. There are fewer of those, because a unit that lost it once runs alone from then on.
    """

    base_ms: int = 1_000
    cap_ms: int = 60_000
    jitter: float = 0.2
    failures_max: int = 3
    deaths_max: int = 10
    losses_max: int = 3

    def __post_init__(self) -> None:
        for name in ("base_ms", "cap_ms", "failures_max", "deaths_max", "losses_max"):
            if getattr(self, name) < 1:
                raise Rejected(f"{name} must be at least 1, not {getattr(self, name)}")

    def delay_ms(self, failures: int, random: Random) -> int:
        """The delay after this many failures."""
        backoff = Backoff(self.base_ms, self.cap_ms, self.jitter, math.inf)
        delay_ms = backoff.next_ms(failures, elapsed_ms=0, random=random)
        return math.ceil(delay_ms or 0)


@dataclass(frozen=True, slots=True)
class RetryState:
    """The failures of one unit since it last succeeded. Immutable."""

    failures: int = 0
    deaths: int = 0
    losses: int = 0
    retry_at_ms: int | None = None
    aways: int = 0
    away: str | None = None
    """Why the engine was unreachable, if that is what the unit waits for."""
    error: str | None = None
    """The last error."""

    @property
    def failing(self) -> bool:
        """Whether a failure will be retried."""
        return self.retry_at_ms is not None

    @property
    def attempt_no(self) -> int:
        """The number of the next attempt, starting at 1."""
        return self.failures + self.deaths + self.losses + 1

    def failed(
        self, policy: FailurePolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """The state after another retryable failure."""
        failures = self.failures + 1
        at_ms = now_ms + policy.delay_ms(failures, random)
        return replace(self, failures=failures, retry_at_ms=at_ms, away=None, error=why)

    def died(
        self, policy: FailurePolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """The state after a lost worker; the first time it is retried immediately."""
        at_ms = now_ms + (policy.delay_ms(self.deaths, random) if self.deaths else 0)
        return replace(self, deaths=self.deaths + 1, retry_at_ms=at_ms, away=None, error=why)

    def collided(
        self, policy: FailurePolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """The state after a lock collision: a short delay that does not count as a failure."""
        at_ms = now_ms + policy.delay_ms(1, random)
        return replace(self, retry_at_ms=at_ms, away=None, error=why)

    def waited(self, policy: FailurePolicy, now_ms: int, random: Random, why: str) -> RetryState:
        """The state after an unreachable engine: growing delays that do not count as failures."""
        wait_ms = min(policy.delay_ms(self.aways + 1, random), AWAY_MS_MAX)
        return replace(self, aways=self.aways + 1, retry_at_ms=now_ms + wait_ms, away=why)

    def lost(self, policy: FailurePolicy, now_ms: int, random: Random, why: str) -> RetryState:
        """The state after the engine ended during the refresh: waits for it as in `waited`."""
        return replace(self.waited(policy, now_ms, random, why), losses=self.losses + 1)

    def exhausted(self, policy: FailurePolicy) -> bool:
        """Whether it failed often enough to be suspended."""
        return (
            self.failures >= policy.failures_max
            or self.deaths >= policy.deaths_max
            or self.losses >= policy.losses_max
        )
