"""`penstock ingest`: messages of devices into topics and tables, and its status."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import LazyGroup

COMMANDS: Final = {
    "run": (
        "ingest_run",
        "Take meter messages of devices into the tables `readings` and `charges` until Ctrl-C.",
    ),
    "edge": ("ingest_run", "Take messages of devices into a durable topic until Ctrl-C."),
    "status": (
        "ingest_status",
        "Show each stage's window, occupancy, rate and latency, and which one is the bottleneck.",
    ),
}
MOVED: Final = ("load", "replay", "tariffs")
"""Commands that moved to `penstock metering`."""


class _Ingest(LazyGroup):
    """Still runs the commands that moved, with a note on standard error."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MOVED:
            return super().get_command(ctx, cmd_name)
        from penstock.cli.metering import metering  # help does not import commands

        click.echo(
            f"note: `penstock ingest {cmd_name}` is now `penstock metering {cmd_name}`", err=True
        )
        return metering.get_command(ctx, cmd_name)


@click.group(cls=_Ingest, lazy=COMMANDS)
def ingest() -> None:
    """Take in the messages of devices."""
