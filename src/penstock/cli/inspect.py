"""`penstock inspect`: shows a data directory without a server, changing nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.data_place import check_layout
from penstock.cli.failing import told
from penstock.cli.output import bars, visible
from penstock.kernel.errors import Corrupt, PenstockError
from penstock.topics.persist.inspect import Inspection, inspect_directory

DAMAGED: Final = 1
FAILED: Final = 1
VIEWS: Final = ("overview", "topics", "spaces", "log", "verify", "record")

Rows = Sequence[Mapping[str, Any]]


@click.command()
@click.argument("data_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("view", type=click.Choice(VIEWS), default="overview")
@click.argument("topic", required=False)
@click.argument("seq", type=click.IntRange(min=1), required=False)
@click.option(
    "--cold-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where cold segments are, if not in the data directory.",
)
@click.option("--json", "as_json", is_flag=True, help="Lines of JSON, also on a terminal.")
def inspect(
    data_dir: Path,
    view: str,
    topic: str | None,
    seq: int | None,
    cold_dir: Path | None,
    as_json: bool,
) -> None:
    """Look into DATA_DIR without a server, and without changing a byte of it.

    \b
    overview          what lies there
    topics            every topic, as a server would find it
    spaces            every space: its entities, sessions and receipts
    log               where the log of each partition begins and ends, and its snapshots
    verify            check every checksum, replay everything
    record TOPIC SEQ  one record, wherever it lies

    On a terminal the answers are for people; piped or with --json they are lines of JSON. The exit
    code is 1 if something is damaged or cannot be looked at. A log of the segment store can
    be read while a server writes it; others must be at rest.
    """
    if (view == "record") != (topic is not None and seq is not None):
        raise click.UsageError("expected TOPIC and SEQ with record, and with nothing else")
    try:
        check_layout(data_dir)
        with (
            bars(hidden=as_json) as on_progress,
            inspect_directory(data_dir, cold_dir=cold_dir, on_progress=on_progress) as found,
        ):
            rows = _rows(found, view, topic or "", seq or 0)
            spare = _spare(found, rows) if view == "verify" else []
    except Corrupt as error:
        click.echo(f"damaged: {error.message}", err=True)
        sys.exit(DAMAGED)
    except (PenstockError, OSError) as error:
        click.echo(f"Error: {told(error)}", err=True)
        sys.exit(FAILED)
    console = Console()
    if as_json or not console.is_terminal:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        _show(console, rows, view)
    if spare:
        click.echo(
            f"{len(spare)} segments that nobody needs; the next start removes them", err=True
        )
    damaged = sum(not row.get("ok", True) for row in rows)
    if damaged:
        click.echo(f"{damaged} of {len(rows)} are damaged", err=True)
        sys.exit(DAMAGED)


def _rows(found: Inspection, view: str, topic: str, seq: int) -> Rows:
    match view:
        case "topics":
            return found.topics()
        case "spaces":
            return found.spaces()
        case "log":
            return found.log()
        case "verify":
            return found.verify()
        case "record":
            return [found.record(topic, seq)]
        case _:
            return [found.overview()]


def _spare(found: Inspection, rows: Rows) -> list[str]:
    """Segments that the next start removes: none while something is damaged."""
    return found.unneeded() if all(row["ok"] for row in rows) else []


def _show(console: Console, rows: Rows, view: str) -> None:
    """Rows as lines of key and value, or as a table."""
    if view in ("overview", "record"):
        for key, value in rows[0].items():
            click.echo(f"{key + ':':<20}{visible(_text(value))}")
    elif rows:
        table = Table(box=None, pad_edge=False)
        for key, value in rows[0].items():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            table.add_column(key, justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(visible(_text(value))) for value in row.values()))
        console.print(table)
    else:
        click.echo("nothing there")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, dict):
        return json.dumps(value)
    return "unknown" if value is None else str(value)
