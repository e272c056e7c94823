"""The progress of refreshes as bars: of one in the foreground, and of all that run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from penstock.kernel.errors import PenstockError
from penstock.kernel.system import meanwhile
from penstock.kernel.units import format_ms
from penstock.tables.core.history import RefreshProgress
from penstock.tables.status import Running
from penstock.tables.warehouse import Answered, Warehouse

LOOK_S: Final = 0.25


def refresh_with_bar(
    warehouse: Warehouse, name: str, *, force: bool = False, hidden: bool = False
) -> Answered:
    """Refresh a table and wait for it, with a bar on a terminal."""
    table = warehouse.table(name).name
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        return warehouse.refresh(table, force=force)
    with _bar(table, console) as show, _following(warehouse, table, show):
        return warehouse.refresh(table, force=force, tell=show)


def described(progress: RefreshProgress) -> str:
    """What a bar says beside itself: stages, rows, time left; only what is known.

    >>> described(RefreshProgress(rows=12_000, stages=4, stages_done=1, left_ms=65_000))
    'stage 2 of 4, 12,000 rows, 1.1 min left'
    """
    said = []
    if progress.stages:
        now = min(progress.stages_done + 1, progress.stages)
        said.append(f"stage {now} of {progress.stages}")
    if progress.rows:
        said.append(f"{progress.rows:,} rows")
    if progress.left_ms is not None:
        said.append(f"{format_ms(progress.left_ms // 1_000 * 1_000)} left")
    return ", ".join(said)


@contextmanager
def _bar(table: str, console: Console) -> Iterator[Callable[[RefreshProgress], None]]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task(f"refreshing {table}", total=None, said="")

        def show(progress: RefreshProgress) -> None:
            what = f"refreshing {progress.table or table}"
            total = progress.tasks or None
            done = progress.tasks_done
            bars.update(
                task, description=what, total=total, completed=done, said=described(progress)
            )

        yield show


@contextmanager
def _following(
    warehouse: Warehouse, table: str, show: Callable[[RefreshProgress], None]
) -> Iterator[None]:
    """Show the progress that a coordinator reports, until the refresh is done."""

    def look() -> None:
        key = next((row.unit_key for row in warehouse.status() if row.table == table), None)
        for job in warehouse.pool().running:
            if job.unit_key == key and job.progress is not None:
                show(job.progress)

    with meanwhile(look, LOOK_S):
        yield


_LOOK_S: Final = 0.5


@contextmanager
def shown(warehouse: Warehouse) -> Iterator[Callable[[str], None]]:
    """A function to print lines. Bars appear below them while refreshes take long."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: click.echo(line, err=True)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as progress:
        ended = threading.Event()
        look = threading.Thread(target=_follow, args=(warehouse, progress, ended), daemon=True)
        look.start()
        try:
            yield lambda line: console.print(line, highlight=False, markup=False)
        finally:
            ended.set()
            look.join()


def _follow(warehouse: Warehouse, progress: Bars, ended: threading.Event) -> None:
    bars: dict[int, TaskID] = {}
    while not ended.wait(_LOOK_S):
        with suppress(PenstockError):  # a catalog that is away may come back
            draw(progress, bars, warehouse.pool().running)


def draw(progress: Bars, bars: dict[int, TaskID], running: tuple[Running, ...]) -> None:
    """Update the bars to the jobs that have reported progress."""
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
