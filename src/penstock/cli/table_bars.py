"""How far a refresh has come, as a bar on the terminal: rows, stages, time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from penstock.kernel.shell import meanwhile
from penstock.kernel.units import format_ms
from penstock.tables.core.progress import Progress
from penstock.tables.warehouse import Answered, Warehouse

LOOK_S: Final = 0.25


def refresh_with_bar(
    warehouse: Warehouse, name: str, *, force: bool = False, hidden: bool = False
) -> Answered:
    """Refresh a table and wait for it, with a bar unless nobody would see it."""
    table = warehouse.table(name).name
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        return warehouse.refresh(table, force=force)
    with _bar(table, console) as show, _following(warehouse, table, show):
        return warehouse.refresh(table, force=force, tell=show)


def described(progress: Progress) -> str:
    """What a bar says beside itself: stages, rows, time left; only what is known.

    >>> described(Progress(rows=12_000, stages=4, stages_done=1, left_ms=65_000))
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
def _bar(table: str, console: Console) -> Iterator[Callable[[Progress], None]]:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[said]}"),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task(f"refreshing {table}", total=None, said="")

        def show(progress: Progress) -> None:
            what = f"refreshing {progress.table or table}"
            total = progress.tasks or None
            done = progress.tasks_done
            bars.update(
                task, description=what, total=total, completed=done, said=described(progress)
            )

        yield show


@contextmanager
def _following(
    warehouse: Warehouse, table: str, show: Callable[[Progress], None]
) -> Iterator[None]:
    """Show what a coordinator says of the refresh, as long as it takes."""

    def look() -> None:
        key = next((row.unit_key for row in warehouse.status() if row.table == table), None)
        for job in warehouse.pool().running:
            if job.unit_key == key and job.progress is not None:
                show(job.progress)

    with meanwhile(look, LOOK_S):
        yield
