"""What a long trial came to: kept as JSON in bench/trials, from which `make docs` writes a table.

The soaks under tests/soak make one with `--keep-results`; a trial replaces the one that was kept by
its name.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from bench.machine import machine_facts
from bench.report import Row, cells

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / "bench" / "trials"


@dataclass(slots=True)
class Trial:
    """The rows of one run, how to repeat it, and what it ran on."""

    name: str
    title: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """Command, seed, commit, date, machine, and how busy it was."""
    rows: list[Row] = field(default_factory=list)
    _began_s: float = field(default_factory=time.monotonic)

    @classmethod
    def begin(cls, name: str, title: str, *, seed: int | None = None) -> Self:
        """A trial that begins now, by the command that this process was started with."""
        module = Path(sys.argv[0]).resolve().relative_to(ROOT).with_suffix("")
        return cls(name, title, {
            "command": shlex.join(["python", "-m", ".".join(module.parts), *sys.argv[1:]]),
            "seed": seed,
            "commit": commit(),
            "began": datetime.now(UTC).isoformat(timespec="minutes"),
            "load_before": round(os.getloadavg()[0], 1),
            "machine": machine_facts(),
        })  # fmt: skip

    def row(self, name: str, value: float, unit: str = "", **more: Any) -> Row:
        """Add a number; the keywords are the other fields of `bench.report.Row`."""
        row = Row(name, value, unit, **more)
        self.rows.append(row)
        return row

    def at_least(self, name: str, value: float, least: float, unit: str = "") -> Row:
        """A number with its lower limit; with a limit of 0 it is only told."""
        if not least:
            return self.row(name, value, unit)
        return self.row(name, value, unit, goal=f"at least {least:,g}", met=value >= least)

    def at_most(self, name: str, value: float, most: float | None, unit: str = "") -> Row:
        """A number with its upper limit, if there is one."""
        if most is None:
            return self.row(name, value, unit)
        return self.row(name, value, unit, goal=f"at most {most:,g}", met=value <= most)

    def shortfalls(self) -> list[str]:
        """The rows that missed their goals, in words."""
        return [" ".join(f"{name}: {value} {unit}".split()) + f", asked for {goal}"
                for name, value, unit, _, _, goal in (cells(r) for r in self.rows if r.met is False)
                ]  # fmt: skip

    def show(self) -> None:
        """Print the rows, and those that missed their goals once more at the end."""
        for name, value, unit, ratio, against, goal in map(cells, self.rows):
            compared = f" ({ratio} of {against})" if ratio else ""
            asked = f"  [{goal}]" if goal else ""
            print(f"{name}: {value} {unit}".rstrip() + compared + asked)
        for said in self.shortfalls():
            print(f"NOT AS ASKED: {said}")

    def keep(self, directory: Path = DIRECTORY) -> Path:
        """Write it, in place of an earlier one of its name."""
        directory.mkdir(parents=True, exist_ok=True)
        ended = {
            "took_s": round(time.monotonic() - self._began_s),
            "load_after": round(os.getloadavg()[0], 1),
        }
        content = {
            "name": self.name,
            "title": self.title,
            **self.facts,
            **ended,
            "rows": [asdict(row) for row in self.rows],
        }
        path = directory / f"{self.name}.json"
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        """A trial as it was kept."""
        content = json.loads(path.read_text())
        rows = [Row(**row) for row in content.pop("rows")]
        return cls(content.pop("name"), content.pop("title"), content, rows)


def commit() -> str:
    """The commit of the tree, with a plus if its code differs."""
    found = _git("rev-parse", "--short=10", "HEAD").strip()
    return found + ("+" if _git("status", "--porcelain", "--", "src", "tests").strip() else "")


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
    )
    return done.stdout
