"""Consecutive failures of a unit, and when it is retried.

>>> from random import Random
>>> policy = RetryPolicy(jitter=0.0)
>>> once = RetryState().failed(policy, now_ms=0, random=Random(1))
>>> once.retry_at_ms, once.failed(policy, now_ms=1_000, random=Random(1)).retry_at_ms
(1000, 3000)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected

AWAY_MS_MAX: Final = 1_000
"""Maximum delay before an unreachable engine is probed again.

A probe is cheap, and work resumes soon after it succeeds.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays from `base_ms` to `cap_ms`, and how many consecutive failures suspend a table.

    A worker may die for reasons unrelated to its query, so deaths are counted separately and the
    first one causes no delay; but a query that kills its worker each time must be stopped too.
    """

    base_ms: int = 1_000
    cap_ms: int = 60_000
    jitter: float = 0.2
    failures_max: int = 3
    deaths_max: int = 10

    def __post_init__(self) -> None:
        for name in ("base_ms", "cap_ms", "failures_max", "deaths_max"):
            if getattr(self, name) < 1:
                raise Rejected(f"expected {name} of at least 1, found {getattr(self, name)}")

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
        return self.failures + self.deaths + 1

    def failed(
        self, policy: RetryPolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """The state after another retryable failure."""
        failures = self.failures + 1
        at_ms = now_ms + policy.delay_ms(failures, random)
        return replace(self, failures=failures, retry_at_ms=at_ms, away=None, error=why)

    def died(
        self, policy: RetryPolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """The state after a lost worker; the first time it is retried immediately."""
        at_ms = now_ms + (policy.delay_ms(self.deaths, random) if self.deaths else 0)
        return replace(self, deaths=self.deaths + 1, retry_at_ms=at_ms, away=None, error=why)

    def collided(
        self, policy: RetryPolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """The state after a lock collision: a short delay that does not count as a failure."""
        at_ms = now_ms + policy.delay_ms(1, random)
        return replace(self, retry_at_ms=at_ms, away=None, error=why)

    def waited(self, policy: RetryPolicy, now_ms: int, random: Random, why: str) -> RetryState:
        """The state after an unreachable engine: growing delays that do not count as failures."""
        wait_ms = min(policy.delay_ms(self.aways + 1, random), AWAY_MS_MAX)
        return replace(self, aways=self.aways + 1, retry_at_ms=now_ms + wait_ms, away=why)

    def exhausted(self, policy: RetryPolicy) -> bool:
        """Whether it failed often enough to be suspended."""
        return self.failures >= policy.failures_max or self.deaths >= policy.deaths_max
