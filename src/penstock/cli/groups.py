"""Groups whose commands are imported only when they are used.

Importing every command for its first line of help took 1.3 s.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used, not when it is listed.

    `lazy` has the module and the help line of each command. A test compares the lines with the
    commands.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module = importlib.import_module(f"penstock.cli.{self.lazy[cmd_name][0]}")
        command = getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.{cmd_name} is not a click command: {command!r}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])


RUN: Final = (
    "ingest",
    "Store meter messages from devices in the tables `readings` and `charges` until Ctrl-C.",
)
INGEST: Final = {
    "run": RUN,
    "edge": ("ingest", "Store messages from devices in a durable topic until Ctrl-C."),
    "status": (
        "ingest",
        "Show each stage's window, occupancy, rate and latency, and which one is the bottleneck.",
    ),
    "hold": ("ingest", "Pause a stage of the running pipeline, such as store."),
    "go": ("ingest", "Resume a paused stage of the running pipeline."),
}
METERING: Final = {
    "run": RUN,
    "tariffs": ("tariffs", "Show and change tariffs and their assignment to meters."),
    "load": (
        "metering",
        "Send the load of a meter fleet to an edge, and wait until everything is acknowledged.",
    ),
    "replay": (
        "metering",
        "Retry the dead letters of the metering pipeline; those that succeed now are stored.",
    ),
}
MOVED: Final = ("load", "replay", "tariffs")
"""Commands of `penstock ingest` that moved to `penstock metering`."""


@click.group(cls=LazyGroup, lazy=METERING)
def metering() -> None:
    """Run the bundled example: meter readings, priced by tariffs."""


class _Ingest(LazyGroup):
    """Still runs the commands that moved, with a note on standard error."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MOVED:
            return super().get_command(ctx, cmd_name)
        click.echo(
            f"note: `penstock ingest {cmd_name}` is now `penstock metering {cmd_name}`", err=True
        )
        return metering.get_command(ctx, cmd_name)


@click.group(cls=_Ingest, lazy=INGEST)
def ingest() -> None:
    """Receive messages from devices."""
