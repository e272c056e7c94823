"""`penstock demo topics`: the topic server alone, at work and killed in the middle of it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from penstock.cli.demo_server import DemoServer
from penstock.cli.demo_town import Second, Town
from penstock.cli.demo_town_view import event_line, second_line, summary, view
from penstock.kernel.errors import PenstockError

SECONDS: Final = 20.0


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=SECONDS,
    show_default=True,
    help="How long the meters write.",
)
def topics(seconds: float) -> None:
    """Show a topic server at work: meters write, a watcher follows, a worker does the jobs.

    A real server is started on a free port with a directory of its own, put under load, killed
    with SIGKILL and started again. In the end every acknowledged record is accounted for, and
    everything that was made is removed. Needs no Java.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        town = Town(DemoServer(Path(directory)), seconds)
        try:
            _show(town)
        except KeyboardInterrupt:
            click.echo("\nended by Ctrl-C")
        except PenstockError as error:
            raise click.ClickException(error.message) from error
    click.echo(summary(town))
    click.echo(what_next())
    sys.exit(0 if town.ledger.is_right else 1)


def what_next() -> str:
    """What to type now, so that it works from where the person is."""
    name = "penstock"
    if shutil.which(name) is None:
        name = str(Path(sys.executable).with_name(name))
        if name.startswith(f"{Path.cwd()}/"):
            name = name.removeprefix(f"{Path.cwd()}/")
    return (
        "\nyour turn, in two terminals:\n"
        f"  {name} serve\n"
        f'  {name} topic write meters \'{{"meter": 7, "kwh": 1.5}}\'\n'
        f"  {name} topic follow meters --from-seq 0\n"
        f"or see how flow control works inside: {name} demo flow"
    )


def _show(town: Town) -> None:
    console = Console()
    if not console.is_terminal:
        asyncio.run(town.run(_print))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def refresh(_: Second | str) -> None:
            live.update(view(town, console.width), refresh=True)

        asyncio.run(town.run(refresh))
    console.print(view(town, console.width))


def _print(told: Second | str) -> None:
    click.echo(event_line(told) if isinstance(told, str) else second_line(told))
