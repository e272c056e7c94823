"""The output of `penstock demo`: a view for terminals, otherwise lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rich.box import ROUNDED
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from penstock.demo.plant import Moment
from penstock.demo.story import FLEET, USUAL_PER_S
from penstock.flow.planner import OCCUPANCY_MAX
from penstock.kernel.units import format_ms

TEXT: Final = "#d5d9de"
QUIET: Final = "#8a929c"
RULE: Final = "#3b424b"
TRACK: Final = "#2f353d"
ZONE_TRACK: Final = "#3d6b59"
CALM: Final = "#6ca6d9"
GOOD: Final = "#6cc08b"
WARM: Final = "#e0b060"
HOT: Final = "#e0705c"
ZONE: Final = (0.50, OCCUPANCY_MAX)

KEYS: Final = (
    ("b", "burst"), ("t", "tariff"), ("p", "pause"), ("w", "kill worker"),
    ("s", "kill server"), ("q", "end and prove"),
)  # fmt: skip
"""All of them fit into 80 columns."""
TALL_LINES: Final = 26
"""With fewer lines, the pressure panel has no frame."""


def moment_line(moment: Moment) -> str:
    """One second as one line."""
    rows = moment.rows
    return (
        f"{moment.at_s:5.0f} s"
        f"  acknowledged {moment.acked:>8,}"
        f"  readings {rows.get('readings', 0):>9,}"
        f"  charges {rows.get('charges', 0):>9,}"
        f"  behind {_behind(moment):>6}"
        f"  {_stages_words(moment.ingest)}"
        f"  pressure {_pressure(moment):.2f}"
        f"  {_tables_words(moment)}"
    )


def view(moment: Moment, event: str, url: str, width: int, height: int) -> RenderableType:
    """The view of one moment; fits into 80 by 24."""
    pressure: RenderableType = _pressure_line(moment, width)
    if height >= TALL_LINES:
        whole = _pressure_bar(moment, width - 4)
        pressure = panel(whole, "pressure of the topic server", _rung(moment))
    return Group(
        _head(moment, url),
        Text.assemble((" ▸ ", WARM), (event, TEXT), no_wrap=True, overflow="ellipsis"),
        panel(
            _counts(moment),
            "messages",
            f"fastest {moment.fastest_per_s:,}/s · {_behind(moment)} not in the lake yet",
        ),
        panel(_stages(moment.ingest, width), "stages", _bottleneck(moment.ingest)),
        pressure,
        panel(_tables(moment), "stream tables", f"{len(moment.workers)} workers"),
        _keys(),
    )


def how_far(fastest_per_s: int) -> str:
    """How much this machine can store, as far as it was asked to."""
    usual = USUAL_PER_S * FLEET.meters
    return (
        f"{usual:,} readings a second are the usual load; in the fastest second "
        f"{fastest_per_s:,} were stored"
    )


def where_to_look(directory: Path, catalog: str) -> str:
    """Where the data is and which commands show it."""
    return (
        f"\nthe data is in {directory}; look at it with DuckDB:\n"
        "  INSTALL ducklake; LOAD ducklake;\n"
        f"  ATTACH 'ducklake:{catalog}' AS lake; USE lake;\n"
        "  FROM district_totals ORDER BY district;\n"
        f"or with: penstock query --catalog {catalog} district_totals"
    )


def _head(moment: Moment, url: str) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(
        Text.assemble((" penstock", f"bold {TEXT}"), ("  slower under load, never lossy", QUIET)),
        Text.assemble((f"{url} · ", QUIET), (f"{moment.at_s:.0f} s ", f"bold {TEXT}")),
    )
    return head


def _counts(moment: Moment) -> RenderableType:
    row = Table.grid(expand=True)
    facts = (
        ("acknowledged", f"{moment.acked:,}"),
        ("waiting at devices", f"{max(0, moment.offered - moment.acked):,}"),
        ("readings in the lake", f"{moment.rows.get('readings', 0):,}"),
        ("charges", f"{moment.rows.get('charges', 0):,}"),
        ("dead letters", f"{moment.rows.get('dead_letters', 0):,}"),
    )
    for _ in facts:
        row.add_column(justify="center")
    row.add_row(*(Text(value, style=f"bold {TEXT}") for _, value in facts))
    row.add_row(*(Text(name, style=QUIET) for name, _ in facts))
    return row


def _stages(ingest: dict[str, Any] | None, width: int) -> RenderableType:
    if ingest is None:
        return Text("no answer from the pipeline", HOT)
    bar_width = max(10, width - 66)
    names = f"{'stage':<12}{'window':>7}  {'occupied':<{bar_width}}{'':>6}{'rate':>11}"
    lines = [Text(f"{names}{'p50':>10}{'p99':>10}", style=QUIET)]
    for stage in ingest["stages"]:
        is_bottleneck = stage["name"] == ingest["bottleneck"]
        style = HOT if is_bottleneck else GOOD if stage["occupancy"] < 0.9 else WARM
        lines.append(
            Text.assemble(
                (f"{stage['name']:<12}", f"bold {HOT}" if is_bottleneck else TEXT),
                (f"{stage['window']:>7,}  ", TEXT),
                bar(stage["occupancy"], bar_width, style),
                (f"{100 * stage['occupancy']:>5.0f}%", style),
                (f"{stage['rate_per_s']:>9,.0f}/s", TEXT),
                (f"{_span(stage['p50_ns']):>10}{_span(stage['p99_ns']):>10}", QUIET),
            )
        )
    trouble = ingest["pipeline"]["trouble"]
    if trouble:
        lines.append(Text(trouble, style=HOT, no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _tables(moment: Moment) -> RenderableType:
    if not moment.tables:
        return Text("not created yet", QUIET)
    table = Table.grid(padding=(0, 2))
    names = max(len(status.table) for status in moment.tables)
    for least in (names, 9, 13, None):  # the reason for waiting is shortened first
        table.add_column(no_wrap=True, overflow="ellipsis", min_width=least)
    for status in moment.tables:
        table.add_row(
            Text(status.table, style=TEXT),
            Text(f"{moment.rows.get(status.table, 0):,} rows", style=TEXT),
            Text(f"fresh {_age(status.fresh_ms)}", style=GOOD),
            Text(f"{status.reason.value} {status.waiting_for}".strip(), style=QUIET),
        )
    return table


def _pressure_bar(moment: Moment, width: int) -> Text:
    if moment.scheduler is None:
        return Text("no answer: the server is starting", HOT)
    pressure = _pressure(moment)
    style = HOT if pressure > 0.85 else WARM if pressure > 0.5 else CALM
    return Text.assemble(bar(pressure, max(4, width - 8), style), f"  {pressure:.2f}")


def _pressure_line(moment: Moment, width: int) -> RenderableType:
    """The same without a frame."""
    words = f" server pressure · {_rung(moment)} "
    return Text.assemble(
        (words, QUIET), _pressure_bar(moment, width - len(words)), no_wrap=True, overflow="ellipsis"
    )


def _keys() -> Text:
    parts: list[tuple[str, str]] = []
    for key, words in KEYS:
        parts += [(f" {key} ", f"bold {TEXT}"), (f"{words} ", QUIET)]
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _rung(moment: Moment) -> str:
    return str(moment.scheduler["rung"]) if moment.scheduler else "–"


def _bottleneck(ingest: dict[str, Any] | None) -> str:
    held = ingest["bottleneck"] if ingest else None
    return f"bottleneck: {held}" if held else "all stages keep up"


def _stages_words(ingest: dict[str, Any] | None) -> str:
    if ingest is None:
        return "no pipeline"
    return " ".join(
        f"{stage['name']} {stage['window']}/{100 * stage['occupancy']:.0f}%"
        for stage in ingest["stages"]
    )


def _tables_words(moment: Moment) -> str:
    ages = [status.fresh_ms for status in moment.tables if status.fresh_ms is not None]
    if not ages:
        return "no tables yet"
    return f"tables fresh {_age(min(ages))}"


def _behind(moment: Moment) -> str:
    return f"{moment.ingest['pipeline']['behind']:,}" if moment.ingest else "–"


def _pressure(moment: Moment) -> float:
    return float(moment.scheduler["pressure"]) if moment.scheduler else 0.0


def _span(span_ns: int | None) -> str:
    return format_ms(span_ns / 1e6) if span_ns else "–"


def _age(fresh_ms: int | None) -> str:
    """How long ago a wall-clock time was."""
    import time

    if fresh_ms is None:
        return "never"
    return f"{max(0.0, time.time() - fresh_ms / 1e3):.0f} s ago"


def bar(share: float, width: int, style: str, zone: tuple[float, float] = ZONE) -> Text:
    """A fraction as a thick line on a thin one, with a zone marked on the thin one."""
    filled = min(width, round(share * width))
    line = Text("━" * filled, style=style)
    for cell in range(filled, width):
        line.append("─", ZONE_TRACK if zone[0] <= (cell + 0.5) / width <= zone[1] else TRACK)
    return line


def panel(content: RenderableType, title: str, subtitle: str) -> Panel:
    """A part of a view, with a title and a footer."""
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
