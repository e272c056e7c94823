"""The record of long trials: what each soak kept last, between two markers of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.report import cells
from bench.trial import Trial
from tools.reference.benchmarks import HEADINGS, MET_WORDS

PAGE: Final = "docs/internals/crash-tests.md"
BEGIN: Final = "<!-- trials: written by `make docs` from bench/trials -->"
END: Final = "<!-- end of trials -->"


def with_trials(page: str, directory: Path) -> str:
    """The page with its tables as the kept trials have them."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise ValueError(f"expected {BEGIN!r} and {END!r} in the page, found no such pair")
    tables = ["\n".join(section(Trial.read(path))) for path in sorted(directory.glob("*.json"))]
    return before + BEGIN + "\n\n" + "".join(f"{table}\n\n" for table in tables) + END + after


def section(trial: Trial) -> list[str]:
    """One trial: how it was run, on what, and its rows."""
    facts, machine = trial.facts, trial.facts["machine"]
    seed = "" if facts["seed"] is None else f", seed {facts['seed']}"
    ran_on = f"{machine['cpu']}, {machine['cores']} cores, {machine['python']}"
    load = f"{facts['load_before']} before, {facts['load_after']} after"
    lines = [f"### {trial.title}", "", f"`{facts['command']}`", ""]
    lines += [
        f"Begun {facts['began']} at commit {facts['commit']}{seed}; {facts['took_s']:,} s.",
        "",
    ]
    lines += [f"On {ran_on}. Load average: {load}.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "|---|--:|---|--:|---|---|---|"]
    lines += [f"| {' | '.join([*cells(row), MET_WORDS[row.met]])} |" for row in trial.rows]
    return lines
