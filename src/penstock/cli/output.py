"""The output of commands: for people on a terminal, lines of JSON for programs, progress bars.

Rich is imported only for output to a terminal: it takes a third of the time of a command whose
output goes to a program.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from penstock.kernel.system import meanwhile

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DIM: Final = "bright_black"
LOOK_S: Final = 0.25
OnProgress = Callable[[str, int, int], None]
Look = Callable[[], tuple[str, int, int] | None]
"""Polls progress: what is done, how much of it, of how much; None if unknown."""

_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that change the text direction."""
_FORCED: Final = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables that make Rich treat any output as a terminal."""


class Output:
    """Prints answers: as JSON lines if requested, or if standard output is not a terminal."""

    def __init__(self, as_json: bool) -> None:
        may_be_seen = sys.stdout.isatty() or any(os.environ.get(name) for name in _FORCED)
        self.plain = as_json or not (may_be_seen and self.console.is_terminal)

    @cached_property
    def console(self) -> Console:
        """Standard output, for people."""
        from rich.console import Console

        return Console(highlight=False)

    def say(self, text: str, /, **facts: Any) -> None:
        """Something that was done: a sentence, or its facts for programs."""
        if self.plain:
            self.json(facts or {"done": text})
        else:
            self.console.print(text, markup=False)

    def json(self, value: Any) -> None:
        """One line for programs."""
        click.echo(msgspec.json.encode(value))

    def note(self, text: str) -> None:
        """A message besides the answers, which may go to a program: on standard error."""
        from rich.console import Console
        from rich.text import Text

        sys.stdout.flush()
        notes = Console(highlight=False, stderr=True)
        notes.print(Text(text, "yellow"), soft_wrap=True)

    def facts(self, rows: Mapping[str, str]) -> None:
        """Names and values, one pair per line."""
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=None, show_header=False, pad_edge=False)
        shown.add_column(style=DIM)
        shown.add_column()
        for name, value in rows.items():
            shown.add_row(name, Text(value))
        self.console.print(shown)

    def end(self) -> None:
        """Ctrl-C: leave the terminal on a new line."""
        if not self.plain:
            self.console.print()


def grid(*columns: str) -> Table:
    """A table without borders."""
    from rich.table import Table

    shown = Table(box=None, header_style=DIM, pad_edge=False)
    for name in columns:
        shown.add_column(name, overflow="fold")
    return shown


def visible(text: str) -> str:
    """Text of others on one line; what would move the cursor or colour the screen is spelt out.

    >>> print(visible("a\\x1b[2Jb\\u202ec"))
    a\\u001b[2Jb\\u202ec
    """
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def many(count: int, word: str) -> str:
    """A count with its word.

    >>> many(1, "record"), many(1_200, "record")
    ('1 record', '1,200 records')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def when(ts_ms: int | None, *, millis: bool = True) -> str:
    """A time in this machine's time zone."""
    if ts_ms is None:
        return "never"
    at = datetime.fromtimestamp(ts_ms / 1_000, UTC).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{ts_ms % 1_000:03}" if millis else "")


@contextmanager
def bars(*, hidden: bool = False) -> Iterator[OnProgress]:
    """A function to report progress: what is done, how much of it, of how much."""
    console = None if hidden else _terminal()
    if console is None:
        yield lambda _what, _done, _total: None
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.TaskProgressColumn(),
        rich.TimeRemainingColumn(),
    )  # fmt: skip
    with rich.Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, rich.TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show


@contextmanager
def waiting(what: str, look: Look, *, hidden: bool = False) -> Iterator[None]:
    """Show that a remote operation is running, for how long, and its progress if known."""
    console = None if hidden else _terminal()
    if console is None:
        yield
        return
    from rich import progress as rich

    columns = (
        rich.SpinnerColumn(), rich.TextColumn("{task.description}"), rich.BarColumn(),
        rich.TaskProgressColumn(), rich.TimeElapsedColumn(),
    )  # fmt: skip
    with rich.Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def show() -> None:
            found = look()
            if found is not None:
                part, done, total = found
                shown = f"{what}: {part}"
                progress.update(task, description=shown, completed=done, total=total)

        with meanwhile(show, LOOK_S):
            yield


def _terminal() -> Console | None:
    """Standard error, if it is a terminal."""
    if not (sys.stderr.isatty() or any(os.environ.get(name) for name in _FORCED)):
        return None
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None
