"""The numbers of an edge and its pipeline, as Prometheus text and as plain values for status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from penstock.flow.meter import Stage, StageStatus
from penstock.ingest.accept import EdgeCore
from penstock.ingest.windows import PipelineStatus, Windows

BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                   0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # fmt: skip
CONTENT_TYPE: Final = "text/plain; version=0.0.4"

_EDGE: Final = (
    ("connections_total", "counter", "Connections that were made."),
    ("connections", "gauge", "Connections that are open."),
    ("devices", "gauge", "Devices that are known."),
    ("frames_total", "counter", "Frames that were read."),
    ("bytes_total", "counter", "Bytes that were read."),
    ("messages_acked_total", "counter", "Messages that became durable and were acknowledged."),
    ("messages_again_total", "counter", "Messages that came again after they were durable."),
    ("frame_errors_total", "counter", "Connections that were ended because of what came on them."),
    ("unauthorized_total", "counter", "Connections with a wrong token."),
    ("too_slow_total", "counter", "Connections that took too long for a frame or a message."),
    ("partial_messages", "gauge", "Messages of which a part is here."),
    ("partial_bytes", "gauge", "Memory set aside for messages of which a part is here."),
    ("held_bytes", "gauge", "Bytes that were read and wait for credits."),
    ("buffered_bytes", "gauge", "Bytes of whole messages that are not durable yet."),
    ("retries_total", "counter", "Tries of a write that failed and were made again."),
)


_Value = Callable[[StageStatus], float | None]

_STAGE: Final[tuple[tuple[str, str, str, _Value], ...]] = (
    ("scheduler_window_size", "gauge", "Slots of a window.", lambda s: s.window),
    ("scheduler_occupancy", "gauge", "Share of a window that is taken.", lambda s: s.occupancy),
    ("scheduler_window_bytes", "gauge", "What is in a window, by the mean size of its items.",
     lambda s: round(s.occupied * s.bytes_per_slot)),
    ("scheduler_credits_granted", "counter", "Credits that were granted.",
     lambda s: s.credits_granted),
    ("scheduler_backpressure_events", "counter", "Times that senders began to be refused.",
     lambda s: s.backpressure_events),
    ("scheduler_items_total", "counter", "Items that a stage finished.", lambda s: s.items_out),
    ("scheduler_rate", "gauge", "Items that a stage finished in the last second.",
     lambda s: s.rate_per_s),
    ("scheduler_busy", "gauge", "Share of the last second that was spent on items.",
     lambda s: s.busy),
    ("scheduler_latency_p50_seconds", "gauge", "Median of the last second, if any.",
     lambda s: None if s.p50_ns is None else s.p50_ns / 1e9),
    ("scheduler_latency_p99_seconds", "gauge", "99th percentile of the last second, if any.",
     lambda s: None if s.p99_ns is None else s.p99_ns / 1e9),
)  # fmt: skip


class Shown(Protocol):
    """What the port for status shows: an edge, or an edge with its pipeline."""

    def status(self) -> dict[str, Any]:
        """Plain values."""
        ...

    def prometheus(self) -> str:
        """Prometheus text."""
        ...


def edge_values(core: EdgeCore, retries: int = 0) -> dict[str, int]:
    """The numbers of the edge by name."""
    counters = core.counters
    return {
        "connections_total": counters.connections,
        "connections": len(core.sessions),
        "devices": len(core.devices),
        "frames_total": counters.frames,
        "bytes_total": counters.bytes_in,
        "messages_acked_total": counters.messages_acked,
        "messages_again_total": counters.messages_again,
        "frame_errors_total": counters.frame_errors,
        "unauthorized_total": counters.unauthorized,
        "too_slow_total": counters.too_slow,
        "partial_messages": len(core.reassembler),
        "partial_bytes": core.reassembler.reserved_bytes,
        "held_bytes": core.held_bytes,
        "buffered_bytes": core.buffered_bytes,
        "retries_total": retries,
    }


def status_values(status: PipelineStatus, edge: Mapping[str, int]) -> dict[str, Any]:
    """What `penstock ingest status` shows, as plain values."""
    return {
        "bottleneck": status.bottleneck,
        "decisions": [decision._asdict() for decision in status.decisions],
        "stages": [stage._asdict() for stage in status.stages],
        "edge": dict(edge),
    }


def prometheus(windows: Windows, edge: Mapping[str, int]) -> str:
    """Every number in Prometheus' text format."""
    stages = windows.status().stages
    lines = [
        *(line for metric in _STAGE for line in _by_stage(*metric, stages)),
        *_histograms(windows.stages),
        *_edge_lines(edge),
    ]
    return "\n".join(lines) + "\n"


def _by_stage(
    name: str, kind: str, text: str, value: _Value, stages: Sequence[StageStatus]
) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for stage in stages:
        found = value(stage)
        if found is not None:
            yield f'{name}{{stage="{stage.name}"}} {found}'


def _histograms(stages: Sequence[Stage]) -> Iterator[str]:
    name = "scheduler_stage_latency_seconds"
    yield f"# HELP {name} How long an item took in a stage."
    yield f"# TYPE {name} histogram"
    bounds_ns = [int(bound_s * 1e9) for bound_s in BOUNDS_S]
    for stage in stages:
        counts, count, sum_ns = stage.latency_total.cumulative(bounds_ns)
        for bound_s, upto in zip(BOUNDS_S, counts, strict=True):
            yield f'{name}_bucket{{stage="{stage.name}",le="{bound_s}"}} {upto}'
        yield f'{name}_bucket{{stage="{stage.name}",le="+Inf"}} {count}'
        yield f'{name}_sum{{stage="{stage.name}"}} {sum_ns / 1e9}'
        yield f'{name}_count{{stage="{stage.name}"}} {count}'


def _edge_lines(edge: Mapping[str, int]) -> Iterator[str]:
    for name, kind, text in _EDGE:
        yield f"# HELP ingest_{name} {text}"
        yield f"# TYPE ingest_{name} {kind}"
        yield f"ingest_{name} {edge[name]}"
