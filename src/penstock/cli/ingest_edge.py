"""`penstock ingest edge`: the port for devices, in the foreground."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from penstock.cli import placing
from penstock.cli.placing import api_key_option, usage
from penstock.config import GROWTHS, LOG_LEVELS, load_ingest
from penstock.kernel.errors import PenstockError


@click.command()
@click.option("--host", help="Address to listen on, or host:port. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port for devices; 0 takes any free one. [default: 4100]")
@click.option("--port-file", help="Write the bound host:port to this file, then that of status.")
@click.option("--status-port", type=int, help="Port for status and metrics. [default: 4101]")
@click.option(
    "--url", type=placing.url, help="Where the topic server is. [default: http://127.0.0.1:4000]"
)
@api_key_option(envvars=["PENSTOCK_INGEST_API_KEY"])
@click.option("--raw-topic", help="Topic of the messages. [default: ingest.raw]")
@click.option("--tokens-file", help="File of device tokens.")
@click.option(
    "--allow-insecure-no-tokens",
    is_flag=True,
    default=None,
    help="Listen beyond this machine without tokens.",
)
@click.option("--tls-cert", help="Certificate chain (PEM).")
@click.option("--tls-key", help="Private key (PEM) of the certificate.")
@click.option("--growth", type=click.Choice(GROWTHS), help="How windows grow. [default: aimd]")
@click.option("--log", type=click.Choice(LOG_LEVELS), help="What is logged. [default: info]")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. [default: penstock.toml if it is here]",
)
def edge(config: Path | None, **flags: Any) -> None:
    """Take messages of devices into a durable topic until Ctrl-C.

    Every setting can also stand in the file, in its table [ingest], or in the environment as
    PENSTOCK_INGEST_ and its name in capitals.
    """
    from penstock.app.ingest import run_edge_alone

    try:
        with usage():
            settings = load_ingest(file=config, flags=flags)
        run_edge_alone(settings, say=partial(click.echo, err=True))
    except PenstockError as error:
        raise click.ClickException(error.message) from error
