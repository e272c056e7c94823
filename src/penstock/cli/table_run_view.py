"""What `penstock table run` shows on a terminal: lines, and bars while refreshes take long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock.cli.table_bars import described
from penstock.kernel.errors import PenstockError
from penstock.tables.status import Running
from penstock.tables.warehouse import Warehouse

_LOOK_S: Final = 0.5


@contextmanager
def shown(warehouse: Warehouse) -> Iterator[Callable[[str], None]]:
    """Something to tell lines to. Bars appear below them while refreshes take long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: click.echo(line, err=True)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        ended = threading.Event()
        look = threading.Thread(target=_follow, args=(warehouse, progress, ended), daemon=True)
        look.start()
        try:
            yield lambda line: console.print(line, highlight=False, markup=False)
        finally:
            ended.set()
            look.join()


def _follow(warehouse: Warehouse, progress: Progress, ended: threading.Event) -> None:
    bars: dict[int, TaskID] = {}
    while not ended.wait(_LOOK_S):
        with suppress(PenstockError):  # a catalog that is away may come back
            draw(progress, bars, warehouse.pool().running)


def draw(progress: Progress, bars: dict[int, TaskID], running: tuple[Running, ...]) -> None:
    """Make the bars those of the jobs that have said how far they are."""
    told = {job.job_id: job for job in running if job.progress is not None}
    for job_id in bars.keys() - told.keys():
        progress.remove_task(bars.pop(job_id))
    for job_id, job in told.items():
        at = job.progress
        if at is None:
            continue
        if job_id not in bars:
            bars[job_id] = progress.add_task(job.unit_key, total=None, said="")
        progress.update(
            bars[job_id], description=at.table or job.unit_key, total=at.tasks or None,
            completed=at.tasks_done, said=described(at),
        )  # fmt: skip
