"""What the planner needs to know of a stage, wherever it runs, and how people are shown it.

Accept and Reassemble are channels on the edge's event loop; Parse, Evaluate and Store are theirs
in front of Spark. All of them are seen through `Stage`.

>>> stage = ChannelStage("parse", WindowedChannel(4_096), slot_bytes=1_000)
>>> stage.channel.try_send("message", 1_200)
True
>>> stage.measure(100)
>>> stage.report(1_000).occupied, stage.status().window
(1, 4096)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.flow.channel import Measurement, WindowedChannel
from penstock.flow.histogram import LatencyHistogram


class StageStatus(NamedTuple):
    """A stage as it is shown: counts since the start, rate and latencies of the last second.

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
    """One stage of a pipeline. Called from one thread, the planner's; must not wait."""

    @property
    def name(self) -> str:
        """A stable word: `accept`, `parse` …"""
        ...

    @property
    def slot_bytes(self) -> float:
        """What an item takes in memory, as far as known before the first was measured."""
        ...

    @property
    def latency(self) -> LatencyHistogram:
        """How long items took in this stage, in ns, since the start."""
        ...

    def resize(self, window: int) -> None:
        """Set the window."""
        ...

    def measure(self, now_ms: int) -> None:
        """Due every 100 ms: note the occupancy, grant credits."""
        ...

    def report(self, now_ms: int) -> Measurement:
        """Due every second: what happened since the last report."""
        ...

    def status(self) -> StageStatus:
        """The stage for people and metrics."""
        ...


class Downstream(Protocol):
    """What stands behind the durable topic and may ask the edge to hold back."""

    @property
    def room(self) -> int:
        """How many more messages may be appended to the topic now."""
        ...


class ChannelStage:
    """A stage whose channel is on the same thread as the planner."""

    def __init__(
        self, name: str, channel: WindowedChannel[Any], *, slot_bytes: float = 1_024
    ) -> None:
        self.name = name
        self.channel = channel
        self.slot_bytes = slot_bytes
        self.latency = LatencyHistogram()
        self.backpressure_events = 0
        self._refusals = 0
        self._was_refusing = False
        self._last = Measurement(channel.window)

    def resize(self, window: int) -> None:
        """Set the window."""
        self.channel.resize(window)

    def measure(self, now_ms: int) -> None:
        """Note the occupancy; senders refused after 100 ms in which none was are an event."""
        self.channel.measure(now_ms)
        refusing = self.channel.refusals > self._refusals
        self._refusals = self.channel.refusals
        self.backpressure_events += refusing and not self._was_refusing
        self._was_refusing = refusing

    def report(self, now_ms: int) -> Measurement:
        """What happened since the last report; its latencies are added to those since the start."""
        self.latency.add(self.channel.latency)
        self._last = self.channel.report(now_ms)
        return self._last

    def status(self) -> StageStatus:
        """The stage for people and metrics."""
        channel, last = self.channel, self._last
        return StageStatus(
            name=self.name,
            window=channel.window,
            occupied=channel.occupied,
            occupancy=channel.occupancy,
            rate_per_s=last.rate_per_s,
            p50_ns=last.p50_ns if last.latency_samples else None,
            p99_ns=last.p99_ns if last.latency_samples else None,
            items_in=channel.items_in,
            items_out=channel.items_out,
            credits_granted=channel.credits_granted,
            backpressure_events=self.backpressure_events,
            refused=last.refused,
            stuck_ms=last.stuck_ms,
        )


def bottleneck(stages: Sequence[StageStatus]) -> str | None:
    """The stage that holds the others back: the last whose senders were refused or that is stuck.

    None if all keep up. Stages are in the order of the pipeline.
    """
    held = [stage.name for stage in stages if stage.refused or stage.stuck_ms >= 1_000]
    return held[-1] if held else None
