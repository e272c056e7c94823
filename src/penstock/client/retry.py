"""When a failed call is retried, and which error it ends with when it is not.

A call whose outcome is not known is only sent again if doing it twice does no harm: reads, puts,
deletes, acknowledgements, and writes with an idempotency key. A call that changes something ends
with an error of the group `Unknown` if one of its tries may have taken effect and no later answer
told; with any other error, it surely changed nothing.

>>> from penstock.client.errors import Disconnected
>>> from penstock.protocol.errors import Throttled
>>> tries = Tries(RetryPolicy(base_ms=10, jitter=0), repeatable=False, window_ms=1_000)
>>> tries.failed(Throttled("busy", retry_after_ms=700), elapsed_ms=0, random=Random(1))
700.0
>>> tries.failed(Disconnected("gone"), elapsed_ms=700, random=Random(1)) is None
True
>>> type(tries.verdict()).__name__
'OutcomeUnknown'

While a cluster elects a leader the delays do not grow:

>>> tries = Tries(RetryPolicy(base_ms=50, jitter=0), repeatable=True, window_ms=10_000)
>>> [tries.failed(NoLeader("none"), elapsed_ms=0, random=Random(1)) for _ in range(5)]
[50.0, 100.0, 200.0, 200.0, 200.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from penstock.client.errors import unanswered
from penstock.flow.backoff import Backoff
from penstock.kernel.errors import Rejected, Unknown
from penstock.protocol.errors import (
    CallError,
    CommitConflict,
    NoLeader,
    Outcome,
    OutcomeUnknown,
    PreconditionFailed,
    RecordTooLarge,
    RefusedByRule,
    ServerUnavailable,
    Throttled,
    TopicFull,
)

NO_LEADER_MS: Final = 200.0
"""The longest delay while a cluster elects a leader, which takes a second or two: longer delays
would make that three or four."""
OnTrouble = Callable[[str | None], None]
"""Gets the reason when something has to be retried, once per outage, and None when it worked."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays double from `base_ms` to `cap_ms`, less a random share; the call's time is the limit.

    A `tries_max` of 1 never retries; None retries for as long as there is time.
    """

    base_ms: float = 25
    cap_ms: float = 2_000
    jitter: float = 0.5
    tries_max: int | None = None

    def __post_init__(self) -> None:
        if self.tries_max is not None and self.tries_max < 1:
            raise Rejected(f"tries_max must be at least 1, not {self.tries_max}")


class Tries:
    """The tries of one call: its failures so far, and what they mean for its outcome."""

    __slots__ = (
        "_backoff", "_changes", "_failures", "_in_doubt", "_key", "_last", "_policy",
        "_repeatable", "_window_ms",
    )  # fmt: skip

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        repeatable: bool,
        window_ms: float,
        changes: bool = True,
        idempotency_key: str | None = None,
    ) -> None:
        self._policy = policy
        self._backoff = Backoff(policy.base_ms, policy.cap_ms, policy.jitter, window_ms)
        self._window_ms = window_ms
        self._repeatable = repeatable
        self._changes = changes
        self._key = idempotency_key
        self._failures = 0
        self._in_doubt = False
        self._last: CallError | None = None

    def failed(self, error: CallError, *, elapsed_ms: float, random: Random) -> float | None:
        """Record a failure; returns the delay before the next try, or None if there is none."""
        if self._last is None or elapsed_ms < self._window_ms:
            self._last = error  # a mere timeout would hide the real cause
        self._failures += 1
        self._in_doubt = self._in_doubt or error.outcome is Outcome.UNKNOWN
        tries_max = self._policy.tries_max
        if tries_max is not None and self._failures >= tries_max:
            return None
        if not self._worth_another(error):
            return None
        delay_ms = self._backoff.nominal_ms(self._failures)
        if isinstance(error, NoLeader):
            delay_ms = min(delay_ms, NO_LEADER_MS)
        delay_ms *= 1.0 - self._backoff.jitter * random.random()
        delay_ms = max(delay_ms, float(getattr(error, "retry_after_ms", None) or 0))
        return delay_ms if elapsed_ms + delay_ms < self._window_ms else None

    def verdict(self) -> CallError:
        """The call's final error: the last one, unless some try may have taken effect."""
        error = self._last
        if error is None:
            raise ValueError("no try has failed yet")
        if not (self._changes and self._in_doubt):
            return error
        if self._failures == 1 and isinstance(error, Unknown) and self._key is None:
            return error  # its class already says so, and more about the reason
        if self._key is not None and settles(error):
            return error
        return self._unknown(error)

    def _unknown(self, error: CallError) -> OutcomeUnknown:
        tries = "the first try" if self._failures == 1 else f"{self._failures} tries"
        hint = f"; its idempotency key is {self._key!r}" if self._key else ""
        return unanswered(
            f"no certain answer to {tries}: the request may or may not have been done{hint} "
            f"({error})",
            cause=error,
            idempotency_key=self._key,
        )

    def _worth_another(self, error: CallError) -> bool:
        if error.outcome is Outcome.UNKNOWN:
            return self._repeatable and isinstance(error, ServerUnavailable | OutcomeUnknown)
        return isinstance(error, Throttled | ServerUnavailable)


def settles(error: CallError) -> bool:
    """Whether an answer to a repeated write also tells that its earlier tries had no effect.

    Only what the server says after it has looked for the key does. Everything else may be said
    of a write that it has already taken.
    """
    after_the_key = (TopicFull, RecordTooLarge, CommitConflict, PreconditionFailed, RefusedByRule)
    return error.outcome is Outcome.DEFINITE and isinstance(error, after_the_key)
