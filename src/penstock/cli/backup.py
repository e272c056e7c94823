"""`penstock backup` and `restore`: a consistent copy of a data directory, and back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from penstock.cli import placing
from penstock.cli.data_place import check_layout
from penstock.cli.output import bars, waiting
from penstock.cli.placing import api_key_option
from penstock.client import Client, ClientSettings
from penstock.kernel.errors import PenstockError
from penstock.kernel.system import SystemClock
from penstock.kernel.units import format_bytes
from penstock.topics.persist import backup as backups
from penstock.topics.persist.backup import back_up_directory

LOOK_TIMEOUT_S: Final = 1.0
"""How long a progress request may take, and so delay the end."""


@click.command()
@click.argument("dest", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data directory of a server that does not run.",
)
@click.option(
    "--cold-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where its cold segments are, if not in the data directory.",
)
@click.option(
    "--url", type=placing.url, envvar="PENSTOCK_URL", show_envvar=True,
    help="A running server, which makes the copy on its own machine.",
)  # fmt: skip
@api_key_option()
@click.option(
    "--ca-file", envvar="PENSTOCK_CA_FILE", show_envvar=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Certificates to trust with https, in place of the system's.",
)  # fmt: skip
@click.option(
    "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=3_600.0,
    show_default=True, help="How long the server may take.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of text.")
@click.pass_context
def backup(
    ctx: click.Context,
    /,
    dest: Path,
    data_dir: Path | None,
    cold_dir: Path | None,
    as_json: bool,
    **server: Any,
) -> None:
    """Copy a data directory to DEST, which must be empty or not there yet.

    Either the directory of a server that does not run (--data-dir), or a running server (--url),
    which goes on meanwhile. Every file of the copy is checked and listed with its checksum.
    """
    is_named = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
    if (data_dir is None and server["url"] is None) or (data_dir is not None and is_named):
        raise click.UsageError("expected --data-dir or --url, and not both")
    try:
        if data_dir is not None:
            report = _copied(data_dir, cold_dir, dest, hidden=as_json)
        else:
            report = ask_server(dest.absolute(), hidden=as_json, **server)
    except PenstockError as error:
        raise click.ClickException(error.message) from error
    if as_json:
        click.echo(json.dumps(report))
    else:
        size = format_bytes(report["bytes"])
        click.echo(f"backup of {report['files']} files, {size}, in {report['directory']}")


def _copied(data_dir: Path, cold_dir: Path | None, dest: Path, *, hidden: bool) -> dict[str, Any]:
    """Copy a directory that is not in use."""
    check_layout(data_dir)
    with bars(hidden=hidden) as on_progress:
        made = back_up_directory(
            data_dir,
            dest,
            cold_dir=cold_dir,
            now_ms=SystemClock().now_ms(),
            on_progress=on_progress,
        )
    return {
        "directory": str(dest),
        "files": len(made.files),
        "bytes": made.size_bytes,
        "partitions": made.partitions,
        "store": made.store,
    }


def ask_server(
    dest: Path, *, hidden: bool, timeout_s: float, url: str, **settings: Any
) -> dict[str, Any]:
    """Have a running server make the copy, and show its progress; returns the server's answer."""
    with (
        Client(ClientSettings(url, **settings)) as client,
        waiting("the server makes the copy", partial(_how_far, client), hidden=hidden),
    ):
        made = client.within(timeout_s).backup(str(dest), wait_ms=int(timeout_s * 1_000))
    return {"directory": made.directory, "files": made.files, "bytes": made.size_bytes}


def _how_far(client: Client) -> tuple[str, int, int] | None:
    """The progress of a server's copy; None if unknown."""
    found = client.within(LOOK_TIMEOUT_S).scheduler().get("compaction") or {}
    match found.get("backup"):
        case {"what": str(what), "done": int(done), "total": int(total)}:
            return what, done, total
    return None


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The data directory to make; it must be empty or not there yet.",
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of text.")
def restore(source: Path, data_dir: Path, as_json: bool) -> None:
    """Make a data directory of the backup in SOURCE.

    A file that is missing or not as it was backed up ends it, and leaves no data directory.
    """
    try:
        with bars(hidden=as_json) as on_progress:
            listed = backups.restore(source, data_dir, on_progress=on_progress)
    except PenstockError as error:
        raise click.ClickException(error.message) from error
    if as_json:
        report = {
            "directory": str(data_dir),
            "files": len(listed.files),
            "bytes": listed.size_bytes,
            "partitions": listed.partitions,
            "store": listed.store,
        }
        click.echo(json.dumps(report))
    else:
        size = format_bytes(listed.size_bytes)
        click.echo(f"{len(listed.files)} files, {size}, restored to {data_dir}")
        click.echo(f"serve it with {listed.partitions} partitions and store {listed.store!r}")
