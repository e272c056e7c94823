"""`penstock ingest status`: windows, occupancy, rates and the bottleneck of a running edge."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock.cli import placing
from penstock.kernel.units import format_bytes, format_ms

DEFAULT_URL = "http://127.0.0.1:4101"


@click.command()
@click.option(
    "--url",
    type=placing.url,
    default=DEFAULT_URL,
    show_default=True,
    help="The edge's port for status.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON, also on a terminal.")
def status(url: str, as_json: bool) -> None:
    """Show each stage's window, occupancy, rate and latency, and which one is the bottleneck."""
    found = fetch(url)
    console = Console()
    if as_json or not console.is_terminal:
        click.echo(json.dumps(found))
    else:
        show(console, found)


def fetch(url: str) -> dict[str, Any]:
    """The status of the edge at a URL."""
    from penstock.app.ingest import fetch_status
    from penstock.protocol.errors import CallError

    try:
        return fetch_status(url)
    except CallError as error:
        raise click.ClickException(f"no status of an edge at {url}: {error}") from error


def show(console: Console, found: dict[str, Any]) -> None:
    """Print a status as a table and a line."""
    console.print(table_of(found))
    console.print(line_of(found))


def table_of(found: dict[str, Any]) -> Table:
    """The stages of a status; the bottleneck is highlighted."""
    table = Table()
    for heading in ("stage", "window", "occupancy", "items/s", "p50", "p99", "why"):
        table.add_column(heading, justify="left" if heading in ("stage", "why") else "right")
    for stage in found["stages"]:
        is_bottleneck = stage["name"] == found["bottleneck"]
        table.add_row(
            f"[bold red]{stage['name']}[/]" if is_bottleneck else stage["name"],
            f"{stage['window']:,}",
            f"{stage['occupancy']:.0%}",
            f"{stage['rate_per_s']:,.0f}",
            _span(stage["p50_ns"]),
            _span(stage["p99_ns"]),
            stage["note"].partition(": ")[2],
        )
    return table


def _span(span_ns: int | None) -> str:
    """A latency, or nothing if there was none."""
    return "–" if span_ns is None else format_ms(span_ns / 1e6)


def line_of(found: dict[str, Any]) -> str:
    """The rest of a status in one line."""
    edge, held = found["edge"], found["bottleneck"]
    facts = [
        f"{edge['connections']:,} connections",
        f"{edge['messages_acked_total']:,} messages acknowledged",
        f"{format_bytes(edge['buffered_bytes'])} not durable yet",
    ]
    pipeline = found.get("pipeline")
    if pipeline is not None:
        facts.append(f"{pipeline['behind']:,} messages not in the lake yet")
        if pipeline["tariffs"]:
            facts.append("priced with {space} at seq {seq:,}".format(**pipeline["tariffs"]))
        if pipeline["trouble"]:
            facts.append(f"trouble: {pipeline['trouble']}")
    facts.append(f"bottleneck: {held}" if held else "all stages keep up")
    return " · ".join(facts)
