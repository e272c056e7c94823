"""`penstock ingest`: messages of devices into topics, load for it, and how it is going."""

from __future__ import annotations

import click

from penstock.cli.ingest_edge import edge
from penstock.cli.ingest_load import load
from penstock.cli.ingest_status import status


@click.group()
def ingest() -> None:
    """Take in the messages of devices."""


ingest.add_command(edge)
ingest.add_command(status)
ingest.add_command(load)
