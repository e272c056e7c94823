"""How often a unit failed in a row and when it is tried again.

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
"""How long to wait at most before an engine that is away is asked for again: it is one question,
and work goes on soon after the answer."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays from `base_ms` to `cap_ms`, and how many failures in a row suspend a table.

    A worker that dies may have been killed for reasons of its own, so deaths are counted apart and
    the first one costs no delay; but a query that kills its worker each time must end too.
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
        """How long to wait after so many failures."""
        backoff = Backoff(self.base_ms, self.cap_ms, self.jitter, math.inf)
        delay_ms = backoff.next_ms(failures, elapsed_ms=0, random=random)
        return math.ceil(delay_ms or 0)


@dataclass(frozen=True, slots=True)
class RetryState:
    """The failures of one unit since it last succeeded. Never changed."""

    failures: int = 0
    deaths: int = 0
    retry_at_ms: int | None = None
    aways: int = 0
    away: str | None = None
    """Why the engine could not be reached the last time, if that is what it waits for."""
    error: str | None = None
    """What went wrong the last time."""

    @property
    def failing(self) -> bool:
        """Whether something failed that will be tried again."""
        return self.retry_at_ms is not None

    @property
    def attempt_no(self) -> int:
        """Which try the next one is; the first is 1."""
        return self.failures + self.deaths + 1

    def failed(
        self, policy: RetryPolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """After one more retryable failure."""
        failures = self.failures + 1
        at_ms = now_ms + policy.delay_ms(failures, random)
        return replace(self, failures=failures, retry_at_ms=at_ms, away=None, error=why)

    def died(
        self, policy: RetryPolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """After the worker was lost; the first time it is tried again at once."""
        at_ms = now_ms + (policy.delay_ms(self.deaths, random) if self.deaths else 0)
        return replace(self, deaths=self.deaths + 1, retry_at_ms=at_ms, away=None, error=why)

    def collided(
        self, policy: RetryPolicy, now_ms: int, random: Random, why: str | None = None
    ) -> RetryState:
        """After someone else held a lock: a short wait that counts for nothing."""
        at_ms = now_ms + policy.delay_ms(1, random)
        return replace(self, retry_at_ms=at_ms, away=None, error=why)

    def waited(self, policy: RetryPolicy, now_ms: int, random: Random, why: str) -> RetryState:
        """After the engine could not be reached: longer and longer waits that count for nothing."""
        wait_ms = min(policy.delay_ms(self.aways + 1, random), AWAY_MS_MAX)
        return replace(self, aways=self.aways + 1, retry_at_ms=now_ms + wait_ms, away=why)

    def exhausted(self, policy: RetryPolicy) -> bool:
        """Whether it failed often enough to be suspended."""
        return self.failures >= policy.failures_max or self.deaths >= policy.deaths_max
