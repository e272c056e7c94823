"""The `penstock` command: one group, whose commands are loaded only when they are used."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, Final

import click

import penstock
from penstock.cli.failing import leave_broken_output, leave_output, open_closed_streams, told

COMMANDS: Final = (
    "serve", "topic", "entity", "ingest", "table", "query", "backup", "restore", "inspect",
    "salvage", "demo",
)  # fmt: skip
"""The commands, in the order `penstock --help` shows them; each is a module of this package."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(f"{__name__}.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"expected a click command named {cmd_name!r}, found {command!r}")
        return command

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
        """Run a command. What goes wrong in the world is one line, and not a traceback."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            leave_output()  # the reader has had enough, and that is fine
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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(penstock.__version__, prog_name="penstock")
def main() -> None:
    """Durable topics and always-fresh Spark tables that get slower under load, never lossy."""
