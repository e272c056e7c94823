"""Whole nodes under fixed seeds; `make sim` runs many more of them.

A failure prints the line that repeats it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.simulator.raft.checker import Violation
from tests.simulator.system.mutants import MUTANTS
from tests.simulator.system.world import (
    PROFILES,
    World,
    profile_of,
    run,
    run_liveness,
    shortened,
)

SEEDS = 40
STEPS = 3_000
VACUOUS_SHARE = 0.05


@pytest.fixture(autouse=True)
def _disks_fail_silently() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_promise_holds_under_forty_seeds() -> None:
    results = [run(seed, STEPS) for seed in range(SEEDS)]
    vacuous = [(result.seed, result.profile) for result in results if result.is_vacuous]
    print(f"{len(vacuous)} of {SEEDS} seeds are vacuous: {vacuous}")
    assert len(vacuous) <= VACUOUS_SHARE * SEEDS
    assert {result.profile for result in results} == set(PROFILES)
    assert sum(result.compared for result in results) > 10 * SEEDS


@pytest.mark.parametrize("seed", range(13))
def test_with_a_healthy_majority_every_client_is_served(seed: int) -> None:
    run_liveness(seed, 1_500)


@pytest.mark.parametrize("seed", [4, 9, 12])
def test_a_run_repeated_gives_the_same_trace_byte_for_byte(seed: int) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        World(seed, profile_of(seed), trace=trace).run(STEPS)
    assert len(traces[0]) == STEPS
    assert "\n".join(traces[0]).encode() == "\n".join(traces[1]).encode()


PINNED = {
    "answers before the sync": (0, "not synced on a majority"),
    "forgets the hard state": (2, "two leaders"),
    "calls lost proposals refused": (3, "refused, and in the log"),
    "acknowledges what it proposed": (30, "an acknowledged record is gone"),
    "keeps what was staged": (20, "has no leader"),
    "confirms refused writes": (20, "not synced on a majority"),
}
"""The seed that finds each mutant, and what it says."""


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_of_a_shell_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, mistake = MUTANTS[name]
    seed, text = PINNED[name]
    monkeypatch.setattr(owner, attribute, mistake)
    with pytest.raises(Violation, match=text) as found:
        run(seed, STEPS)
    repeat = f"python -m tests.simulator.raft --system --seed {seed} --profile {profile_of(seed)}"
    assert any(repeat in note for note in found.value.__notes__)


def test_faults_without_which_a_run_does_not_fail_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*MUTANTS["answers before the sync"])
    assert shortened(1, 500, "lossy") == frozenset()  # it needs no fault at all


@pytest.mark.parametrize("world", [[], ["--system"]])
def test_seeds_are_run_by_a_command(world: list[str]) -> None:
    command = [sys.executable, "-m", "tests.simulator.raft", *world]
    options = ["--runs", "2", "--steps", "2000", "--jobs", "1"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 seeds, 0 failed, 0 vacuous; ")
