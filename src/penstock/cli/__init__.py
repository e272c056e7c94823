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
    "status": ("status", "Say how things stand in one sentence, with what waits and why."),
    "doctor": ("doctor", "Check a server and all nodes of its cluster, and say what is wrong."),
    "top": ("status", "Show how things stand, once a second until Ctrl-C."),
    "events": ("events", "Show the last things that happened to a running server."),
    "topic": ("topic", "Write, read and follow topics of a running server."),
    "queue": ("queue", "Look at queues of a running server; replay or discard dead letters."),
    "entity": (
        "entity",
        "Look at and change the entities of a running server: JSON documents in a space.",
    ),
    "ingest": ("groups", "Take in the messages of devices."),
    "metering": (
        "groups",
        "Run the shipped example: readings of meters, priced by tariffs.",
    ),
    "table": ("table", "Define stream tables, look at them, have them refreshed."),
    "query": ("table", "Print the rows of a table, or of a SELECT over tables of the lake."),
    "cluster": (
        "cluster",
        "Make a data directory a cluster, add and remove nodes, see how they stand.",
    ),
    "backup": ("data_dir", "Copy a data directory to DEST, which must be empty or not there yet."),
    "restore": ("data_dir", "Make a data directory of the backup in SOURCE."),
    "inspect": (
        "data_dir",
        "Look into DATA_DIR without a server, and without changing a byte of it.",
    ),
    "salvage": (
        "data_dir",
        "Say what can be read of the damaged DATA_DIR, and save it into a new directory.",
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

    A command that fails ends with exit code 1, or with 3 if it may or may not have taken effect; a
    wrong command line is 2.
    """
