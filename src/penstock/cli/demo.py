"""`penstock demo`: all of Penstock at work on this machine, with failures on request."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from penstock.kernel.errors import PenstockError


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Run for a short while with a burst and two kills, then prove that all is right. "
    "Always so where there is no terminal.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    help="How long the meters send. [default: until q or Ctrl-C; 30 for a check]",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the data; must be empty. [default: a new one]",
)
def demo(check: bool, seconds: float | None, directory: Path | None) -> None:
    """Show all of Penstock on this machine: meters, topics, Spark, a lake, stream tables.

    A simulated fleet of meters sends one day of readings every half minute. They become durable in
    a topic, are parsed and priced by Spark and stored in a lake, and three stream tables follow.
    Single keys raise the load, raise a tariff, pause a stage, or kill a worker or the server. With
    q everything drains and the result is verified; a second q skips that. Ctrl-C quits at once.
    Needs Java 17 or newer.
    """
    from penstock.demo.tour import CHECK_S, Tour
    from penstock.demo.view import where_to_look

    check = check or not (sys.stdin.isatty() and sys.stdout.isatty())
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    made = directory is None
    place = (directory or Path(tempfile.mkdtemp(prefix="penstock-demo-"))).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise click.ClickException(f"{place} is not empty; name an empty or a new directory")
    tour = Tour(place, check=check, seconds=seconds or (CHECK_S if check else None))
    try:
        is_right = asyncio.run(tour.run())
    except KeyboardInterrupt:
        click.echo("\nended by Ctrl-C")
        is_right = True
    except PenstockError as error:
        click.echo(f"the logs are in {place}", err=True)
        raise click.ClickException(error.message) from error
    finally:
        tour.plant.end_now()
    if check and is_right and made:
        shutil.rmtree(place, ignore_errors=True)
    else:
        click.echo(where_to_look(place, tour.plant.catalog))
    sys.exit(0 if is_right else 1)
