"""What `penstock demo` shows of its server: a view for terminals, lines for all else."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli.demo_lines import ladder
from penstock.cli.demo_town import Second, Town
from penstock.cli.demo_view import CALM, GOOD, HOT, QUIET, RULE, TEXT, WARM, bar, panel, sparkline
from penstock.flow import Level, Rung
from penstock.flow.governor import COALESCE_ABOVE, DEFER_ABOVE, WIDEN_ABOVE
from penstock.kernel.units import format_ms

NAME_WIDTH: Final = 22
NUMBER_WIDTH: Final = 12


def event_line(event: str) -> str:
    """What happens now."""
    return f"     ▸ {event}"


def second_line(second: Second) -> str:
    """Rates, delay and pressure of the second that ended."""
    return (
        f"{second.at_s:4.0f} s"
        f"  written {second.written:>7,.0f}/s"
        f"  delivered {second.delivered:>7,.0f}/s"
        f"  jobs {second.done:>4,.0f}/s"
        f"  write to watcher p50 {_delay(second.p50_ms):>7} p99 {_delay(second.p99_ms):>7}"
        f"  {_pressure_words(second.scheduler)}"
    )


def summary(town: Town) -> str:
    """What became of everything that was acknowledged."""
    ledger = town.ledger
    p50_ns, p99_ns = town.delays.quantiles((0.5, 0.99))
    acked, seen = ledger.acked.total(), ledger.seen.total()
    missing, twice = f"{ledger.missing:,} missing", f"{ledger.twice:,} twice"
    waiting, again = f"{ledger.jobs_missing:,} waiting", f"{ledger.jobs_again:,} handed out again"
    half, most = _delay(p50_ns / 1e6), _delay(p99_ns / 1e6)
    lines = [
        f"{acked:,} readings acknowledged: {seen:,} delivered in order, {missing}, {twice}",
        f"{ledger.jobs_acked:,} of them jobs: {len(ledger.jobs_done):,} done, {waiting}, {again}",
        f"from write to watcher: half within {half}, 99 of 100 within {most}",
    ]
    if town.down_ms is not None:
        lines.append(f"the server was killed once, and listened again {_delay(town.down_ms)} later")
    return "\n".join(lines)


def view(town: Town, width: int) -> RenderableType:
    """One picture of the present moment."""
    return Group(
        _head(town), _event(town), _rates(town, width - 4), _delays(town, width - 4),
        _pressure(town, width - 4),
    )  # fmt: skip


def _head(town: Town) -> RenderableType:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    at_s = town.history[-1].at_s if town.history else 0.0
    head.add_row(
        Text.assemble((" penstock", f"bold {TEXT}"), ("  slower under load, never lossy", QUIET)),
        Text.assemble((f"{town.server.url} · ", QUIET), (f"{at_s:.0f} s ", f"bold {TEXT}")),
    )
    return head


def _event(town: Town) -> Text:
    text = Text.assemble((" ▸ ", WARM), (town.event, TEXT))
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _rates(town: Town, width: int) -> RenderableType:
    rows = (
        ("4 meters → readings", [second.written for second in town.history], WARM),
        ("readings → watcher", [second.delivered for second in town.history], GOOD),
        ("alarms → worker", [second.done for second in town.history], CALM),
    )
    lines = [_line(name, values, style, "{:,.0f}/s", width) for name, values, style in rows]
    ledger = town.ledger
    told = f"{ledger.acked.total():,} acknowledged · {ledger.missing:,} on the way"
    return panel(Group(*lines), "records", told)


def _delays(town: Town, width: int) -> RenderableType:
    lines = [
        _line("half within", [second.p50_ms for second in town.history], CALM, None, width),
        _line("99 of 100 within", [second.p99_ms for second in town.history], WARM, None, width),
    ]
    return panel(Group(*lines), "from write to watcher", "every write is synced to the disk")


def _line(name: str, values: list[float], style: str, shape: str | None, width: int) -> Text:
    wide = max(4, width - NAME_WIDTH - NUMBER_WIDTH)
    last = values[-1] if values else 0.0
    number = shape.format(last) if shape else _delay(last)
    drawn = sparkline(values, max([*values[-wide:], 1e-9]), wide)
    line = Text.assemble(
        (f"{name:<{NAME_WIDTH}}", TEXT), (drawn, style), (f"{number:>{NUMBER_WIDTH}}", TEXT)
    )
    line.truncate(width, overflow="ellipsis")
    return line


def _pressure(town: Town, width: int) -> RenderableType:
    told = town.history[-1].scheduler if town.history else {}
    if told is None:
        return panel(Text("no answer: the server is starting", HOT), "pressure", "–")
    rung = _rung(told)
    style = HOT if rung.deferring else WARM if rung.pressure > COALESCE_ABOVE else CALM
    marks = (WIDEN_ABOVE, DEFER_ABOVE)
    lines = [
        Text.assemble(bar(rung.pressure, max(4, width - 6), style, marks), f"  {rung.pressure:.2f}")
    ]
    for active, words in ladder(rung):
        line = Text.assemble(
            ("● " if active else "○ ", style if active else RULE),
            (words, TEXT if active else QUIET),
        )
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return panel(Group(*lines), "pressure", rung.level.name.lower())


def _rung(told: dict[str, Any]) -> Rung:
    """The rung as the server's scheduler tells it."""
    return Rung(
        Level[told.get("rung", "steady").upper()],
        told.get("pressure", 0.0),
        told.get("coalesce_ms", 0.0),
        told.get("commit_window_ms", 0.0),
        told.get("deferring", False),
        told.get("refusing", False),
        0,
        told.get("drain_ms", 0.0),
    )


def _pressure_words(told: dict[str, Any] | None) -> str:
    return "no server" if told is None else f"pressure {told['pressure']:.2f} {told['rung']}"


def _delay(span_ms: float) -> str:
    return format_ms(span_ms) if span_ms else "–"
