"""Which of two ways to write is the quicker one: found by trying both, again and again.

A disk that writes by itself costs the interpreter least, and a thread's call the most. But the
kernel ends such a write in a worker of its own, on the processor that the disk interrupts; where
somebody else never leaves that processor, the worker gets its turn milliseconds later. A call does
not depend on it. So the two are compared as writers feel them.

>>> ways = Ways()
>>> ways.flies(0)
True
>>> ways.flew(3_400, 0)
>>> for now_ns in range(CHECKS):
...     assert not ways.flies(now_ns)
...     ways.called(200, now_ns)
>>> ways.rests(4), ways.rests(4 + REST_NS_MIN)
(True, False)
"""

from __future__ import annotations

from statistics import median
from typing import Final

MS: Final = 1_000_000
CALL_EVERY_NS: Final = 1_000 * MS
REST_NS_MIN: Final = 4_000 * MS
REST_NS_MAX: Final = 32_000 * MS
LATE: Final = 2.0
"""Flights are late when they take so many times as long as a call. Where they are late for good it is
ten times and more. With 1.3, a few calls that happened to be quick grounded a good disk every fourth
start (`bench write`), and a busy loop takes a quarter fewer writes through a thread."""
CHECKS: Final = 4
"""So many calls are made to see whether flights that seem late are: a call takes longer too when
groups are larger or the loop has more to do. Their median counts: one that met a busy disk would
make late flights look good for seconds."""
HOPELESS: Final = 8
"""On trial, one flight that takes so many times as long as calls do just after it ends the trial. All
that are written meanwhile wait for that flight, and a second one would tell nothing new. It is not
compared with calls of before: those of an idle loop are quick, and the first flight under load takes
as long as a pass of the loop (64 writers then had calls for seconds, and a quarter fewer writes)."""
_TRIAL: Final = 8
_CLIP: Final = 3
"""One that takes longer than so many calls counts as if it had not: a single one proves nothing."""


class Ways:
    """Says whether the next group should fly or be a call; is told how long each of them took.

    The first group flies and a few after it are calls, to know how long each takes. Then groups
    fly, on trial at first, and one in a second is a call. When flights seem late a few calls are
    made, and if flights took longer than these, all groups are calls for four seconds, then for
    eight, up to 32, with a few flights in between to see whether it was better to fly again.
    """

    def __init__(self) -> None:
        self.call_ns = 0.0  # 0 until it is known
        self.flight_ns = 0.0
        self._call_at_ns = 1 << 62
        self._checks: list[int] | None = None  # calls so far, before flights are judged
        self._limit: float = LATE  # how many calls a flight may take when they are
        self._rests_until_ns = -1
        self._rest_ns = REST_NS_MIN
        self._on_trial = _TRIAL

    def flies(self, now_ns: int) -> bool:
        """Whether to let the disk write the next group by itself."""
        return self._checks is None and self._rests_until_ns <= now_ns < self._call_at_ns

    def rests(self, now_ns: int) -> bool:
        """Whether groups are calls because flights were late."""
        return now_ns < self._rests_until_ns

    def called(self, took_ns: int, now_ns: int) -> None:
        """A call took so long."""
        self._call_at_ns = now_ns + CALL_EVERY_NS
        if self._checks is not None or not self.call_ns:
            self._check(took_ns, now_ns)
        else:
            self.call_ns += (min(took_ns, _CLIP * self.call_ns) - self.call_ns) / 4
        if self.rests(now_ns):
            self.flight_ns = self.call_ns  # a new trial begins without the old flights

    def flew(self, took_ns: int, now_ns: int) -> None:
        """A flight took so long, as far as the loop could see, after the one before it landed."""
        if self._checks is not None or self.rests(now_ns):
            return
        if self._on_trial:
            self._on_trial -= 1
            if took_ns > HOPELESS * self.call_ns:
                self.flight_ns, self._checks, self._limit = float(took_ns), [], HOPELESS
                return
            if not self._on_trial:
                self._rest_ns = REST_NS_MIN
        self.flight_ns += (min(took_ns, _CLIP * self.call_ns) - self.flight_ns) / 8
        if self.flight_ns > LATE * self.call_ns:
            self._checks, self._limit = [], LATE

    def _check(self, took_ns: int, now_ns: int) -> None:
        self._checks = [*(self._checks or ()), took_ns]
        if len(self._checks) < CHECKS:
            return
        self.call_ns = max(1.0, median(self._checks))
        self._checks = None
        if self.flight_ns > self._limit * self.call_ns:
            self._rest(now_ns)
        elif self._limit == HOPELESS:
            self.flight_ns = self.call_ns

    def _rest(self, now_ns: int) -> None:
        self.flight_ns = self.call_ns
        self._rests_until_ns = now_ns + self._rest_ns
        self._rest_ns = min(2 * self._rest_ns, REST_NS_MAX)
        self._on_trial = _TRIAL
