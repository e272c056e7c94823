"""`penstock salvage`: what is readable in a damaged data directory, and a new one made from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import click

from penstock.cli.failing import told
from penstock.cli.output import bars, visible
from penstock.kernel.errors import PenstockError
from penstock.kernel.system import SystemClock
from penstock.topics.persist.salvage import Findings
from penstock.topics.persist.salvage import salvage as salvaged

DAMAGED: Final = 1
FAILED: Final = 1


@click.command()
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Make a new data directory here of what can be read; empty or not there yet. Without it, "
    "nothing is written.",
)
@click.option(
    "--cold-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where cold segments are, if not in the data directory.",
)
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of text.")
def salvage(data_dir: Path, into: Path | None, cold_dir: Path | None, as_json: bool) -> None:
    """Say what can be read of the damaged DATA_DIR, and save it into a new directory.

    Without --into it is a dry run: it reads everything and says, range by range, which records
    cannot be read. DATA_DIR itself is never changed, and no server may use it meanwhile.

    The exit code is 0 if nothing is damaged or missing, 1 if something is or if it could not be
    done.
    """
    try:
        with bars(hidden=as_json) as on_progress:
            found = salvaged(
                data_dir,
                into,
                cold_dir=cold_dir,
                now_ms=SystemClock().now_ms(),
                on_progress=on_progress,
            )
    except (PenstockError, OSError) as error:
        click.echo(f"Error: {told(error)}", err=True)
        sys.exit(FAILED)
    if as_json:
        click.echo(json.dumps(_report(found, into)))
    else:
        _show(found, data_dir, into)
    sys.exit(0 if found.is_whole else DAMAGED)


def _report(found: Findings, into: Path | None) -> dict[str, object]:
    return {
        "directory": found.directory,
        "into": None if into is None else str(into),
        "store": found.store,
        "partitions": found.partitions,
        "records_kept": found.records_kept,
        "records_lost": found.records_lost,
        "topics": [row._asdict() for row in found.topics],
        "lost": [each._asdict() for each in found.lost],
        "damage": [each._asdict() for each in found.damage],
        "notes": found.notes,
    }


def _show(found: Findings, data_dir: Path, into: Path | None) -> None:
    for damage in found.damage:
        click.echo(f"damaged: {damage.file}: {visible(damage.reason)}")
    for note in found.notes:
        click.echo(f"note: {visible(note)}")
    for lost in found.lost:
        seqs = (
            f"seq {lost.first_seq}"
            if lost.first_seq == lost.last_seq
            else f"seqs {lost.first_seq} to {lost.last_seq}"
        )
        click.echo(f"lost: {visible(lost.topic)} {seqs} ({visible(lost.reason)})")
    click.echo(
        f"{found.records_kept} records of {len(found.topics)} topics can be read, "
        f"{found.records_lost} are lost"
    )
    if into is not None:
        click.echo(f"saved to {into}; serve it with: penstock serve --data-dir {into}")
    elif found.is_whole:
        click.echo("nothing is damaged; nothing was written")
    else:
        click.echo(f"nothing was written; save it with: penstock salvage {data_dir} --into NEW")
