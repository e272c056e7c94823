"""`penstock demo flow`: the simulated pipeline live in a terminal, or line by line without one."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from penstock.cli.demo_lines import event_line, second_line, summary
from penstock.cli.demo_picture import picture
from penstock.cli.demo_view import view
from penstock.flow.planner import Growth
from penstock.sim.load import SHAPES
from penstock.sim.pipeline import STEP_MS
from penstock.sim.show import SCRIPT_MS, Show

FRAME_MS: Final = 100
GROWTHS: Final = ("aimd", "cubic")


@click.command("flow")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=SCRIPT_MS / 1_000,
    show_default=True,
    help="How long, in simulated seconds; 0 goes on until Ctrl-C.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0.1, max=100),
    default=1.0,
    show_default=True,
    help="Simulated seconds for each real one; without a terminal it runs as fast as it can.",
)
@click.option(
    "--seed", type=int, default=7, show_default=True, help="The same seed shows the same."
)
@click.option(
    "--shape",
    type=click.Choice(SHAPES),
    default="square",
    show_default=True,
    help="How the load changes over time.",
)
@click.option(
    "--growth",
    type=click.Choice(GROWTHS),
    default="aimd",
    show_default=True,
    help="How windows grow again.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write the last view as a picture.",
)
def flow(
    seconds: float, speed: float, seed: int, shape: str, growth: Growth, svg: Path | None
) -> None:
    """Show flow control alone: a simulated pipeline of five stages under a changing load.

    Everything is simulated but the scheduler: windows, credits, bands and pressure are computed by
    the parts that do it in production.
    """
    show = Show(seed=seed, shape=shape, growth=growth)
    console = Console()
    until_ms = seconds * 1_000 or inf
    try:
        if console.is_terminal:
            _live(console, show, until_ms, speed)
        else:
            _lines(show, until_ms)
    except KeyboardInterrupt:
        click.echo("\nended by Ctrl-C")
    if console.is_terminal:
        console.print(view(show, console.width, console.height))
    click.echo(summary(show))
    if svg is not None:
        svg.write_text(picture(show), encoding="utf-8")
        click.echo(f"the last view is in {svg}")


def _live(console: Console, show: Show, until_ms: float, speed: float) -> None:
    """A frame every 100 ms of real time; a slow terminal makes time slower, not choppy."""
    frame_ms = max(STEP_MS, round(FRAME_MS * speed / STEP_MS) * STEP_MS)
    due_s = time.monotonic()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while show.now_ms < until_ms:
            show.advance(frame_ms)
            live.update(view(show, console.width, console.height), refresh=True)
            due_s = max(due_s + FRAME_MS / 1_000, time.monotonic())
            time.sleep(max(0.0, due_s - time.monotonic()))


def _lines(show: Show, until_ms: float) -> None:
    """A line for every simulated second, and one for every event."""
    while show.now_ms < until_ms:
        for event in show.advance(int(min(1_000, until_ms - show.now_ms))):
            click.echo(event_line(event))
        click.echo(second_line(show))
