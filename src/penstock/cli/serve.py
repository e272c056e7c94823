"""`penstock serve`: the topic server in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from penstock.cli.placing import usage
from penstock.config import LOG_LEVELS, load
from penstock.kernel.errors import PenstockError
from penstock.log.stores import KINDS


@click.command()
@click.option("--host", help="Address to listen on, or host:port. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes any free one. [default: 4000]")
@click.option("--port-file", help="Write the bound host:port to this file.")
@click.option("--data-dir", help="Directory of the log. [default: topics-data]")
@click.option("--catalog", help="Warehouse of stream tables to serve, such as sqlite:lake.sqlite.")
@click.option("--store", type=click.Choice(KINDS), help="Where the log rests. [default: segment]")
@click.option("--wal-shards", type=int, help="Partitions of the log; fixed when it is made.")
@click.option("--disk-sync-ms", type=int, help="How soon `disk` records are synced.")
@click.option("--tls-cert", help="Certificate chain (PEM).")
@click.option("--tls-key", help="Private key (PEM) of the certificate.")
@click.option(
    "--allow-insecure-no-auth",
    is_flag=True,
    default=None,
    help="Listen beyond this machine without keys.",
)
@click.option(
    "--allowed-origin",
    "allowed_origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin use the server; may be repeated. [default: its own only]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Without keys, answer under this name too; may be repeated. "
    "[default: localhost and loopback]",
)
@click.option("--log", type=click.Choice(LOG_LEVELS), help="What is logged. [default: info]")
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Settings file. [default: penstock.toml if it is here]",
)
def serve(config: Path | None, **flags: Any) -> None:
    """Serve topics over HTTP until Ctrl-C.

    Every setting can also stand in the file, in its table [server], or in the environment as
    PENSTOCK_ and its name in capitals; flags win over the environment, and it over the file.
    """
    from penstock.app.server import serve as run
    from penstock.app.server import telling_of_salvage
    from penstock.cli.data_place import check_layout, refuse_backup
    from penstock.server.api.auth import parse_keys
    from penstock.server.http.origins import Origins

    try:
        flags = {name: value for name, value in flags.items() if value != ()}
        with usage():
            settings = load(file=config, flags=flags)
            parse_keys(settings.api_keys)
            Origins(allowed_origins=settings.allowed_origins, allowed_hosts=settings.allowed_hosts)
        if settings.store != "memory":
            refuse_backup(settings.data_dir)
            with telling_of_salvage(settings):
                check_layout(settings.data_dir)
        if settings.catalog:
            _tell_of_new(settings.catalog)
        on_progress = _show if sys.stderr.isatty() else None
        run(settings, say=_say, on_progress=on_progress)
    except PenstockError as error:
        raise click.ClickException(error.message) from error


def _tell_of_new(catalog: str) -> None:
    """Say that a new warehouse will be created: its name may be a typo."""
    from penstock.lake.database import is_absent, open_database

    if is_absent(open_database(catalog)):
        _say(f"there is no warehouse at {catalog}: a new one is made when it is first used")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _show(progress: float) -> None:
    """How much of the log is replayed, on one line of the terminal."""
    if progress < 1.0:
        click.echo(f"\rreplaying the log: {progress:4.0%}", err=True, nl=False)
    else:
        click.echo("\rready                     ", err=True)
