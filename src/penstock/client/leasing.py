"""The jobs of a work stream that are ours: how long for, which to hand out, which to ask for again.

The server tells when a lease ends by its own clock, which may be wrong by any amount here. Times
are therefore turned into readings of the local monotonic clock, and always so that the lease ends
no later than we believe: it began no earlier than the request that opened the stream was sent, and
an extended one no earlier than the request to extend it. The answer to the latter also tells how
far the server's clock is ahead, so that a job that was sent long before it was read is known to be
old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from penstock.protocol.answers import ClaimedJob, Extended

RENEW_SHARE: Final = 0.5
"""So much of a lease is left when it is extended."""
HAND_OUT_SHARE: Final = 0.25
"""With less than this left, a job is not handed out before its lease was extended."""
TOGETHER_SHARE: Final = 0.125
"""Leases that are due within this share are extended in the same request."""
RETRY_SHARE: Final = 0.125
"""After a failure an extension is tried again when so much more of the lease is over."""
RETRY_S_MIN: Final = 0.05
JOBS_MAX: Final = 1_000
"""More cannot be extended in one request."""


class Lease:
    """A job that is ours, as far as we know."""

    __slots__ = ("deadline_s", "is_wanted", "job", "lease_ms", "lost", "renew_at_s", "settled")

    def __init__(self, job: ClaimedJob, lease_ms: int, deadline_s: float) -> None:
        self.job = job
        self.lost = False
        """Whether the server said that it is no longer ours."""
        self.settled = False
        """Whether it was acknowledged or given back."""
        self.is_wanted = True
        """Whether the program still has the job, or will get it."""
        self.hold(lease_ms, deadline_s)

    def hold(self, lease_ms: int, deadline_s: float) -> None:
        """The lease lasts until then."""
        self.lease_ms = lease_ms
        self.deadline_s = deadline_s
        self.renew_at_s = deadline_s - RENEW_SHARE * lease_ms / 1_000


class Leases:
    """Jobs in the order they came, those handed out, and what is due for each. Does no IO.

    With `extends` False leases are left to the program, and a job is handed out as long as it does
    not look old beside the job that came here fastest.
    """

    def __init__(self, *, extends: bool) -> None:
        self._extends = extends
        self._ready: deque[Lease] = deque()
        self._held: list[Lease] = []
        self._opened_s = 0.0
        self._ahead_ms: float | None = None

    def opened(self, sent_s: float) -> None:
        """A stream was asked for then; of its server's clock nothing is known yet."""
        self._opened_s = sent_s
        self._ahead_ms = None

    def stream_lost(self) -> None:
        """The server gives back what was out on the stream, but may not have noticed yet."""
        self._held = [lease for lease in self._held if lease not in self._ready]
        self._ready.clear()
        for lease in self._held:
            lease.renew_at_s = 0.0

    def received(self, job: ClaimedJob, lease_ms: int, now_s: float) -> None:
        """A job came. If we had it before, that lease is over."""
        for lease in [lease for lease in self._held if lease.job.seq == job.seq]:
            self._forget(lease, lost=True)
        lease = Lease(job, lease_ms, self._deadline_s(job, lease_ms, now_s))
        self._ready.append(lease)
        if self._extends:
            self._held.append(lease)

    def take(self, now_s: float) -> Lease | None:
        """The next job to hand out, or None if there is none whose lease is sure to last."""
        while self._ready:
            lease = self._ready[0]
            left_s = lease.deadline_s - now_s
            if self._extends and left_s <= HAND_OUT_SHARE * lease.lease_ms / 1_000:
                return None  # it is due: handed out, or dropped, when the server has answered
            self._ready.popleft()
            if left_s > 0:
                return lease
        return None

    def due(self, now_s: float) -> list[Lease]:
        """Leases to extend now, for the same time each."""
        held = [lease for lease in self._held if lease.is_wanted and not lease.settled]
        self._held = held
        first = min(held, key=lambda lease: lease.renew_at_s, default=None)
        if first is None or first.renew_at_s > now_s:
            return []
        until_s = now_s + TOGETHER_SHARE * first.lease_ms / 1_000
        alike = (lease for lease in held if lease.lease_ms == first.lease_ms)
        return [lease for lease in alike if lease.renew_at_s <= until_s][:JOBS_MAX]

    def next_due_s(self) -> float:
        """When the next lease is due."""
        return min((lease.renew_at_s for lease in self._held), default=inf)

    def extended(self, asked: Sequence[Lease], answer: Extended, sent_s: float) -> None:
        """The server's answer to a request to extend leases, which was sent then."""
        for lease in asked:
            told_ms = answer.deadlines.get(lease.job.seq)
            if told_ms is None:
                self._forget(lease, lost=True)
                continue
            lease.hold(lease.lease_ms, sent_s + lease.lease_ms / 1_000)
            self._ahead_ms = told_ms - lease.lease_ms - sent_s * 1_000

    def failed(self, asked: Sequence[Lease], now_s: float) -> None:
        """A request to extend leases had no answer; it is tried again soon."""
        for lease in asked:
            lease.renew_at_s = now_s + max(RETRY_S_MIN, RETRY_SHARE * lease.lease_ms / 1_000)

    def refused(self, asked: Sequence[Lease]) -> None:
        """The server will never extend these: the queue is gone, or not ours to work on."""
        for lease in asked:
            self._forget(lease, lost=True)

    def _deadline_s(self, job: ClaimedJob, lease_ms: int, now_s: float) -> float:
        """When the lease of a job that came now ends at the earliest."""
        least_ms = job.deadline_ms - lease_ms - now_s * 1_000  # it was claimed before it came
        if self._ahead_ms is None and self._extends:
            return self._opened_s + lease_ms / 1_000
        self._ahead_ms = max(least_ms, least_ms if self._ahead_ms is None else self._ahead_ms)
        return (job.deadline_ms - self._ahead_ms) / 1_000

    def _forget(self, lease: Lease, *, lost: bool) -> None:
        lease.lost = lost
        if lease in self._held:
            self._held.remove(lease)
        if lease in self._ready:
            self._ready.remove(lease)
