"""`penstock metering`: the included example, from a fleet of meters to the cost of its power."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import LazyGroup

COMMANDS: Final = {
    "run": (
        "ingest_run",
        "Take meter messages of devices into the tables `readings` and `charges` until Ctrl-C.",
    ),
    "tariffs": ("metering_tariffs", "Look at and change tariffs, and which meter has which."),
    "load": (
        "metering_load",
        "Offer the load of a meter fleet to an edge, and wait until all is acknowledged.",
    ),
    "replay": (
        "metering_replay",
        "Try the dead letters of the metering pipeline again: what goes through now is stored.",
    ),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def metering() -> None:
    """Run the shipped example: readings of meters, priced by tariffs."""
