"""The README's table of numbers: a few rows of what `make bench` kept, between two markers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.report import Report, Row, cells

BEGIN: Final = "<!-- numbers: written by `make docs` -->"
END: Final = "<!-- end of numbers -->"
PEERS: Final = (
    "Redis Streams",
    "Redis Streams, 100 a request",
    "NATS JetStream",
    "PostgreSQL",
)
"""Peers that a run leaves out where they are not installed."""

CHOSEN: Final = (
    ("write", "penstock, 1 a request"),
    ("write", "penstock, 100 a request"),
    *(("write", f"penstock against {peer}") for peer in PEERS),
    ("delivery", "penstock, 100 watchers: half within, after the commit"),
    ("delivery", "penstock, 100 watchers: 99 of 100 within, after the commit"),
    ("delivery", "penstock, 1000 watchers: 99 of 100 within, after the commit"),
    ("wal", "64 writers over 64 partitions, synced"),
    ("wal", "a lone write"),
    ("stores", "segment"),
    ("stores", "rocksdb"),
    ("recovery", "recover"),
    ("fairqueue", "mark + pop, 1,000,000 keys wait"),
    ("ingest", "400 messages: a batch's job"),
    ("ingest", "100,000 readings/s: delay p50"),
    ("ingest", "100,000 readings/s: delay p99"),
    ("ingest", "as fast as it goes"),
)
"""What is shown, by benchmark and row; a benchmark of which no result is kept is left out."""


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
        path = results / f"{benchmark}.json"
        rows = {row.name: row for row in Report.read(path).rows} if path.exists() else {}
        if name in rows:
            lines.append(line(benchmark, rows[name]))
        elif rows and not name.endswith(PEERS):
            raise ValueError(f"expected a row {name!r} in {benchmark}, found {sorted(rows)}")
    return "\n".join(lines) + "\n"


def line(benchmark: str, row: Row) -> str:
    """One row: against what was measured beside it, or against its goal, met or missed."""
    name, value, unit, ratio, against, goal, *_ = cells(row)
    compared = f"{ratio} of {against}" if ratio else f"goal: {goal}"
    if row.met is False:
        compared += ", **missed**" if not ratio else ", **behind**" if goal == "ahead" else ""
    return f"| {benchmark}: {name} | {value} {unit} | {compared} |"
