"""`penstock up`: server, ingest and tables on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.options import config_option, json_flag, usage
from penstock.cli.output import Output
from penstock.config import load, load_ingest, load_spark, load_tables

if TYPE_CHECKING:
    from penstock.app.up import UpSettings


@click.command()
@click.option(
    "--without", multiple=True, type=click.Choice(["ingest", "tables"]),
    help="Leave a part out; may be repeated.",
)  # fmt: skip
@click.option(
    "--check", is_flag=True, help="Only report whether the parts are running; exit code 1 if not."
)
@config_option
@json_flag
def up(without: tuple[str, ...], check: bool, config: Path | None, as_json: bool) -> None:
    """Run server, ingest and tables on this machine until Ctrl-C.

    Each part is a process of its own and is restarted when it ends; its output is prefixed with its
    name. Ingest and tables share one Spark. Settings come from the tables [server], [ingest],
    [tables] and [spark] of the settings file; without a file the defaults apply, with data in the
    current directory. Ctrl-C stops the parts in order, a second Ctrl-C at once.
    """
    from penstock.app.up import PARTS, UpSettings, run_up

    with usage():
        settings = UpSettings(
            load(file=config), load_ingest(file=config), load_tables(file=config),
            load_spark(file=config), config, tuple(part for part in PARTS if part not in without),
        )  # fmt: skip
        settings.check()
    if check:
        _check(settings, Output(as_json))
        return
    asyncio.run(run_up(settings, say=_say, on_line=_show))


def _say(line: str) -> None:
    click.echo(line)


def _show(part: str, line: str) -> None:
    click.echo(f"{click.style(f'{part:<7}', dim=True)} {line}", err=True)


def _check(settings: UpSettings, output: Output) -> None:
    """Print a line for each part; exits with 1 if one is not running."""
    from penstock.app.up import states

    found = asyncio.run(states(settings))
    for part, (runs, text) in found.items():
        output.say(f"{part:<7} {text}", part=part, runs=runs, text=text)
    if not all(runs for runs, _ in found.values()):
        sys.exit(1)
