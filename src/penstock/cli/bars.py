"""Progress of long work on the terminal: a bar for each kind of it, nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import TimeRemainingColumn as Remaining

from penstock.kernel.shell import meanwhile

LOOK_S: Final = 0.25
OnProgress = Callable[[str, int, int], None]
Look = Callable[[], tuple[str, int, int] | None]
"""Asks how far something is: what is done, how much of it, of how much; None if nobody knows."""


@contextmanager
def bars(*, hidden: bool = False) -> Iterator[OnProgress]:
    """Something to tell of progress: what is done, how much of it, of how much."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda _what, _done, _total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield show


@contextmanager
def waiting(what: str, look: Look, *, hidden: bool = False) -> Iterator[None]:
    """Show that something goes on elsewhere, for how long, and how far it is if that is told."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield
        return
    text, bar = TextColumn("{task.description}"), BarColumn()
    columns = (SpinnerColumn(), text, bar, TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def show() -> None:
            found = look()
            if found is not None:
                part, done, total = found
                shown = f"{what}: {part}"
                progress.update(task, description=shown, completed=done, total=total)

        with meanwhile(show, LOOK_S):
            yield
