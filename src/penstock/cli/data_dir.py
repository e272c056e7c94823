"""Commands on a data directory: `penstock backup`, `restore`, `inspect` and `salvage`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from penstock.cli.failing import told
from penstock.cli.options import API_KEY, CA_FILE, TIMEOUT, URL, group_options, json_flag
from penstock.cli.output import Output, bars, visible, waiting
from penstock.client import Client, ClientSettings
from penstock.kernel.errors import Corrupt, PenstockError, Rejected
from penstock.kernel.system import SystemClock
from penstock.kernel.units import format_bytes
from penstock.topics.persist import backup as backups
from penstock.topics.persist.data_dir import LAYOUT_FILE, read_layout
from penstock.topics.persist.recovery import LAYOUT_VERSION

if TYPE_CHECKING:
    from penstock.topics.persist.inspect import Inspection
    from penstock.topics.persist.salvage import Findings

LOOK_TIMEOUT_S: Final = 1.0
"""How long a progress request may take, and so delay the end."""
FAILED: Final = 1
"""The exit code where something is damaged, missing or cannot be looked at."""
VIEWS: Final = ("overview", "topics", "spaces", "log", "verify", "record")
HERE: Final = click.Path(exists=True, file_okay=False, path_type=Path)
NEW: Final = click.Path(file_okay=False, path_type=Path)

Rows = Sequence[Mapping[str, Any]]

cold_dir_option = click.option(
    "--cold-dir", type=HERE, help="Where cold segments are, if not in the data directory."
)
one_json_flag = click.option(
    "--json", "as_json", is_flag=True, help="Print one line of JSON instead of text."
)


# Checks


def check_layout(directory: Path) -> None:
    """Refuse a data directory with the layout of an unknown version."""
    layout = read_layout(directory)
    if layout is not None and layout.version != LAYOUT_VERSION:
        raise Rejected(
            f"{directory / LAYOUT_FILE}: expected layout {LAYOUT_VERSION}, the one this version "
            f"knows, found {layout.version}; use the version of Penstock that made the directory"
        )


def refuse_backup(directory: Path) -> None:
    """Refuse to serve a backup: the first write would make its files differ from its manifest."""
    if (directory / backups.LIST_FILE).exists():
        raise Rejected(
            f"{directory} is a backup, not a data directory; make one of it with: "
            f"penstock restore {directory} --data-dir NEW"
        )


# backup


@click.command()
@click.argument("dest", type=NEW)
@click.option("--data-dir", type=HERE, help="The data directory of a stopped server.")
@cold_dir_option
@group_options(
    (
        URL.but(
            default=None,
            show_default=False,
            help="A running server, which makes the copy on its own machine.",
        ),
        API_KEY,
        CA_FILE,
        TIMEOUT.but(default=3_600.0, help="How long to wait for the server."),
    )
)
@one_json_flag
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
    """Copy a data directory to DEST, which must be empty or absent.

    Copies either the directory of a stopped server (--data-dir), or that of a running server
    (--url), which keeps serving. Every file of the copy is checked and listed with its checksum.
    """
    is_named = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
    if (data_dir is None and server["url"] is None) or (data_dir is not None and is_named):
        raise click.UsageError("say what to copy: --data-dir or --url, and not both")
    if data_dir is not None:
        report = _copied(data_dir, cold_dir, dest, hidden=as_json)
    else:
        report = ask_server(dest.absolute(), hidden=as_json, **server)
    if as_json:
        Output(as_json).json(report)
    else:
        size = format_bytes(report["bytes"])
        click.echo(f"backup of {report['files']} files, {size}, in {report['directory']}")


def _copied(data_dir: Path, cold_dir: Path | None, dest: Path, *, hidden: bool) -> dict[str, Any]:
    """Copy a directory that is not in use."""
    check_layout(data_dir)
    with bars(hidden=hidden) as on_progress:
        made = backups.back_up_directory(
            data_dir,
            dest,
            cold_dir=cold_dir,
            now_ms=SystemClock().now_ms(),
            on_progress=on_progress,
        )
    return _report(made, dest)


def _report(made: backups.BackupList, directory: Path) -> dict[str, Any]:
    return {
        "directory": str(directory),
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


# restore


@click.command()
@click.argument("source", type=HERE)
@click.option(
    "--data-dir", required=True, type=NEW,
    help="The data directory to create; it must be empty or absent.",
)  # fmt: skip
@one_json_flag
def restore(source: Path, data_dir: Path, as_json: bool) -> None:
    """Create a data directory from the backup in SOURCE.

    A missing or altered file aborts the restore and leaves no data directory behind.
    """
    with bars(hidden=as_json) as on_progress:
        listed = backups.restore(source, data_dir, on_progress=on_progress)
    if as_json:
        Output(as_json).json(_report(listed, data_dir))
        return
    size = format_bytes(listed.size_bytes)
    click.echo(f"{len(listed.files)} files, {size}, restored to {data_dir}")
    click.echo(f"serve it with {listed.partitions} partitions and store {listed.store!r}")


# inspect


@click.command()
@click.argument("data_dir", type=HERE)
@click.argument("view", type=click.Choice(VIEWS), default="overview")
@click.argument("topic", required=False)
@click.argument("seq", type=click.IntRange(min=1), required=False)
@cold_dir_option
@json_flag
def inspect(
    data_dir: Path,
    view: str,
    topic: str | None,
    seq: int | None,
    cold_dir: Path | None,
    as_json: bool,
) -> None:
    """Inspect DATA_DIR without a server and without changing a byte of it.

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
        raise click.UsageError("TOPIC and SEQ go with record, and with nothing else")
    from penstock.topics.persist.inspect import inspect_directory

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
        sys.exit(FAILED)
    except (PenstockError, OSError) as error:
        click.echo(f"Error: {told(error)}", err=True)
        sys.exit(FAILED)
    output = Output(as_json)
    if output.plain:
        for row in rows:
            output.json(row)
    else:
        _show_rows(output, rows, view)
    if spare:
        click.echo(
            f"{len(spare)} segments are no longer needed; the next start removes them", err=True
        )
    damaged = sum(not row.get("ok", True) for row in rows)
    if damaged:
        click.echo(f"{damaged} of {len(rows)} are damaged", err=True)
        sys.exit(FAILED)


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


def _show_rows(output: Output, rows: Rows, view: str) -> None:
    """Rows as lines of key and value, or as a table."""
    from rich.table import Table
    from rich.text import Text

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
        output.console.print(table)
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


# salvage


@click.command()
@click.argument("data_dir", type=HERE)
@click.option(
    "--into", type=NEW,
    help="Make a new data directory here of what can be read; empty or not there yet. Without it, "
         "nothing is written.",
)  # fmt: skip
@cold_dir_option
@one_json_flag
def salvage(data_dir: Path, into: Path | None, cold_dir: Path | None, as_json: bool) -> None:
    """Report what is readable in the damaged DATA_DIR, and save it to a new directory.

    Without --into it is a dry run: it reads everything and says, range by range, which records
    cannot be read. DATA_DIR itself is never changed; no server may be using it.

    The exit code is 0 if nothing is damaged or missing, otherwise 1.
    """
    from penstock.topics.persist.salvage import salvage as salvaged

    with bars(hidden=as_json) as on_progress:
        found = salvaged(
            data_dir,
            into,
            cold_dir=cold_dir,
            now_ms=SystemClock().now_ms(),
            on_progress=on_progress,
        )
    if as_json:
        Output(as_json).json(_findings(found, into))
    else:
        _show_findings(found, data_dir, into)
    sys.exit(0 if found.is_whole else FAILED)


def _findings(found: Findings, into: Path | None) -> dict[str, object]:
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


def _show_findings(found: Findings, data_dir: Path, into: Path | None) -> None:
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
