"""A group of real cores under fixed seeds; `make sim` runs many more of them.

A failure prints the line that repeats it.
"""

from __future__ import annotations

import pytest

from penstock.raft.core import Core
from tests.simulator.raft import mutants
from tests.simulator.raft.faults import PROFILES
from tests.simulator.raft.world import World, profile_of, run, run_liveness, shortened

SEEDS = 100
STEPS = 5_000
LIVENESS_SEEDS = 26
VACUOUS_SHARE = 0.05


def test_every_promise_holds_under_a_hundred_seeds():
    results = [run(seed, STEPS) for seed in range(SEEDS)]
    vacuous = [(result.seed, result.profile) for result in results if result.is_vacuous]
    print(f"{len(vacuous)} of {SEEDS} seeds are vacuous: {vacuous}")
    assert len(vacuous) <= VACUOUS_SHARE * SEEDS
    assert {result.profile for result in results} == set(PROFILES)


@pytest.mark.parametrize("seed", range(LIVENESS_SEEDS))
def test_with_a_healthy_majority_every_client_is_served(seed):
    run_liveness(seed, 1_500)


@pytest.mark.parametrize("seed", [3, 12])
def test_a_run_repeated_gives_the_same_trace_byte_for_byte(seed):
    traces: list[list[str]] = [[], []]
    for trace in traces:
        World(seed, profile_of(seed), trace=trace).run(STEPS)
    assert len(traces[0]) > 1_000
    assert "\n".join(traces[0]).encode() == "\n".join(traces[1]).encode()


PINNED = {
    "CommitsAnOlderTermByCounting": ("isolated", 1, "committed an older term"),
    "VotesBeforeTheSync": ("calm", 0, "a vote left before its sync"),
    "ForgetsTheVoteAtARestart": ("torn", 3_263, "two votes in term"),
    "CountsItselfBeforeItsSync": ("calm", 0, "not synced on a majority"),
    "CommitsBeforeAMajority": ("calm", 0, "not synced on a majority"),
    "AcceptsAppendsWithoutLooking": ("calm", 0, "not synced on a majority"),
    "CutsEntriesThatMatch": ("lossy", 0, "not synced on a majority"),
    "DropsASuffixThatWasCounted": ("lossy", 3, "was confirmed here and is not in the log"),
    "ConfirmsWhatWasCutAndWrittenAgain": ("late-report", 20, "which its disk has not"),
    "ReadsWithoutARound": ("isolated", 59, "a stale read"),
    "ServesBeforeItsFirstEntryIsCommitted": ("skew", 0, "a stale read"),
    "ChangesMembersTwiceAtOnce": ("churn", 0, "two changes of members at once"),
    "AppliesWhatIsNotCommitted": ("calm", 0, "not synced on a majority"),
    "CompactsBeyondApplied": ("lossy", 0, "a snapshot of what is not applied"),
    "PromotesALearnerThatIsBehind": ("churn", 50, "promoted and behind"),
}
"""The profile and the seed that find each mutant, and what they say."""


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_pinned_seed_finds_the_mistake(mutant):
    profile, seed, text = PINNED[mutant.__name__]
    with pytest.raises(Exception, match=text) as found:
        run(seed, STEPS, profile=profile, core=mutant)
    line = f"python -m tests.simulator.raft --seed {seed} --profile {profile} --steps {STEPS}"
    assert found.value.__notes__ == [f"repeat with: {line}"]


def test_the_same_seeds_find_nothing_in_the_core_itself():
    for profile, seed, _ in PINNED.values():
        run(seed, STEPS, profile=profile)


class StopsInsideAChurn(Core):
    def change_members(self, change):
        raise ZeroDivisionError


def test_the_faults_of_a_failing_seed_are_shortened_to_those_that_matter():
    kinds = World(12, "churn").faults.kinds
    left = shortened(12, STEPS, "churn", core=StopsInsideAChurn)
    assert "churn" in left
    assert left < kinds
