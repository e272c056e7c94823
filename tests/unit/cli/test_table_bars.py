"""Bars of `penstock table run`: one for each refresh that has said how far it is."""

from __future__ import annotations

import io

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TaskID

from penstock.cli.table_bars import draw
from penstock.tables.core.history import RefreshProgress
from penstock.tables.status import Running


def test_bars_come_and_go_with_the_jobs() -> None:
    bars = Bars(console=Console(file=io.StringIO()))
    known: dict[int, TaskID] = {}
    told = RefreshProgress(table="daily", rows=10, stages=2, stages_done=1, tasks=8, tasks_done=6)
    draw(bars, known, (Running(1, "table:daily", "w", 0, told), Running(2, "x", "w", 0, None)))
    (task,) = bars.tasks
    assert (task.description, task.completed, task.total) == ("daily", 6, 8)
    assert task.fields["said"] == "stage 2 of 2, 10 rows"
    draw(bars, known, (Running(1, "table:daily", "w", 0, RefreshProgress(tasks=8, tasks_done=7)),))
    assert [task.completed for task in bars.tasks] == [7]
    draw(bars, known, ())
    assert not bars.tasks
