"""The `penstock` command: one group, whose commands are imported only when used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, Final

import click

import penstock
from penstock.cli.failing import leave_broken_output, leave_output, open_closed_streams, told

COMMANDS: Final = {
    "up": ("up", "Run server, ingest and tables on this machine until Ctrl-C."),
    "serve": ("serve", "Serve topics over HTTP until Ctrl-C."),
    "topic": ("topic", "Write, read and follow topics of a running server."),
    "entity": (
        "entity",
        "Look at and change the entities of a running server: JSON documents in a space.",
    ),
    "ingest": ("ingest", "Take in the messages of devices."),
    "metering": (
        "metering",
        "Run the shipped example: readings of meters, priced by tariffs.",
    ),
    "table": ("table", "Define stream tables, look at them, have them refreshed."),
    "query": ("table", "Print the rows of a table, or of a SELECT over tables of the lake."),
    "backup": ("backup", "Copy a data directory to DEST, which must be empty or not there yet."),
    "restore": ("backup", "Make a data directory of the backup in SOURCE."),
    "inspect": (
        "inspect",
        "Look into DATA_DIR without a server, and without changing a byte of it.",
    ),
    "salvage": (
        "salvage",
        "Say what can be read of the damaged DATA_DIR, and save it into a new directory.",
    ),
    "demo": (
        "demo",
        "Show all of Penstock on this machine: meters, topics, Spark, a lake, stream tables.",
    ),
}
"""The commands, in the order `penstock --help` shows them: module and line of help."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, not when it is listed.

    `lazy` has the module and the help line of each command: importing every module for its first
    line of help took 1.3 s. A test compares the lines with the commands.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module = importlib.import_module(f"{__name__}.{self.lazy[cmd_name][0]}")
        command = getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"expected a click command named {cmd_name!r}, found {command!r}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


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
            raise click.ClickException(text) from error
        return result


@click.group(cls=Program, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(penstock.__version__, prog_name="penstock")
def main() -> None:
    """Durable topics and always-fresh Spark tables that get slower under load, never lossy."""
