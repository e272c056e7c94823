"""Progress of long work on the terminal: a bar for each kind of it, nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

OnProgress = Callable[[str, int, int], None]


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
def waiting(what: str, *, hidden: bool = False) -> Iterator[None]:
    """Show that something goes on, and for how long, where nobody knows how much is left."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield
