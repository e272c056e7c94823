"""The `penstock` command: one group, whose commands are imported only when used."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

import penstock
from penstock.cli.failing import (
    failure,
    leave_broken_output,
    leave_output,
    open_closed_streams,
    told,
)
from penstock.cli.groups import LazyGroup

COMMANDS: Final = {
    "up": ("up", "Run server, ingest and tables on this machine until Ctrl-C."),
    "serve": ("serve", "Serve topics over HTTP until Ctrl-C."),
    "status": (
        "status",
        "Summarise the state of a server in one sentence, with what is waiting and why.",
    ),
    "doctor": ("doctor", "Check a server and all nodes of its cluster, and list what is wrong."),
    "top": ("status", "Show the state of a server, updated every second, until Ctrl-C."),
    "events": ("events", "Show the latest events of a running server."),
    "topic": ("topic", "Write, read and follow topics of a running server."),
    "queue": ("queue", "Show queues of a running server; replay or discard dead letters."),
    "entity": (
        "entity",
        "Show and change entities of a running server: JSON documents in a space.",
    ),
    "ingest": ("groups", "Receive messages from devices."),
    "metering": (
        "groups",
        "Run the bundled example: meter readings, priced by tariffs.",
    ),
    "table": ("table", "Define, inspect and refresh stream tables."),
    "query": ("table", "Print the rows of a table, or of a SELECT over tables of the lake."),
    "cluster": (
        "cluster",
        "Turn a data directory into a cluster, add and remove nodes, and show their state.",
    ),
    "backup": ("data_dir", "Copy a data directory to DEST, which must be empty or absent."),
    "restore": ("data_dir", "Create a data directory from the backup in SOURCE."),
    "inspect": (
        "data_dir",
        "Inspect DATA_DIR without a server and without changing a byte of it.",
    ),
    "salvage": (
        "data_dir",
        "Report what is readable in the damaged DATA_DIR, and save it to a new directory.",
    ),
    "demo": (
        "demo",
        "Show all of Penstock on this machine: meters, topics, Spark, a lake, stream tables.",
    ),
}
"""The commands, in the order `penstock --help` shows them: module and line of help."""


class Program(LazyGroup):
    """The outermost group: expected failures print one line instead of a traceback."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run; help and the version are printed before a command is known."""
        open_closed_streams()
        try:
            return super().main(*args, **options)
        except OSError as error:
            leave_output()
            click.echo(f"Error: {told(error)}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            leave_output()  # the reader closed the pipe, which is fine
            ctx.exit(0)
        except (click.exceptions.Exit, click.Abort, click.ClickException):
            raise
        except Exception as error:
            text = told(error)
            if text is None:
                raise
            leave_broken_output()
            raise failure(error, text) from error
        return result


@click.group(cls=Program, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(penstock.__version__, prog_name="penstock")
def main() -> None:
    """Durable topics and always-fresh Spark tables that get slower under load, never lossy.

    Exit codes: 1 if the command failed, 2 if the command line is wrong, 3 if the command may or may
    not have taken effect.
    """
