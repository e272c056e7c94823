"""`penstock ingest`: messages of devices into topics and tables, load for it, how it is going."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli import LazyGroup

COMMANDS: Final = {
    "run": (
        "ingest_run",
        "Take meter messages of devices into the tables `readings` and `charges` until Ctrl-C.",
    ),
    "edge": ("ingest_edge", "Take messages of devices into a durable topic until Ctrl-C."),
    "status": (
        "ingest_status",
        "Show each stage's window, occupancy, rate and latency, and which one is the bottleneck.",
    ),
    "load": (
        "ingest_load",
        "Offer the load of a meter fleet to an edge, and wait until all is acknowledged.",
    ),
    "replay": (
        "ingest_replay",
        "Try the dead letters of the metering pipeline again: what goes through now is stored.",
    ),
    "tariffs": ("ingest_tariffs", "Look at and change tariffs, and which meter has which."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def ingest() -> None:
    """Take in the messages of devices."""
