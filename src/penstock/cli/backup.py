"""`penstock backup`: a consistent copy of a data directory, at rest or under a running server."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from penstock.cli.bars import bars
from penstock.kernel.errors import PenstockError
from penstock.kernel.shell import SystemClock
from penstock.kernel.units import format_bytes
from penstock.topics.shell.backups import back_up_directory

ROUTE = "/v0/backup"


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
@click.option("--url", help="A running server, which makes the copy on its own machine.")
@click.option("--token", envvar="PENSTOCK_TOKEN", help="The key, where the server has keys.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of text.")
def backup(
    dest: Path,
    data_dir: Path | None,
    cold_dir: Path | None,
    url: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Copy a data directory to DEST, which must be empty or not there yet.

    Either the directory of a server that does not run (--data-dir), or a running server (--url),
    which goes on meanwhile. Every file of the copy is checked and listed with its checksum.
    """
    if (data_dir is None) == (url is None):
        raise click.UsageError("expected --data-dir or --url, and not both")
    try:
        if data_dir is not None:
            with bars(hidden=as_json) as on_progress:
                made = back_up_directory(
                    data_dir,
                    dest,
                    cold_dir=cold_dir,
                    now_ms=SystemClock().now_ms(),
                    on_progress=on_progress,
                )
            report: dict[str, Any] = {
                "directory": str(dest),
                "files": len(made.files),
                "bytes": made.size_bytes,
                "partitions": made.partitions,
                "store": made.store,
            }
        else:
            report = ask_server(url or "", dest.absolute(), token)
    except PenstockError as error:
        raise click.ClickException(error.message) from error
    if as_json:
        click.echo(json.dumps(report))
    else:
        size = format_bytes(report["bytes"])
        click.echo(f"backup of {report['files']} files, {size}, in {report['directory']}")


def ask_server(url: str, dest: Path, token: str | None) -> dict[str, Any]:
    """Have a running server make the copy; returns what it says of it."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.netloc)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("POST", ROUTE, json.dumps({"directory": str(dest)}), headers)
        answer = connection.getresponse()
        body = json.loads(answer.read() or b"{}")
    except (OSError, HTTPException, ValueError) as error:
        raise click.ClickException(f"expected an answer of {url}, found: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        message = body.get("error", {}).get("message", f"status {answer.status}")
        raise click.ClickException(f"the server made no backup: {message}")
    return dict(body)
