"""The numbers of an edge and its pipeline, each declared once.

A line here is a metric in the text for Prometheus and in the docs, and in the status if it is a
number of the edge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

from penstock.flow.meter import StageStatus
from penstock.ingest.accept import EdgeCore
from penstock.ingest.windows import PipelineStatus, Windows
from penstock.protocol.metrics import Metrics, as_text

BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                   0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # fmt: skip
_BOUNDS_NS: Final = tuple(int(bound_s * 1e9) for bound_s in BOUNDS_S)


class Shown(Protocol):
    """What the port for status shows: an edge, or an edge with its pipeline."""

    def status(self) -> dict[str, Any]:
        """Plain values."""
        ...

    def prometheus(self) -> bytes:
        """Prometheus text."""
        ...


@dataclass
class Numbers:
    """An edge at the moment of a look, and how far its pipeline is behind, if it has one."""

    core: EdgeCore
    windows: Windows
    retries: int = 0
    behind: int | None = None

    @cached_property
    def stages(self) -> tuple[StageStatus, ...]:
        """Every stage now."""
        return tuple(self.windows.status().stages)

    def of_stages(self, value: Callable[[StageStatus], float | None]) -> dict[str, float]:
        """A number of each stage that has it."""
        found = {stage.name: value(stage) for stage in self.stages}
        return {name: each for name, each in found.items() if each is not None}

    def latencies(self) -> dict[str, tuple[list[int], float]]:
        """How many items of each stage took up to each bound, and the sum in seconds."""
        found = {}
        for stage in self.windows.stages:
            upto, count, sum_ns = stage.latency_total.cumulative(_BOUNDS_NS)
            steps = zip([0, *upto], [*upto, count], strict=True)
            found[stage.name] = [after - before for before, after in steps], sum_ns / 1e9
        return found

    def edge(self) -> dict[str, int]:
        """The numbers of the edge by name."""
        found: dict[str, int] = METRICS.values(self)["edge"]
        return found

    def prometheus(self) -> bytes:
        """Every number in Prometheus' text format."""
        return as_text(METRICS.lines(self))


def status_values(status: PipelineStatus, edge: Mapping[str, int]) -> dict[str, Any]:
    """What `penstock ingest status` shows, as plain values."""
    return {
        "bottleneck": status.bottleneck,
        "decisions": [decision._asdict() for decision in status.decisions],
        "stages": [stage._asdict() for stage in status.stages],
        "edge": dict(edge),
    }


METRICS: Final[Metrics[Numbers]] = Metrics()
"""Every metric of an edge and its pipeline."""


def _stage(kind: str, name: str, text: str, value: Callable[[StageStatus], float | None]) -> None:
    declare = METRICS.counters if kind == "counter" else METRICS.gauges
    declare(f"scheduler_{name}", text, lambda numbers: numbers.of_stages(value), label="stage")


def _edge(kind: str, name: str, text: str, value: Callable[[Numbers], int]) -> None:
    declare = METRICS.counter if kind == "counter" else METRICS.gauge
    declare(f"ingest_{name}", text, value, key=f"edge.{name}")


_stage("gauge", "window_size", "Slots of a window.", lambda s: s.window)
_stage("gauge", "occupancy", "Share of a window that is taken.", lambda s: s.occupancy)
_stage("gauge", "window_bytes", "What is in a window, by the mean size of its items.",
       lambda s: round(s.occupied * s.bytes_per_slot))  # fmt: skip
_stage("counter", "credits_granted", "Credits that were granted.", lambda s: s.credits_granted)
_stage("counter", "backpressure_events", "Times that senders began to be refused.",
       lambda s: s.backpressure_events)  # fmt: skip
_stage("counter", "items_total", "Items that a stage finished.", lambda s: s.items_out)
_stage("gauge", "rate", "Items that a stage finished in the last second.", lambda s: s.rate_per_s)
_stage("gauge", "busy", "Share of the last second that was spent on items.", lambda s: s.busy)
_stage("gauge", "latency_p50_seconds", "Median of the last second, if any.",
       lambda s: None if s.p50_ns is None else s.p50_ns / 1e9)  # fmt: skip
_stage("gauge", "latency_p99_seconds", "99th percentile of the last second, if any.",
       lambda s: None if s.p99_ns is None else s.p99_ns / 1e9)  # fmt: skip
METRICS.histograms(
    "scheduler_stage_latency_seconds",
    "How long an item took in a stage.",
    Numbers.latencies,
    label="stage",
    bounds=BOUNDS_S,
)

_edge("counter", "connections_total", "Connections that were made.",
      lambda n: n.core.counters.connections)  # fmt: skip
_edge("gauge", "connections", "Connections that are open.", lambda n: len(n.core.sessions))
_edge("gauge", "devices", "Devices that are known.", lambda n: len(n.core.devices))
_edge("counter", "frames_total", "Frames that were read.", lambda n: n.core.counters.frames)
_edge("counter", "bytes_total", "Bytes that were read.", lambda n: n.core.counters.bytes_in)
_edge("counter", "messages_acked_total", "Messages that became durable and were acknowledged.",
      lambda n: n.core.counters.messages_acked)  # fmt: skip
_edge("counter", "messages_again_total", "Messages that came again after they were durable.",
      lambda n: n.core.counters.messages_again)  # fmt: skip
_edge("counter", "frame_errors_total", "Connections that were ended because of what came on them.",
      lambda n: n.core.counters.frame_errors)  # fmt: skip
_edge("counter", "unauthorized_total", "Connections with a wrong token.",
      lambda n: n.core.counters.unauthorized)  # fmt: skip
_edge("counter", "too_slow_total", "Connections that took too long for a frame or a message.",
      lambda n: n.core.counters.too_slow)  # fmt: skip
_edge("gauge", "partial_messages", "Messages of which a part is here.",
      lambda n: len(n.core.reassembler))  # fmt: skip
_edge("gauge", "partial_bytes", "Memory set aside for messages of which a part is here.",
      lambda n: n.core.reassembler.reserved_bytes)  # fmt: skip
_edge("gauge", "held_bytes", "Bytes that were read and wait for credits.",
      lambda n: n.core.held_bytes)  # fmt: skip
_edge("gauge", "buffered_bytes", "Bytes of whole messages that are not durable yet.",
      lambda n: n.core.buffered_bytes)  # fmt: skip
_edge("counter", "retries_total", "Tries of a write that failed and were made again.",
      lambda n: n.retries)  # fmt: skip
METRICS.gauge(
    "ingest_behind", "Messages in the topic that are not in the lake.", lambda n: n.behind
)
