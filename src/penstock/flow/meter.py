"""What a stage did: occupancy, rate and latencies of the last second, and totals since the start.

Channels and batch stages count as they work, in plain attributes (`Counts`). A `StageMeter` samples
these counts every 100 ms and every second, so the hot path pays only for counting.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock.flow.histogram import LatencyHistogram

SIZE_EWMA: Final = 0.3
SAMPLES_KEPT: Final = 20
"""Two seconds of samples: a reader that asks every second misses none."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a stage did since the last report, for the planner and for people.

    `occupancy` is the mean of every sample, as it was. `refused`: senders were refused, so more
    waited than the window let in. `pace_per_s` is the rate from one finished item to another, which
    the end of the second does not cut; None if nothing was finished. `batch_items` is how many
    items a latency stands for. `p99_least_ns` is a value that the p99 surely reaches, however few
    latencies there are; None means the p99 itself. `stuck_ms` is how long work has waited without
    any item finishing; in a stage that is `warming` that does not mean a stall. Stages of the same
    `chain` are parts of one job, so an item takes slots of all of them.
    """

    window: int
    occupied: int = 0
    occupancy: float = 0.0
    items_in: int = 0
    items_out: int = 0
    rate_per_s: float = 0.0
    pace_per_s: float | None = None
    p50_ns: int = 0
    p99_ns: int = 0
    p99_least_ns: int | None = None
    latency_samples: int = 0
    batch_items: float = 1.0
    bytes_per_slot: float = 0.0
    credits_granted: int = 0
    refused: bool = False
    stuck_ms: int = 0
    warming: bool = False
    chain: str = ""


class Sample(NamedTuple):
    """A stage at one of the measurements that are made every 100 ms.

    The rate is that of the last 100 ms; the latencies are those since the last report, if any.
    """

    at_ms: int
    occupancy: float
    rate_per_s: float
    p50_ns: int | None
    p99_ns: int | None


class StageStatus(NamedTuple):
    """A stage as displayed: counts since the start, rate and latencies of the last second.

    A stage that finished nothing in that second has no latencies. `busy` is the time that it worked
    on items in that second, as a share of it; above 1 where several items are worked on at once.
    Stages of the same `chain` are parts of one job.
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
    busy: float = 0.0
    bytes_per_slot: float = 0.0
    stuck_ms: int = 0
    warming: bool = False
    chain: str = ""
    note: str = ""
    samples: tuple[Sample, ...] = ()


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
    """A stage's counts since its start; only `latency` is reset by every report.

    `busy_ns` is the time spent on items. A stage is `warming` until it can finish its first item.
    `finished_ms` is when it last finished one; None if it does not look at the clock.
    """

    name: str
    chain: str
    occupied: int
    items_in: int
    items_out: int
    bytes_in: int
    credits_granted: int
    refusals: int
    busy_ns: int
    warming: bool
    finished_ms: float | None
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
        self._recent: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._occupancies: list[float] = []
        self._sampled = _Totals()
        self._was_refusing = self._was_warming = False
        self._progress_ms: int | None = None
        self._reported = _Totals()
        self._paced_ms = 0.0
        self._busy = 0.0
        self._last = Measurement(window)

    def sample(self, counts: Counts, now_ms: int) -> int:
        """Due every 100 ms. Returns how many items were finished since the last sample."""
        before, self._sampled = self._sampled, _Totals.of(counts, now_ms)
        finished = counts.items_out - before.items_out
        if finished or not counts.occupied or self._progress_ms is None:
            self._progress_ms = now_ms
        self._was_warming |= counts.warming
        self._note_refusals(counts.refusals > before.refusals)
        occupancy = counts.occupied / counts.window
        self._occupancies.append(occupancy)
        p50_ns, p99_ns = counts.latency.quantiles((0.50, 0.99))
        rate_per_s = finished * 1_000 / max(1, now_ms - before.at_ms)
        self._recent.append(Sample(now_ms, occupancy, rate_per_s, p50_ns or None, p99_ns or None))
        return finished

    def report(self, counts: Counts, now_ms: int) -> Measurement:
        """Due every second: what happened since the last report."""
        before, self._reported = self._reported, _Totals.of(counts, now_ms)
        since = self._reported
        latency, counts.latency = counts.latency, LatencyHistogram()
        self.latency_total.add(latency)
        latency_samples = latency.count
        p50_ns, p99_ns = latency.quantiles((0.50, 0.99))
        occupancies = self._occupancies or [counts.occupied / counts.window]
        warming, self._was_warming = self._was_warming or counts.warming, False
        self._occupancies = []
        items_in = since.items_in - before.items_in
        items_out = since.items_out - before.items_out
        span_ms = max(1, now_ms - before.at_ms)
        self._busy = (since.busy_ns - before.busy_ns) / (span_ms * 1e6)
        self._learn_size(since.bytes_in - before.bytes_in, items_in)
        self._last = Measurement(
            window=counts.window,
            occupied=counts.occupied,
            occupancy=sum(occupancies) / len(occupancies),
            items_in=items_in,
            items_out=items_out,
            rate_per_s=items_out * 1_000 / span_ms,
            pace_per_s=self._pace(items_out, counts.finished_ms),
            p50_ns=p50_ns,
            p99_ns=p99_ns,
            p99_least_ns=latency.quantile_least(0.99),
            latency_samples=latency_samples,
            batch_items=latency_samples / max(1, latency.measurements),
            bytes_per_slot=self.bytes_per_slot,
            credits_granted=since.credits_granted - before.credits_granted,
            refused=since.refusals > before.refusals,
            stuck_ms=self._stuck_ms(counts, now_ms),
            warming=warming,
            chain=counts.chain,
        )
        return self._last

    def excuse(self, now_ms: int) -> None:
        """What is in the stage waits for another one of its job: it is not stuck itself."""
        self._progress_ms = now_ms

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
            busy=self._busy,
            bytes_per_slot=self.bytes_per_slot,
            stuck_ms=last.stuck_ms,
            warming=counts.warming,
            chain=counts.chain,
            samples=tuple(self._recent),
        )

    def _note_refusals(self, is_refusing: bool) -> None:
        self.backpressure_events += is_refusing and not self._was_refusing
        self._was_refusing = is_refusing

    def _stuck_ms(self, counts: Counts, now_ms: int) -> int:
        if not counts.occupied or self._progress_ms is None:
            return 0
        return now_ms - self._progress_ms

    def _pace(self, items_out: int, finished_ms: float | None) -> float | None:
        """The rate between the last items of two reports.

        A second that ends in the middle of a batch has that batch too few, and the next one has it
        too many: counted by the second, a steady stage would seem to vary by a batch.
        """
        finished_ms = self._progress_ms if finished_ms is None else finished_ms
        if not items_out or finished_ms is None:
            return None
        began_ms, self._paced_ms = self._paced_ms, finished_ms
        return items_out * 1_000 / max(1.0, finished_ms - began_ms)

    def _learn_size(self, bytes_in: int, items_in: int) -> None:
        """Adapt at once to larger items and slowly to smaller ones: the budget must hold."""
        if items_in:
            mean = bytes_in / items_in
            known = self.bytes_per_slot
            self.bytes_per_slot = mean if mean > known else known + SIZE_EWMA * (mean - known)


class _Totals(NamedTuple):
    at_ms: int = 0
    items_in: int = 0
    items_out: int = 0
    bytes_in: int = 0
    credits_granted: int = 0
    refusals: int = 0
    busy_ns: int = 0

    @classmethod
    def of(cls, counts: Counts, now_ms: int) -> _Totals:
        return cls(
            now_ms, counts.items_in, counts.items_out, counts.bytes_in, counts.credits_granted,
            counts.refusals, counts.busy_ns,
        )  # fmt: skip
