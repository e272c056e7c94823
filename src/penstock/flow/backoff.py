"""How long to wait before a retry, and when to stop retrying.

>>> policy = Backoff(base_ms=25 / 32, cap_ms=1_000, jitter=0.0, window_ms=30_000)
>>> [round(policy.nominal_ms(failure), 2) for failure in (1, 2, 3, 4, 8, 20)]
[0.78, 1.56, 3.12, 6.25, 100.0, 1000]
>>> policy.next_ms(3, elapsed_ms=10, random=Random(1))
3.125
>>> policy.next_ms(3, elapsed_ms=30_000, random=Random(1)) is None      # the window is over
True
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `base_ms` to `cap_ms`, minus a random share of up to `jitter`.

    `window_ms` runs from the first failure; after it there is no next delay. Out-of-range values
    are clamped: nothing negative, cap at least base, jitter between 0 and 1.
    """

    base_ms: float
    cap_ms: float
    jitter: float
    window_ms: float

    def __post_init__(self) -> None:
        base_ms = max(0.0, self.base_ms)
        object.__setattr__(self, "base_ms", base_ms)
        object.__setattr__(self, "cap_ms", max(base_ms, self.cap_ms))
        object.__setattr__(self, "jitter", min(1.0, max(0.0, self.jitter)))
        object.__setattr__(self, "window_ms", max(0.0, self.window_ms))

    def nominal_ms(self, failures: int) -> float:
        """The delay after this many failures (1 is the first), before jitter."""
        if failures < 1:
            raise ValueError(f"a delay follows at least one failure, not {failures}")
        doublings = min(failures - 1, 64)  # past any cap; keeps the power finite
        return min(self.cap_ms, self.base_ms * 2.0**doublings)

    def next_ms(self, failures: int, *, elapsed_ms: float, random: Random) -> float | None:
        """The delay before the next try, or None once the window since the first failure is over.

        The last delay is shortened so that the last try happens when the window ends.
        """
        left_ms = self.window_ms - elapsed_ms
        if left_ms <= 0:
            return None
        return min(left_ms, self.nominal_ms(failures) * (1.0 - self.jitter * random.random()))
