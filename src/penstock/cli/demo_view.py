"""The demonstration of flow as a terminal sees it: stages, load, pressure and bands in one view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.cli.demo_lines import ladder
from penstock.flow import TOPIC_BANDS, BandState, Measurement
from penstock.flow.channel import CEILING
from penstock.flow.governor import COALESCE_ABOVE, DEFER_ABOVE, WIDEN_ABOVE
from penstock.kernel.units import format_bytes, format_ms
from penstock.sim.pipeline import STAGES
from penstock.sim.show import Show

ZONE: Final = (0.50, CEILING)
NO_ZONE: Final = (2.0, 2.0)
BLOCKS: Final = "▁▂▃▄▅▆▇█"
TALL_LINES: Final = 30
WIDE_COLUMNS: Final = 96
BANDS_IN_WORDS: Final = 36

TEXT: Final = "#d5d9de"
QUIET: Final = "#8a929c"
RULE: Final = "#3b424b"
TRACK: Final = "#2f353d"
ZONE_TRACK: Final = "#3d6b59"
CALM: Final = "#6ca6d9"
GOOD: Final = "#6cc08b"
WARM: Final = "#e0b060"
HOT: Final = "#e0705c"


def view(show: Show, width: int, height: int) -> RenderableType:
    """One picture of the present moment; 100 by 32 shows all, 80 by 24 the same in short."""
    side = Table.grid(expand=True)
    side.add_column(ratio=11)
    side.add_column(ratio=9)
    side.add_row(_pressure(show, width * 11 // 20 - 4), _bands(show, width * 9 // 20 - 4))
    return Group(
        _head(show),
        _event(show),
        _stages(show, width - 4, tall=height >= TALL_LINES),
        _load(show, width - 4),
        side,
    )


def bar(share: float, width: int, style: str, zone: tuple[float, float] = ZONE) -> Text:
    """A share of one as a thick line on a thin one, with a zone marked on the thin one."""
    filled = min(width, round(share * width))
    line = Text("━" * filled, style=style)
    for cell in range(filled, width):
        line.append("─", ZONE_TRACK if zone[0] <= (cell + 0.5) / width <= zone[1] else TRACK)
    return line


def sparkline(values: Sequence[float], ceiling: float, width: int) -> str:
    """The last values as blocks of eight heights, the newest at the right."""
    top = len(BLOCKS) - 1
    shown = list(values)[-width:]
    return "".join(BLOCKS[min(top, round(top * value / ceiling))] for value in shown).rjust(width)


def panel(content: RenderableType, title: str, subtitle: str) -> Panel:
    """A part of a view, with a word above it and one below."""
    return Panel(
        content,
        box=ROUNDED,
        border_style=RULE,
        title=Text(title, style=QUIET),
        title_align="left",
        subtitle=Text(subtitle, style=QUIET),
        subtitle_align="right",
        padding=(0, 1),
    )


def _head(show: Show) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    clock = f"{show.now_ms // 60_000:02}:{show.now_ms // 1_000 % 60:02}"
    head.add_row(
        Text.assemble((" penstock", f"bold {TEXT}"), ("  slower under load, never lossy", QUIET)),
        Text.assemble(
            (f"{show.shape} load · {show.growth} · seed {show.seed} · ", QUIET),
            (f"{clock} ", f"bold {TEXT}"),
        ),
    )
    return head


def _event(show: Show) -> Text:
    text = Text.assemble((" ▸ ", WARM), (show.event.text, TEXT))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _stages(show: Show, width: int, *, tall: bool) -> Panel:
    lines = [_stage_head(width)]
    for number in range(len(STAGES)):
        lines.append(_stage_line(show, number, width))
        if tall:
            lines.append(_note_line(show, number, indent=10))
    if not tall:
        lines.append(_note_line(show, _telling(show), indent=0))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    limit_bytes = show.pipeline.settings.policy.budget_bytes
    memory = (
        f"{format_bytes(show.pipeline.in_flight_bytes)} of {format_bytes(limit_bytes)} in flight"
    )
    return panel(Group(*lines), "pipeline", memory)


def _stage_head(width: int) -> Text:
    names = f"{'stage':<11}{'window':>7}   {'occupied':<{_bar_width(width)}}      {'items/s':>8}"
    return Text(f"{names}{_latency_heads(width)}", style=QUIET)


def _stage_line(show: Show, number: int, width: int) -> Text:
    channel, stage = show.pipeline.channels[number], show.pipeline.stages[number]
    seen = _seen(show, number)
    name_style = f"bold {HOT}" if stage.blocked else WARM if stage.slowdown > 1 else TEXT
    occupancy = channel.occupancy
    style = HOT if stage.blocked else _occupancy_style(occupancy)
    return Text.assemble(
        (f"{STAGES[number]:<11}", name_style),
        (f"{channel.window:>7,}   ", TEXT),
        bar(occupancy, _bar_width(width), style),
        (f"{100 * occupancy:>4.0f}% ", style),
        (f"{seen.rate_per_s:>8,.0f}", TEXT),
        (_latencies(seen, width), QUIET),
    )


def _note_line(show: Show, number: int, *, indent: int) -> Text:
    note = _note(show, number)
    sign, style = _sign(note)
    text = note.partition(": ")[2] if indent else note
    return Text.assemble((" " * indent, ""), (f"{sign} ", style), (text, QUIET))


def _note(show: Show, number: int) -> str:
    seconds = show.pipeline.seconds
    return seconds[-1].plan.notes[number] if seconds else f"{STAGES[number]}: not planned yet"


def _telling(show: Show) -> int:
    """The stage whose decision says most: the last one that is not just held."""
    moved = [n for n in range(len(STAGES)) if ": hold" not in _note(show, n)]
    return moved[-1] if moved else len(STAGES) - 1


def _sign(note: str) -> tuple[str, str]:
    if ": increase" in note:
        return "▲", GOOD
    if ": decrease" in note or ": smallest" in note:
        return "▼", HOT
    return "·", QUIET


def _seen(show: Show, number: int) -> Measurement:
    seconds = show.pipeline.seconds
    return seconds[-1].measured[number] if seconds else Measurement(0)


def _bar_width(width: int) -> int:
    return max(10, width - 36 - len(_latency_heads(width)))


def _latency_heads(width: int) -> str:
    heads = f"{'p99':>9}"
    return f"{'p50':>9}{heads}" if width + 4 >= WIDE_COLUMNS else heads


def _latencies(seen: Measurement, width: int) -> str:
    spans_ns = (seen.p50_ns, seen.p99_ns) if width + 4 >= WIDE_COLUMNS else (seen.p99_ns,)
    return "".join(f"{format_ms(ns / 1e6) if ns else '–':>9}" for ns in spans_ns)


def _occupancy_style(occupancy: float) -> str:
    if occupancy > ZONE[1]:
        return WARM
    return GOOD if occupancy >= ZONE[0] else CALM


def _load(show: Show, width: int) -> Panel:
    traces = list(show.traces)
    ceiling = max([trace.offered_per_s for trace in traces[-(width - 22) :]], default=1) or 1
    rows = [
        ("offered", [trace.offered_per_s for trace in traces], WARM),
        ("delivered", [trace.delivered_per_s for trace in traces], GOOD),
    ]
    lines = [
        Text.assemble(
            (f"{name:<11}", TEXT),
            (sparkline(values, ceiling, width - 22), style),
            (f"{values[-1] if values else 0:>9,.0f}/s", TEXT),
        )
        for name, values, style in rows
    ]
    waiting = show.pipeline.backlog
    told = f"{waiting:,} wait outside" if waiting else "nobody waits outside"
    return panel(Group(*lines), "load", f"{told} · 0 lost")


def _pressure(show: Show, width: int) -> Panel:
    rung = show.topics.rung
    style = HOT if rung.deferring else WARM if rung.pressure > COALESCE_ABOVE else CALM
    marks = (WIDEN_ABOVE, DEFER_ABOVE)
    lines = [
        Text.assemble(
            bar(rung.pressure, width - 6, style, marks), (f"  {rung.pressure:.2f}", style)
        )
    ]
    for active, words in ladder(rung):
        line = Text.assemble(
            ("● " if active else "○ ", style if active else RULE),
            (words, TEXT if active else QUIET),
        )
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return panel(Group(*lines), "pressure", rung.level.name.lower())


def _bands(show: Show, width: int) -> Panel:
    states = show.topics.queue.bands()
    deepest = max(64, *(state.depth for state in states))
    in_words = width >= BANDS_IN_WORDS
    bar_width = max(4, width - (31 if in_words else 24))
    lines = [Text(f"{'priority':<12}{'ready':<{bar_width + 5}}", style=QUIET)]
    tails = [Text("oldest", style=QUIET)]
    for number in reversed(range(len(states))):
        share = states[number].depth / deepest
        lines.append(_band_line(number, states[number], share, bar_width))
        tails.append(_oldest(show, states[number], in_words=in_words))
    rows = [_spread(line, tail, width) for line, tail in zip(lines, tails, strict=True)]
    return panel(Group(*rows), "topics by band", f"{show.topics.pending:,} records ready")


def _band_line(number: int, state: BandState, share: float, bar_width: int) -> Text:
    style = HOT if state.paused else CALM
    return Text.assemble(
        (f"{_band_name(number):<12}", TEXT),
        bar(share, bar_width, style, NO_ZONE),
        (f"{state.depth:>5}", style if state.depth else QUIET),
    )


def _oldest(show: Show, state: BandState, *, in_words: bool) -> Text:
    waited = "–" if state.oldest_ms is None else format_ms(show.topics.now_ms - state.oldest_ms)
    return Text.assemble(("paused " if state.paused and in_words else "", HOT), (waited, QUIET))


def _spread(left: Text, right: Text, width: int) -> Text:
    """Two texts at the two ends of a line."""
    line = Text.assemble(left, " " * max(1, width - len(left) - len(right)), right)
    line.truncate(width, overflow="ellipsis")
    return line


def _band_name(number: int) -> str:
    floors = TOPIC_BANDS.floors
    if number == 0:
        return "B0 < 0"
    if number == len(floors):
        return f"B{number} ≥ {floors[-1]}"
    return f"B{number} {floors[number - 1]}–{floors[number] - 1}"
