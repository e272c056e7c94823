"""The `penstock` command: one group, whose commands are loaded only when they are used."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final

import click

import penstock

COMMANDS: Final = (
    "serve", "topic", "entity", "ingest", "table", "query", "backup", "restore", "inspect", "demo",
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


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(penstock.__version__, prog_name="penstock")
def main() -> None:
    """Durable topics and always-fresh Spark tables that get slower under load, never lossy."""
