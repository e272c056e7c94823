"""`python -m bench` runs every benchmark, `python -m bench fairqueue` runs one.

A benchmark is a module `bench/bench_NAME.py` with `run(report)`; the first line of its docstring
is the title of its table. Results are kept in bench/results/NAME.json, from which `make docs`
writes the tables of the documentation.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import click
from rich.console import Console

from bench.machine import machine_facts
from bench.report import Report

HERE = Path(__file__).resolve().parent


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Name the benchmarks and run none.")
@click.option("--keep/--no-keep", default=True, help="Write the results to bench/results.")
def main(names: tuple[str, ...], only_list: bool, keep: bool) -> None:
    """Run the named benchmarks, or all of them."""
    known = benchmarks(HERE)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise click.UsageError(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    if only_list:
        click.echo("\n".join(known))
        return
    for name in names or known:
        measure(name, keep=keep)


def benchmarks(directory: Path) -> list[str]:
    """The names of the benchmarks in a directory."""
    return sorted(path.stem.removeprefix("bench_") for path in directory.glob("bench_*.py"))


def measure(name: str, *, keep: bool) -> None:
    """Run one benchmark, show its table and keep its results."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    module = importlib.import_module(f"bench.bench_{name}")
    report = Report(name, (module.__doc__ or name).partition("\n")[0])
    module.run(report)
    report.show(console)
    if keep:
        path = report.write(HERE / "results", machine_facts())
        console.print(f"kept in {path.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
