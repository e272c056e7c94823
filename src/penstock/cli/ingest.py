"""`penstock ingest`: messages of devices into topics and tables, load for it, how it is going."""

from __future__ import annotations

import click

from penstock.cli.ingest_edge import edge
from penstock.cli.ingest_load import load
from penstock.cli.ingest_replay import replay
from penstock.cli.ingest_run import run
from penstock.cli.ingest_status import status
from penstock.cli.ingest_tariffs import tariffs


@click.group()
def ingest() -> None:
    """Take in the messages of devices."""


for command in (run, edge, status, load, replay, tariffs):
    ingest.add_command(command)
