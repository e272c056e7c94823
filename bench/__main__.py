"""`python -m bench` runs every benchmark, `python -m bench fairqueue` runs one.

A benchmark is a module `bench/bench_NAME.py` with `run(report)`; the first line of its docstring
is the title of its table. `TINY` names constants of the module and what they are in a run with
`--tiny`, which shows within seconds that the benchmark still works. With `--keep`, results are
kept in bench/results/NAME.json, from which `make docs` writes the tables of the documentation.

A benchmark that takes long has `pieces()`, the names of its parts. `--piece 'top*'` runs some of
them, `--missing` those without a kept result, `--seconds` starts no piece after that time. With
`--keep` every piece is written as soon as it has ended, beside those that were kept before.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import click
from rich.console import Console

from bench import table_shop
from bench.machine import machine_facts
from bench.report import Report, everything

HERE = Path(__file__).resolve().parent


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Name the benchmarks and run none.")
@click.option("--keep", is_flag=True, help="Write the results to bench/results.")
@click.option("--tiny", is_flag=True, help="Only try whether it works; the numbers mean nothing.")
@click.option("--piece", "patterns", multiple=True, help="Run pieces of this name, as in 'top*'.")
@click.option("--missing", is_flag=True, help="Run only pieces without a kept result.")
@click.option("--seconds", type=float, help="Start no piece after this time.")
def main(
    names: tuple[str, ...],
    only_list: bool,
    keep: bool,
    tiny: bool,
    patterns: tuple[str, ...],
    missing: bool,
    seconds: float | None,
) -> None:
    """Run the named benchmarks, or all of them."""
    known = benchmarks(HERE)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise click.UsageError(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    if keep and tiny:
        raise click.UsageError("--keep and --tiny: the numbers of a tiny run are not kept")
    if only_list:
        click.echo("\n".join(listed(names) if names else known))
        return
    table_shop.IS_SHARED = tiny
    until = None if seconds is None else time.monotonic() + seconds
    failed = []
    for name in names or known:
        wants = chosen(name, patterns, until, missing=missing)
        if not measure(name, keep=keep, tiny=tiny, wants=wants):
            failed.append(name)
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def listed(names: tuple[str, ...]) -> list[str]:
    """The pieces of benchmarks, or a benchmark itself if it has none."""
    modules = [importlib.import_module(f"bench.bench_{name}") for name in names]
    found = [[f"{name}: {piece}" for piece in pieces(module)] or [name]
             for name, module in zip(names, modules, strict=True)]  # fmt: skip
    return [line for lines in found for line in lines]


def pieces(module: ModuleType) -> list[str]:
    """The pieces of a benchmark; none if it runs as a whole."""
    found: list[str] = module.pieces() if hasattr(module, "pieces") else []
    return found


def chosen(
    name: str, patterns: tuple[str, ...], until: float | None, *, missing: bool
) -> Callable[[str], bool]:
    """Which pieces of a benchmark are to be run, asked before each."""
    path = HERE / "results" / f"{name}.json"
    have = {row.piece for row in Report.read(path).rows} if missing and path.exists() else set()

    def wants(piece: str) -> bool:
        if until is not None and time.monotonic() > until:
            return False
        return piece not in have and (not patterns or any(fnmatch(piece, p) for p in patterns))

    return wants


def benchmarks(directory: Path) -> list[str]:
    """The names of the benchmarks in a directory."""
    return sorted(path.stem.removeprefix("bench_") for path in directory.glob("bench_*.py"))


def measure(
    name: str, *, keep: bool, tiny: bool = False, wants: Callable[[str], bool] = everything
) -> bool:
    """Run one benchmark and show its table; keep its results if asked to. Whether it worked."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    module = importlib.import_module(f"bench.bench_{name}")
    report = Report(name, (module.__doc__ or name).partition("\n")[0], wants=wants)
    if keep:
        report.on_piece = write
    if tiny:
        vars(module).update(module.TINY)
        report.title = f"{report.title} (tiny run: the numbers mean nothing)"
    cores = os.sched_getaffinity(0)
    try:
        module.run(report)
    except Exception:
        traceback.print_exc()
        return False
    finally:
        os.sched_setaffinity(0, cores)  # a benchmark may stay on one of them
        if report.rows:
            report.show(console)
    if keep and report.rows:
        console.print(f"kept in {write(report).relative_to(HERE.parent)}")
    return True


def write(report: Report) -> Path:
    """Keep a report; pieces that were kept before and not run again stay."""
    path = HERE / "results" / f"{report.name}.json"
    whole = report.after(Report.read(path)) if path.exists() else report
    return whole.write(HERE / "results", machine_facts())


if __name__ == "__main__":
    main()
