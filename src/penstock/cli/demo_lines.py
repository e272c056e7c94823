"""The demonstration of flow without a terminal: a line a second, a line an event, a summary."""

from __future__ import annotations

from penstock.flow import Level, Rung
from penstock.kernel.units import format_bytes
from penstock.sim.pipeline import STAGES
from penstock.sim.show import Event, Show


def event_line(event: Event) -> str:
    """What happens now."""
    return f"     ▸ {event.text}"


def second_line(show: Show) -> str:
    """The flow, the windows and the pressure of the second that ended."""
    channels = show.pipeline.channels
    trace = show.traces[-1] if show.traces else None
    windows = " ".join(f"{channel.window:>6}" for channel in channels)
    occupancies = " ".join(f"{100 * channel.occupancy:>3.0f}" for channel in channels)
    return (
        f"{show.now_ms / 1_000:4.0f} s"
        f"  in {trace.offered_per_s if trace else 0:>6.0f}/s"
        f"  out {trace.delivered_per_s if trace else 0:>6.0f}/s"
        f"  outside {show.pipeline.backlog:>6}"
        f"  windows {windows}  full % {occupancies}"
        f"  pressure {show.topics.rung.pressure:.2f} {show.topics.rung.level.name.lower()}"
    )


def summary(show: Show) -> str:
    """What became of everything that was offered."""
    pipeline = show.pipeline
    windows = ", ".join(
        f"{name} {channel.window}" for name, channel in zip(STAGES, pipeline.channels, strict=True)
    )
    return (
        f"{pipeline.offered:,} items offered: {pipeline.delivered:,} delivered in order, "
        f"{pipeline.in_flight:,} inside, {pipeline.backlog:,} waiting outside, 0 lost\n"
        f"windows: {windows}; at most {format_bytes(pipeline.in_flight_bytes_max)} in flight "
        f"of {format_bytes(pipeline.settings.policy.budget_bytes)}\n"
        f"topics: {show.topics.written:,} records written, {show.topics.pushed:,} pushed in "
        f"{show.topics.served:,} turns, {show.topics.pending:,} ready"
    )


def ladder(rung: Rung) -> list[tuple[bool, str]]:
    """The five rungs in words, and which of them are in force."""
    commit_ms = rung.commit_window_ms
    again = f": again in {_ms(rung.drain_ms)}" if rung.refusing else ""
    return [
        (rung.level is Level.STEADY, "a frame for every record"),
        (rung.coalesce_ms > 0, f"coalescing into frames of up to {_ms(rung.coalesce_ms)}"),
        (rung.level >= Level.WIDEN, f"group commits held for up to {_ms(commit_ms)}"),
        (rung.deferring, "negative priorities paused, routers lowered"),
        (rung.refusing, f"new writes answered 429{again}"),
    ]


def _ms(span_ms: float) -> str:
    return f"{span_ms:.1f} ms" if span_ms < 10 else f"{span_ms:.0f} ms"
