"""The leases of a work stream: how long they last, which jobs to hand out, which to extend.

The server reports a lease's end by its own clock, which may differ by any amount. Times are
therefore converted to the local monotonic clock, conservatively: a lease is assumed to begin when
the request that opened the stream was sent, and an extended one when the extend request was sent.
The answer to the latter also reveals the offset of the server's clock, so that a job that was sent
long before it was read is known to be old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from penstock.protocol.answers import ClaimedJob, Extended

RENEW_SHARE: Final = 0.5
"""The remaining share of a lease at which it is extended."""
HAND_OUT_SHARE: Final = 0.25
"""With less than this share left, a job is handed out only after its lease was extended."""
TOGETHER_SHARE: Final = 0.125
"""Leases that are due within this share are extended in the same request."""
RETRY_SHARE: Final = 0.125
"""After a failure an extension is retried when this much more of the lease has passed."""
RETRY_S_MIN: Final = 0.05
JOBS_MAX: Final = 1_000
"""The most leases that one request can extend."""


class Lease:
    """A job that this client holds, as far as it knows."""

    __slots__ = ("deadline_s", "is_wanted", "job", "lease_ms", "lost", "renew_at_s", "settled")

    def __init__(self, job: ClaimedJob, lease_ms: int, deadline_s: float) -> None:
        self.job = job
        self.lost = False
        """Whether the server reported the lease as lost."""
        self.settled = False
        """Whether it was acked or nacked."""
        self.is_wanted = True
        """Whether the program still has the job, or will get it."""
        self.hold(lease_ms, deadline_s)

    def hold(self, lease_ms: int, deadline_s: float) -> None:
        """Set when the lease ends."""
        self.lease_ms = lease_ms
        self.deadline_s = deadline_s
        self.renew_at_s = deadline_s - RENEW_SHARE * lease_ms / 1_000


class Leases:
    """Jobs in order of arrival, those handed out, and when each lease is due. Does no IO.

    With `extends` False the program manages leases, and a job is handed out if it does not
    look old compared with the job that arrived fastest.
    """

    def __init__(self, *, extends: bool) -> None:
        self._extends = extends
        self._ready: deque[Lease] = deque()
        self._held: list[Lease] = []
        self._opened_s = 0.0
        self._ahead_ms: float | None = None

    def opened(self, sent_s: float) -> None:
        """A stream was requested at this time; its server's clock is unknown so far."""
        self._opened_s = sent_s
        self._ahead_ms = None

    def stream_lost(self) -> None:
        """The server takes back the jobs of the stream, but may not have noticed the loss yet."""
        self._held = [lease for lease in self._held if lease not in self._ready]
        self._ready.clear()
        for lease in self._held:
            lease.renew_at_s = 0.0

    def received(self, job: ClaimedJob, lease_ms: int, now_s: float) -> None:
        """A job arrived. If it was held before, that lease has ended."""
        for lease in [lease for lease in self._held if lease.job.seq == job.seq]:
            self._forget(lease, lost=True)
        lease = Lease(job, lease_ms, self._deadline_s(job, lease_ms, now_s))
        self._ready.append(lease)
        if self._extends:
            self._held.append(lease)

    def take(self, now_s: float) -> Lease | None:
        """The next job to hand out, or None if no lease is certain to last."""
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
        """Leases to extend now, all by the same time."""
        held = [lease for lease in self._held if lease.is_wanted and not lease.settled]
        self._held = held
        first = min(held, key=lambda lease: lease.renew_at_s, default=None)
        if first is None or first.renew_at_s > now_s:
            return []
        until_s = now_s + TOGETHER_SHARE * first.lease_ms / 1_000
        alike = (lease for lease in held if lease.lease_ms == first.lease_ms)
        return [lease for lease in alike if lease.renew_at_s <= until_s][:JOBS_MAX]

    def next_due_s(self) -> float:
        """When the next lease is due for extension."""
        return min((lease.renew_at_s for lease in self._held), default=inf)

    def extended(self, asked: Sequence[Lease], answer: Extended, sent_s: float) -> None:
        """The server's answer to an extend request that was sent at that time."""
        for lease in asked:
            told_ms = answer.deadlines.get(lease.job.seq)
            if told_ms is None:
                self._forget(lease, lost=True)
                continue
            lease.hold(lease.lease_ms, sent_s + lease.lease_ms / 1_000)
            self._ahead_ms = told_ms - lease.lease_ms - sent_s * 1_000

    def failed(self, asked: Sequence[Lease], now_s: float) -> None:
        """An extend request got no answer; it is retried soon."""
        for lease in asked:
            lease.renew_at_s = now_s + max(RETRY_S_MIN, RETRY_SHARE * lease.lease_ms / 1_000)

    def refused(self, asked: Sequence[Lease]) -> None:
        """The server will never extend these: the queue is gone, or access is denied."""
        for lease in asked:
            self._forget(lease, lost=True)

    def _deadline_s(self, job: ClaimedJob, lease_ms: int, now_s: float) -> float:
        """The earliest time at which the lease of a job that arrived now can end."""
        least_ms = job.deadline_ms - lease_ms - now_s * 1_000  # it was claimed before it arrived
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
