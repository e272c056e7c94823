"""Which of two ways to write is the quicker one: found by trying both, again and again.

A disk that writes by itself costs the interpreter least, and a thread's call the most. But the
kernel ends such a write in a worker of its own, on the processor that the disk interrupts; where
somebody else never leaves that processor, the worker gets its turn milliseconds later. A call does
not depend on it. So the two are compared as writers feel them.

>>> ways = Ways()
>>> ways.flies(0)
True
>>> ways.called(200, 0)
>>> for now_ns in range(8):
...     ways.flew(3_400, now_ns)
>>> ways.flies(8)
False
>>> for now_ns in range(8, 12):
...     ways.called(200, now_ns)
>>> ways.rests(12), ways.rests(12 + REST_NS_MIN)
(True, False)
"""

from __future__ import annotations

from typing import Final

MS: Final = 1_000_000
FIRST_CALL_AFTER_NS: Final = 100 * MS
CALL_EVERY_NS: Final = 1_000 * MS
REST_NS_MIN: Final = 1_000 * MS
REST_NS_MAX: Final = 32_000 * MS
LATE: Final = 1.3
"""Flights are late when they take so many times as long as a call."""
CHECKS: Final = 4
"""So many calls are made to see whether flights that seem late are: a call takes longer too when
groups are larger or the loop has more to do."""
_TRIAL: Final = 8
_CLIP: Final = 3
"""One that takes longer than so many calls counts as if it had not: a single one proves nothing."""


class Ways:
    """Says whether the next group should fly or be a call; is told how long each of them took.

    Groups fly, and one in a second is a call, to know how long that takes. When flights seem late a
    few calls are made, and if flights took longer than these, all groups are calls for a second,
    then for two, up to 32, with a few flights in between to see whether it was better to fly again.
    """

    def __init__(self) -> None:
        self.call_ns = 0.0  # 0 until one was made
        self.flight_ns = 0.0
        self._call_at_ns = -1
        self._checks = 0  # calls that are still to be made before flights are judged
        self._rests_until_ns = -1
        self._rest_ns = REST_NS_MIN
        self._on_trial = 0

    def flies(self, now_ns: int) -> bool:
        """Whether to let the disk write the next group by itself."""
        if self._call_at_ns < 0:
            self._call_at_ns = now_ns + FIRST_CALL_AFTER_NS
        return not self._checks and self._rests_until_ns <= now_ns < self._call_at_ns

    def rests(self, now_ns: int) -> bool:
        """Whether groups are calls because flights were late."""
        return now_ns < self._rests_until_ns

    def called(self, took_ns: int, now_ns: int) -> None:
        """A call took so long."""
        self._call_at_ns = now_ns + CALL_EVERY_NS
        if self._checks:
            self.call_ns += took_ns / CHECKS
            self._checks -= 1
            if not self._checks and self.flight_ns > LATE * self.call_ns:
                self._rest(now_ns)
        elif self.call_ns:
            self.call_ns += (min(took_ns, _CLIP * self.call_ns) - self.call_ns) / 4
        else:
            self.call_ns = self.flight_ns = float(took_ns)
        if self.rests(now_ns):
            self.flight_ns = self.call_ns  # a new trial begins without the old flights

    def flew(self, took_ns: int, now_ns: int) -> None:
        """A flight took so long, as far as the loop could see, after the one before it landed."""
        if not self.call_ns or self._checks or self.rests(now_ns):
            return
        self.flight_ns += (min(took_ns, _CLIP * self.call_ns) - self.flight_ns) / 8
        if self.flight_ns > LATE * self.call_ns:
            self._checks, self.call_ns = CHECKS, 0.0
        elif self._on_trial:
            self._on_trial -= 1
            if not self._on_trial:
                self._rest_ns = REST_NS_MIN

    def _rest(self, now_ns: int) -> None:
        self._rests_until_ns = now_ns + self._rest_ns
        self._rest_ns = min(2 * self._rest_ns, REST_NS_MAX)
        self._on_trial = _TRIAL
