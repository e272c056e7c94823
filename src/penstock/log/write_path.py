"""Chooses between two paths for a group: asynchronous IO, or a blocking call on a thread.

Asynchronous IO costs the interpreter least. But the kernel completes such a write in a separate
worker, on the processor that the disk interrupts; where another program never yields that
processor, the completion comes milliseconds late. A thread's call does not depend on it. Which is
faster is not known in advance, so both are timed: by how long they left the loop idle. A loop that
was busy meanwhile sees any completion late, which says nothing about the path.

How long a path takes also varies with the size of groups and the state of the cache. So only
measurements of the same moment are compared: in a trial, asynchronous groups and calls alternate.

>>> chooser, now_ns = PathChooser(), 0
>>> while now_ns < SETTLE_NS + 40 * MS:
...     is_async = chooser.picks_async(now_ns)
...     took_ns = 3 * MS if is_async else MS // 4
...     now_ns += took_ns
...     (chooser.async_took if is_async else chooser.thread_took)(took_ns, now_ns)
>>> chooser.avoids_async(now_ns), chooser.avoids_async(now_ns + AVOID_NS_MIN)
(True, False)
"""

from __future__ import annotations

from statistics import median_low
from typing import Final

MS: Final = 1_000_000
THREAD_EVERY_NS_MIN: Final = 32 * MS
THREAD_EVERY_NS_MAX: Final = 1_024 * MS
SETTLE_NS: Final = 250 * MS
"""How long groups use the thread at first: a process that just started is slow in everything, so a
trial would decide nothing, and it would delay the first writes.
"""
AVOID_NS_MIN: Final = 4_000 * MS
AVOID_NS_MAX: Final = 32_000 * MS
LATE: Final = 2.0
"""Asynchronous writes are late when they take this many times as long as a thread's call.

Where they are permanently late the ratio is ten and more. With 1.3, a few calls that happened to be
fast disabled asynchronous writes to a good disk on every fourth start (`bench write`), and a busy
loop takes a quarter fewer writes through a thread.
"""
HOPELESS: Final = 2.5
"""This ratio ends a trial early, because all writes wait during a trial.

With 4.0, a trial took six late writes where two were proof: with 100 watchers and 1,000 writes a
second that alone was one write in a hundred of the first seconds (`bench push`).
"""
HOPELESS_ALONE: Final = 4.0
"""With this ratio, also to what calls took before, one pair is enough.

Two pairs delayed the writes of 15 ms: of three seconds at 1,000 writes a second, the slowest
hundredth.
"""
PAIRS_MIN: Final = 2
PAIRS: Final = 6
"""The pairs of a trial, and the number after which it may end early.

Their lower median counts: a single write or call that met a busy disk decides nothing.
"""
FLOOR_NS: Final = MS // 10
"""Anything shorter counts as this: with a busy loop neither path leaves it idle."""
_CLIP: Final = 3
"""A write that takes longer than this many calls counts as this many: one alone proves nothing."""


class PathChooser:
    """Picks the path of the next group from the measured times of each path.

    It begins with a trial, soon after the first group. If asynchronous writes are not late, groups
    are asynchronous, except for an occasional call: every 32 ms at first, then every second. When
    they seem late there is another trial. After a lost trial, groups use the thread for four
    seconds, then for eight, up to 32, with a trial in between.
    """

    def __init__(self, settle_ns: int = SETTLE_NS) -> None:
        self._settle_ns = settle_ns
        self._is_trial = True
        self._pair_ns: int | None = None  # what the asynchronous half of a pair took
        self._ratios: list[float] = []  # of the pairs of this trial
        self._threads: list[int] = []
        self._async_ns = 0.0  # both are averages, while there is no trial
        self._thread_ns = 0.0
        self._thread_at_ns = 0
        self._thread_every_ns = THREAD_EVERY_NS_MIN
        self._avoid_until_ns: int | None = None  # until the first group
        self._avoid_ns = AVOID_NS_MIN

    def picks_async(self, now_ns: int) -> bool:
        """Whether the next group should use asynchronous IO."""
        if self._avoid_until_ns is None:
            self._avoid_until_ns = now_ns + self._settle_ns
        if now_ns < self._avoid_until_ns:
            return False
        if self._is_trial:
            return self._pair_ns is None
        return now_ns < self._thread_at_ns

    def avoids_async(self, now_ns: int) -> bool:
        """Whether groups use the thread: at first, and while asynchronous ones are late."""
        return self._avoid_until_ns is None or now_ns < self._avoid_until_ns

    def async_took(self, took_ns: int, now_ns: int) -> None:
        """Record how long the loop was idle for an asynchronous write, since the previous one."""
        if self.avoids_async(now_ns):
            return
        if self._is_trial:
            if self._pair_ns is None:
                self._pair_ns = took_ns
            return
        self._async_ns += (min(took_ns, _CLIP * self._thread_ns) - self._async_ns) / 8
        if self._async_ns > LATE * self._thread_ns:
            self._begin_trial()

    def thread_took(self, took_ns: int, now_ns: int) -> None:
        """Record how long the loop was idle for a call on the thread."""
        took_ns = max(took_ns, FLOOR_NS)
        if self._is_trial and not self.avoids_async(now_ns):
            if self._pair_ns is not None:
                async_ns, self._pair_ns = max(self._pair_ns, FLOOR_NS), None
                self._ratios.append(async_ns / took_ns)
                self._threads.append(took_ns)
                if async_ns > HOPELESS_ALONE * max(took_ns, self._thread_ns or async_ns):
                    self._lose_trial(now_ns)
                else:
                    self._judge(now_ns)
            return
        known_ns = self._thread_ns or took_ns
        self._thread_ns = known_ns + (min(took_ns, _CLIP * known_ns) - known_ns) / 4
        self._thread_at_ns = now_ns + self._thread_every_ns
        self._thread_every_ns = min(2 * self._thread_every_ns, THREAD_EVERY_NS_MAX)

    def _begin_trial(self) -> None:
        self._is_trial, self._pair_ns = True, None
        self._ratios, self._threads = [], []

    def _judge(self, now_ns: int) -> None:
        pairs = len(self._ratios)
        if pairs < PAIRS_MIN:
            return
        if median_low(self._ratios) > (LATE if pairs >= PAIRS else HOPELESS):
            self._lose_trial(now_ns)
        elif pairs >= PAIRS:
            self._is_trial = False
            self._async_ns = self._thread_ns = max(FLOOR_NS, median_low(self._threads))
            self._avoid_ns = AVOID_NS_MIN
            self._thread_every_ns = THREAD_EVERY_NS_MIN
            self._thread_at_ns = now_ns + self._thread_every_ns

    def _lose_trial(self, now_ns: int) -> None:
        self._avoid_until_ns = now_ns + self._avoid_ns
        self._avoid_ns = min(2 * self._avoid_ns, AVOID_NS_MAX)
        self._begin_trial()
