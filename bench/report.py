"""What a benchmark hands in: named rows, shown as a table and kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

MET_WORDS = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}


@dataclass(frozen=True, slots=True)
class Row:
    """One number.

    `ratio` is the value divided by that of `against`, a peer or a limit measured in the same run.
    `goal` says in words what the number should be, and `met` whether it is.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    against: str | None = None
    goal: str | None = None
    met: bool | None = None
    piece: str = ""
    """The part of a long benchmark that measured it."""


def everything(_: str) -> bool:
    return True


def nothing_kept(_: Report) -> None:
    pass


@dataclass(slots=True)
class Report:
    """The rows of one benchmark, in the order they were measured.

    A long benchmark is made of pieces. `wants` says whether one is to be run, and `on_piece` gets
    the report after each, so that what is measured is kept even if the run is stopped.
    """

    name: str
    title: str = ""
    rows: list[Row] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """What is kept beside the rows, by the name of the file."""
    wants: Callable[[str], bool] = everything
    on_piece: Callable[[Report], None] = nothing_kept
    _piece: str = ""

    def row(self, name: str, value: float, unit: str, **more: Any) -> Row:
        """Add a row; the keywords are the other fields of `Row`."""
        row = Row(name, value, unit, **{"piece": self._piece, **more})
        self.rows.append(row)
        return row

    @contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Rows that are added belong to a piece, and are handed on when it ends."""
        self._piece = name
        yield
        self._piece = ""
        self.on_piece(self)

    def after(self, kept: Report) -> Report:
        """These rows, and those of pieces in an earlier report that were not run again."""
        again = {row.piece for row in self.rows}
        rows = [row for row in kept.rows if row.piece and row.piece not in again]
        return Report(self.name, self.title, [*rows, *self.rows], self.files)

    def show(self, console: Console) -> None:
        """Print the rows as a table."""
        table = Table(title=self.title or self.name, title_justify="left", expand=False)
        for heading in ("measured", "value", "unit", "ratio", "against", "goal", ""):
            numeric = heading in ("value", "ratio")
            table.add_column(heading, justify="right" if numeric else "left")
        for row in self.rows:
            table.add_row(*cells(row), MET_WORDS[row.met])
        console.print(table)

    def write(self, directory: Path, machine: dict[str, Any]) -> Path:
        """Keep the rows and the facts of the machine as JSON."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.name}.json"
        content = {
            "name": self.name,
            "title": self.title,
            "machine": machine,
            "rows": [asdict(row) for row in self.rows],
        }
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        for name, text in self.files.items():
            (directory / name).write_text(text)
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """A report as it was kept."""
        content = json.loads(path.read_text())
        return cls(content["name"], content["title"], [Row(**row) for row in content["rows"]])


def cells(row: Row) -> list[str]:
    """A row as texts: name, value, unit, ratio, against, goal."""
    ratio = "" if row.ratio is None else f"{number(row.ratio)}×"
    return [row.name, number(row.value), row.unit, ratio, row.against or "", row.goal or ""]


def number(value: float) -> str:
    """Three digits that count; whole numbers as they are, with commas from a thousand on."""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
