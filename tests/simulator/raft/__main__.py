"""Run seeds of the simulated group: `python -m tests.simulator.raft --runs 2000 --steps 20000`.

One seed again: `--seed 17 --profile lossy --steps 5000`, as a failing run prints it. `--system`
runs whole nodes in place of bare cores.
"""

from __future__ import annotations

import argparse
import logging
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter
from typing import Any

from bench.trial import Trial
from tests.simulator.raft import world as cores
from tests.simulator.raft.faults import PROFILES as CORE_PROFILES
from tests.simulator.system import world as system

VACUOUS_MAX = 0.05
EVENTS_GOAL, STEPS_GOAL = 80_000, 5_000
"""A second of a processor's time, so that others on the machine do not count; it is told, and does
not fail a run."""


def main() -> int:
    options = _parser().parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.runs)
    work = partial(
        _one, steps=options.steps, profile=options.profile, liveness=options.liveness,
        whole=options.system,
    )  # fmt: skip
    what = "whole nodes" if options.system else "bare cores"
    name = "simulator-" + what.replace(" ", "-")
    title = f"The simulator with {what}" + (", liveness" if options.liveness else "")
    trial = Trial.begin(options.keep_results or name, title)
    began_s, results, failed = perf_counter(), [], 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for found in pool.map(work, seeds, chunksize=4):
            if isinstance(found, str):
                failed += 1
                print(found, flush=True)
            else:
                results.append(found)
    print(_tell(trial, results, failed, perf_counter() - began_s, whole=options.system))
    if options.keep_results is not None:
        print(f"kept in {trial.keep()}")
    vacuous = sum(result.is_vacuous for result in results)
    return 1 if failed or vacuous > VACUOUS_MAX * len(results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.raft", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=5_000)
    profiles = sorted({*CORE_PROFILES, *system.PROFILES})
    parser.add_argument("--profile", choices=profiles, default="")
    parser.add_argument("--liveness", action="store_true")
    parser.add_argument("--system", action="store_true", help="whole nodes, not cores alone")
    parser.add_argument("--jobs", type=int)
    parser.add_argument(
        "--keep-results", nargs="?", const="", metavar="NAME",
        help="write the totals to bench/trials/NAME.json",
    )  # fmt: skip
    return parser


def _one(seed: int, *, steps: int, profile: str, liveness: bool, whole: bool) -> Any:
    """One run; a failure as the lines that a person needs."""
    world: Any = system if whole else cores
    logging.disable(logging.CRITICAL)  # disks fail thousands of times
    try:
        return (world.run_liveness if liveness else world.run)(seed, steps, profile=profile)
    except Exception as error:
        notes = "\n  ".join(getattr(error, "__notes__", ()))
        faults = ""
        if not liveness:
            needed = world.shortened(seed, steps, profile or world.profile_of(seed))
            faults = f"\n  faults: {sorted(needed)}"
        return f"{type(error).__name__}: {error}\n  {notes}{faults}"


def _tell(trial: Trial, results: list[Any], failed: int, took_s: float, *, whole: bool) -> str:
    """The totals of all seeds, and how fast they went; as rows, and in a line."""
    vacuous = sum(result.is_vacuous for result in results)
    counts = {"seeds": len(results) + failed, "failed": failed, "vacuous": vacuous}
    word, goal = ("steps", STEPS_GOAL) if whole else ("events", EVENTS_GOAL)
    more = {word: sum(r.events for r in results), "acknowledged": sum(r.acked for r in results),
            "leaders": sum(r.leaders for r in results),
            "crashes": sum(r.crashes for r in results)}  # fmt: skip
    if whole:
        more["power cuts"] = sum(r.power_cuts for r in results)
        more["power cuts that left a majority up"] = sum(r.minority_cuts for r in results)
        more["nodes down at a time by a power cut at most"] = max(
            (r.dark_max for r in results), default=0
        )
    trial.row("seeds", counts["seeds"])
    trial.at_most("failed", failed, 0)
    trial.at_most("vacuous", vacuous, int(VACUOUS_MAX * len(results)))
    for name, count in more.items():
        trial.row(name, count)
    used_s = sum(getrusage(RUSAGE_CHILDREN)[:2])
    a_second, busy = more[word] / took_s, more[word] / used_s
    trial.row(f"{word} a second, all processes together", a_second, "1/s")
    trial.row(f"{word} a second of a processor's time", busy, "1/s",
              goal=f"at least {goal:,}", met=busy >= goal)  # fmt: skip
    first = ", ".join(f"{count} {name}" for name, count in counts.items())
    rest = ", ".join(f"{count:,} {name}" for name, count in more.items())
    rates = f"{a_second:,.0f} {word}/s; {busy:,.0f} by processor time, goal {goal:,}"
    return f"{first}; {rest} in {took_s:.0f} s ({rates})"


if __name__ == "__main__":
    sys.exit(main())
