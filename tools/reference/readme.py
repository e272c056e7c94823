"""The README's table of numbers: a few rows of what `make bench` kept, between two markers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.report import Report, cells

BEGIN: Final = "<!-- numbers: written by `make docs` -->"
END: Final = "<!-- end of numbers -->"
CHOSEN: Final = (
    ("fairqueue", "mark + pop, 1,000 keys wait"),
    ("fairqueue", "mark + pop, 1,000,000 keys wait"),
    ("flow", "AsyncChannel, one item at a time"),
    ("stores", "segment"),
    ("stores", "rocksdb"),
    ("stores", "sqlite"),
    ("wal", "64 writers over 64 partitions, synced"),
    ("wal", "a lone write"),
    ("recovery", "recover"),
)


def with_numbers(readme: str, results: Path) -> str:
    """The README with its table as the kept results have it."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"expected {BEGIN!r} and {END!r} in the README, found no such pair")
    return before + BEGIN + "\n\n" + table(results) + "\n" + END + after


def table(results: Path) -> str:
    """The chosen rows: what was measured, and how it compares."""
    lines = ["| measured | value | compared |", "|---|--:|---|"]
    for benchmark, name in CHOSEN:
        rows = {row.name: row for row in Report.read(results / f"{benchmark}.json").rows}
        if name not in rows:
            raise ValueError(f"expected a row {name!r} in {benchmark}, found {sorted(rows)}")
        _, value, unit, ratio, against, *_ = cells(rows[name])
        lines.append(f"| {benchmark}: {name} | {value} {unit} | {ratio} of {against} |")
    return "\n".join(lines) + "\n"
