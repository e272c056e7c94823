"""`penstock serve`: the topic server in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.options import config_option, setting_flags, usage
from penstock.config import CLUSTER_TABLE, FILE_TABLE, load, load_cluster

PEERS: Final = ("peer_listen", "advertise", "leaders")
TRUST: Final = ("tls_cert", "tls_key", "tls_ca", "secret_file")
"""Settings of the cluster: those whose flags have their names, and those that say `--cluster-`."""


@click.command()
@setting_flags(
    FILE_TABLE, "host", "port", "port_file", "data_dir", "catalog", "store", "wal_shards",
    "disk_sync_ms", "tls_cert", "tls_key", "allow_insecure_no_auth", "allowed_origins",
    "allowed_hosts", "log",
)  # fmt: skip
@setting_flags(CLUSTER_TABLE, *PEERS)
@setting_flags(CLUSTER_TABLE, *TRUST, prefix="cluster-")
@config_option
def serve(config: Path | None, **flags: Any) -> None:
    """Serve topics over HTTP until Ctrl-C.

    Every setting can also be given in the settings file, in the table [server], or as an
    environment variable: PENSTOCK_ and its name in capitals. Flags take precedence over the
    environment, and the environment over the file.
    """
    from penstock.app.server import serve as run
    from penstock.app.server import telling_of_salvage
    from penstock.cli.data_dir import check_layout, refuse_backup
    from penstock.server.api.auth import parse_keys
    from penstock.server.http.origins import Origins

    given = {name: flags.pop(name) for name in PEERS}
    given |= {name: flags.pop(f"cluster_{name}") for name in TRUST}
    with usage():
        cluster = load_cluster(file=config, flags=given)
        settings = load(file=config, flags={key: each for key, each in flags.items() if each != ()})
        parse_keys(settings.api_keys)
        Origins(allowed_origins=settings.allowed_origins, allowed_hosts=settings.allowed_hosts)
    if settings.store != "memory":
        refuse_backup(settings.data_dir)
        with telling_of_salvage(settings):
            check_layout(settings.data_dir)
    if settings.catalog:
        _tell_of_new(settings.catalog)
    shown = _show if sys.stderr.isatty() else None
    run(settings, say=_say, on_progress=shown, cluster=cluster)


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
