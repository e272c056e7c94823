"""Chooses between two ways to write a group: asynchronous IO, or a blocking call on a thread.

Asynchronous IO costs the interpreter least. But the kernel completes such a write in a worker of
its own, on the processor that the disk interrupts; where another program never leaves that
processor, the completion comes milliseconds late. A thread's call does not depend on it. No machine
says beforehand which is quicker, so both are timed, as writers feel them, again and again.

>>> chooser = PathChooser()
>>> chooser.picks_async(0)
True
>>> chooser.async_took(3_400, 0)
>>> for now_ns in range(CHECKS):
...     assert not chooser.picks_async(now_ns)
...     chooser.thread_took(200, now_ns)
>>> chooser.avoids_async(4), chooser.avoids_async(4 + AVOID_NS_MIN)
(True, False)
"""

from __future__ import annotations

from statistics import median
from typing import Final

MS: Final = 1_000_000
THREAD_EVERY_NS: Final = 1_000 * MS
AVOID_NS_MIN: Final = 4_000 * MS
AVOID_NS_MAX: Final = 32_000 * MS
LATE: Final = 2.0
"""Asynchronous writes are late when they take so many times as long as a thread's call. Where they
are late for good it is ten times and more. With 1.3, a few calls that happened to be quick grounded
a good disk on every fourth start (`bench write`), and a busy loop takes a quarter fewer writes
through a thread."""
CHECKS: Final = 4
"""So many calls are made to see whether asynchronous writes that seem late are: a call takes longer
too when groups are larger or the loop has more to do. Their median counts: one that met a busy disk
would make late writes look good for seconds."""
HOPELESS: Final = 8
"""On trial, one write that takes so many times as long as calls do just after it ends the trial.
Everything that is written meanwhile waits for it, and a second one would tell nothing new. It is
not compared with earlier calls: those of an idle loop are quick, and the first write under load
takes as long as a pass of the loop (64 writers then used the thread for seconds, with a quarter
fewer writes)."""
_TRIAL: Final = 8
_CLIP: Final = 3
"""A write that takes longer than so many calls counts as so many: a single one proves nothing."""


class PathChooser:
    """Picks the path of the next group; is told how long each one took.

    The first group is asynchronous and a few after it use the thread, to know how long each takes.
    Then groups are asynchronous, on trial at first, and one in a second uses the thread. When the
    asynchronous ones seem late a few calls are made; if these were quicker, all groups use the
    thread for four seconds, then for eight, up to 32, with a short trial in between.
    """

    def __init__(self) -> None:
        self.thread_ns = 0.0  # 0 until it is known
        self.async_ns = 0.0
        self._thread_at_ns = 1 << 62
        self._checks: list[int] | None = None  # calls, before asynchronous writes are judged
        self._limit: float = LATE  # how many calls an asynchronous write may take then
        self._avoid_until_ns = -1
        self._avoid_ns = AVOID_NS_MIN
        self._on_trial = _TRIAL

    def picks_async(self, now_ns: int) -> bool:
        """Whether the next group should use asynchronous IO."""
        return self._checks is None and self._avoid_until_ns <= now_ns < self._thread_at_ns

    def avoids_async(self, now_ns: int) -> bool:
        """Whether groups use the thread because asynchronous ones were late."""
        return now_ns < self._avoid_until_ns

    def thread_took(self, took_ns: int, now_ns: int) -> None:
        """A call on the thread took so long."""
        self._thread_at_ns = now_ns + THREAD_EVERY_NS
        if self._checks is not None or not self.thread_ns:
            self._check(took_ns, now_ns)
        else:
            self.thread_ns += (min(took_ns, _CLIP * self.thread_ns) - self.thread_ns) / 4
        if self.avoids_async(now_ns):
            self.async_ns = self.thread_ns  # the next trial begins without the old figures

    def async_took(self, took_ns: int, now_ns: int) -> None:
        """An asynchronous write took so long, as the loop saw it, after the one before it ended."""
        if self._checks is not None or self.avoids_async(now_ns):
            return
        if self._on_trial:
            self._on_trial -= 1
            if took_ns > HOPELESS * self.thread_ns:
                self.async_ns, self._checks, self._limit = float(took_ns), [], HOPELESS
                return
            if not self._on_trial:
                self._avoid_ns = AVOID_NS_MIN
        self.async_ns += (min(took_ns, _CLIP * self.thread_ns) - self.async_ns) / 8
        if self.async_ns > LATE * self.thread_ns:
            self._checks, self._limit = [], LATE

    def _check(self, took_ns: int, now_ns: int) -> None:
        self._checks = [*(self._checks or ()), took_ns]
        if len(self._checks) < CHECKS:
            return
        self.thread_ns = max(1.0, median(self._checks))
        self._checks = None
        if self.async_ns > self._limit * self.thread_ns:
            self._avoid(now_ns)
        elif self._limit == HOPELESS:
            self.async_ns = self.thread_ns

    def _avoid(self, now_ns: int) -> None:
        self.async_ns = self.thread_ns
        self._avoid_until_ns = now_ns + self._avoid_ns
        self._avoid_ns = min(2 * self._avoid_ns, AVOID_NS_MAX)
        self._on_trial = _TRIAL
