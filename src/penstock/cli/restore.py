"""`penstock restore`: a data directory from a backup, every byte checked."""

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.cli.output import bars
from penstock.kernel.errors import PenstockError
from penstock.kernel.units import format_bytes
from penstock.topics.persist import backup as backups


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
