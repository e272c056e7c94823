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
from time import perf_counter
from typing import Any

from tests.simulator.raft import world as cores
from tests.simulator.raft.faults import PROFILES as CORE_PROFILES
from tests.simulator.system import world as system


def main() -> int:
    options = _parser().parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.runs)
    work = partial(
        _one, steps=options.steps, profile=options.profile, liveness=options.liveness,
        whole=options.system,
    )  # fmt: skip
    began_s, results, failed = perf_counter(), [], 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for found in pool.map(work, seeds, chunksize=4):
            if isinstance(found, str):
                failed += 1
                print(found, flush=True)
            else:
                results.append(found)
    print(_summary(results, failed, perf_counter() - began_s))
    vacuous = sum(result.is_vacuous for result in results)
    return 1 if failed or vacuous > 0.05 * len(results) else 0


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


def _summary(results: list[Any], failed: int, took_s: float) -> str:
    events, acked = sum(r.events for r in results), sum(r.acked for r in results)
    vacuous = sum(result.is_vacuous for result in results)
    leaders, crashes = sum(r.leaders for r in results), sum(r.crashes for r in results)
    return (
        f"{len(results) + failed} seeds, {failed} failed, {vacuous} vacuous; "
        f"{events:,} events, {acked:,} acknowledged, {leaders:,} leaders, "
        f"{crashes:,} crashes in {took_s:.0f} s ({events / took_s:,.0f} events/s)"
    )


if __name__ == "__main__":
    sys.exit(main())
