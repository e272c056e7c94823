"""What a stage did: occupancy, rate and latencies of the last second, and totals since the start.

Channels and batch stages count as they work, in plain attributes (`Counts`). A `StageMeter` samples
these counts every 100 ms and every second, so the hot path pays only for counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple, Protocol

from penstock.flow.histogram import LatencyHistogram

RATE_EWMA: Final = 0.3


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a stage did since the last report, for the planner and for people.

    `refused`: senders were refused. `limited`: the receiver also ran out of items; only then did
    the window limit the stage. `stuck_ms` is how long work has waited without any item finishing.
    `p99_least_ns` is a lower bound of the p99 that allows for few samples; None means the p99
    itself.
    """

    window: int
    occupied: int = 0
    occupancy: float = 0.0
    items_in: int = 0
    items_out: int = 0
    rate_per_s: float = 0.0
    p50_ns: int = 0
    p99_ns: int = 0
    p99_least_ns: int | None = None
    latency_samples: int = 0
    bytes_per_slot: float = 0.0
    credits_granted: int = 0
    refused: bool = False
    limited: bool = False
    stuck_ms: int = 0


class StageStatus(NamedTuple):
    """A stage as displayed: counts since the start, rate and latencies of the last second.

    A stage that finished nothing in that second has no latencies.
    """

    name: str
    window: int
    occupied: int
    occupancy: float
    rate_per_s: float
    p50_ns: int | None
    p99_ns: int | None
    items_in: int
    items_out: int
    credits_granted: int
    backpressure_events: int
    refused: bool = False
    stuck_ms: int = 0
    note: str = ""


class Stage(Protocol):
    """One stage of a pipeline, as its planner sees it. Called from one thread; must not block."""

    @property
    def name(self) -> str:
        """A stable identifier: `accept`, `parse` …"""
        ...

    @property
    def slot_bytes(self) -> float:
        """The expected memory per item, used until the first item was measured."""
        ...

    @property
    def latency_total(self) -> LatencyHistogram:
        """How long items took in this stage, in ns, since the start."""
        ...

    def resize(self, window: int) -> None:
        """Set the window."""
        ...

    def measure(self, now_ms: int) -> None:
        """Due every 100 ms: record the occupancy, grant credits."""
        ...

    def report(self, now_ms: int) -> Measurement:
        """Due every second: what happened since the last report."""
        ...

    def status(self) -> StageStatus:
        """The stage, for people and metrics."""
        ...


class Counts(Protocol):
    """A stage's counts since its start; only `latency` is reset by every report."""

    name: str
    occupied: int
    items_in: int
    items_out: int
    bytes_in: int
    credits_granted: int
    refusals: int
    shortfalls: int
    latency: LatencyHistogram

    @property
    def window(self) -> int:
        """The number of slots."""
        ...


class StageMeter:
    """The measurements of one stage. As thread-safe as the counts passed to it."""

    def __init__(self, window: int) -> None:
        self.latency_total = LatencyHistogram()
        self.backpressure_events = 0
        """How often senders started being refused after 100 ms without a refusal."""
        self.bytes_per_slot = 0.0
        self._samples: list[float] = []
        self._out_at_sample = self._refusals_at_sample = 0
        self._was_refusing = False
        self._progress_ms: int | None = None
        self._reported = _Totals()
        self._last = Measurement(window)

    def sample(self, counts: Counts, now_ms: int, occupancy: float) -> int:
        """Due every 100 ms. Returns how many items were finished since the last sample."""
        finished = counts.items_out - self._out_at_sample
        self._out_at_sample = counts.items_out
        if finished or not counts.occupied or self._progress_ms is None:
            self._progress_ms = now_ms
        self._samples.append(occupancy)
        is_refusing = counts.refusals > self._refusals_at_sample
        self._refusals_at_sample = counts.refusals
        self.backpressure_events += is_refusing and not self._was_refusing
        self._was_refusing = is_refusing
        return finished

    def report(self, counts: Counts, now_ms: int) -> Measurement:
        """Due every second: what happened since the last report."""
        before, self._reported = self._reported, _Totals.of(counts, now_ms)
        since = self._reported
        latency, counts.latency = counts.latency, LatencyHistogram()
        self.latency_total.add(latency)
        latency_samples = latency.count
        p50_ns, least_ns, p99_ns = latency.quantiles((0.50, sure_share(latency_samples), 0.99))
        samples, self._samples = self._samples or [counts.occupied / counts.window], []
        items_in = since.items_in - before.items_in
        items_out = since.items_out - before.items_out
        refused = since.refusals > before.refusals
        self._learn_size(since.bytes_in - before.bytes_in, items_in)
        self._last = Measurement(
            window=counts.window,
            occupied=counts.occupied,
            occupancy=sum(samples) / len(samples),
            items_in=items_in,
            items_out=items_out,
            rate_per_s=items_out * 1_000 / max(1, now_ms - before.at_ms),
            p50_ns=p50_ns,
            p99_ns=p99_ns,
            p99_least_ns=least_ns,
            latency_samples=latency_samples,
            bytes_per_slot=self.bytes_per_slot,
            credits_granted=since.credits_granted - before.credits_granted,
            refused=refused,
            limited=refused and since.shortfalls > before.shortfalls,
            stuck_ms=self._stuck_ms(counts, now_ms),
        )
        return self._last

    def status(self, counts: Counts) -> StageStatus:
        """The stage, for people and metrics."""
        last = self._last
        return StageStatus(
            name=counts.name,
            window=counts.window,
            occupied=counts.occupied,
            occupancy=counts.occupied / counts.window,
            rate_per_s=last.rate_per_s,
            p50_ns=last.p50_ns if last.latency_samples else None,
            p99_ns=last.p99_ns if last.latency_samples else None,
            items_in=counts.items_in,
            items_out=counts.items_out,
            credits_granted=counts.credits_granted,
            backpressure_events=self.backpressure_events,
            refused=last.refused,
            stuck_ms=last.stuck_ms,
        )

    def _stuck_ms(self, counts: Counts, now_ms: int) -> int:
        if not counts.occupied or self._progress_ms is None:
            return 0
        return now_ms - self._progress_ms

    def _learn_size(self, bytes_in: int, items_in: int) -> None:
        """Adapt at once to larger items and slowly to smaller ones: the budget must hold."""
        if items_in:
            mean = bytes_in / items_in
            known = self.bytes_per_slot
            self.bytes_per_slot = mean if mean > known else known + RATE_EWMA * (mean - known)


def sure_share(samples: int) -> float:
    """The share whose quantile the p99 almost surely reaches: 0.99 minus three standard errors.

    With one slow item in a hundred, a window of 1,000 samples has 7 slow ones at one time and 13 at
    another, so the p99 jumps between fast and slow although nothing has changed.
    """
    return max(0.5, 0.99 - 3 * sqrt(0.99 * 0.01 / max(1, samples)))


class _Totals(NamedTuple):
    at_ms: int = 0
    items_in: int = 0
    items_out: int = 0
    bytes_in: int = 0
    credits_granted: int = 0
    refusals: int = 0
    shortfalls: int = 0

    @classmethod
    def of(cls, counts: Counts, now_ms: int) -> _Totals:
        return cls(
            now_ms, counts.items_in, counts.items_out, counts.bytes_in, counts.credits_granted,
            counts.refusals, counts.shortfalls,
        )  # fmt: skip
