"""`python -m bench` runs every benchmark, `python -m bench fairqueue` runs one.

A benchmark is a module `bench/bench_NAME.py` with `run(report)`; the first line of its docstring
is the title of its table. `TINY` names constants of the module and what they are in a run with
`--tiny`, which shows within seconds that the benchmark still works. With `--keep`, results are
kept in bench/results/NAME.json, from which `make docs` writes the tables of the documentation.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

import click
from rich.console import Console

from bench import table_shop
from bench.machine import machine_facts
from bench.report import Report

HERE = Path(__file__).resolve().parent


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Name the benchmarks and run none.")
@click.option("--keep", is_flag=True, help="Write the results to bench/results.")
@click.option("--tiny", is_flag=True, help="Only try whether it works; the numbers mean nothing.")
def main(names: tuple[str, ...], only_list: bool, keep: bool, tiny: bool) -> None:
    """Run the named benchmarks, or all of them."""
    known = benchmarks(HERE)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise click.UsageError(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    if keep and tiny:
        raise click.UsageError("--keep and --tiny: the numbers of a tiny run are not kept")
    if only_list:
        click.echo("\n".join(known))
        return
    table_shop.IS_SHARED = tiny
    failed = [name for name in names or known if not measure(name, keep=keep, tiny=tiny)]
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def benchmarks(directory: Path) -> list[str]:
    """The names of the benchmarks in a directory."""
    return sorted(path.stem.removeprefix("bench_") for path in directory.glob("bench_*.py"))


def measure(name: str, *, keep: bool, tiny: bool = False) -> bool:
    """Run one benchmark and show its table; keep its results if asked to. Whether it worked."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    module = importlib.import_module(f"bench.bench_{name}")
    report = Report(name, (module.__doc__ or name).partition("\n")[0])
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
    report.show(console)
    if keep:
        path = report.write(HERE / "results", machine_facts())
        console.print(f"kept in {path.relative_to(HERE.parent)}")
    return True


if __name__ == "__main__":
    main()
