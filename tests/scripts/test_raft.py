"""The Raft core as text: scripts in `raft`, rewritten with PENSTOCK_REWRITE=1."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import run_script
from penstock.testing.script import REWRITE_VARIABLE, ScriptMismatch
from tests.simulator.raft import mutants
from tests.simulator.raft.script import RaftScript

SCRIPTS = Path(__file__).parent / "raft"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_core_answers_as_its_script_says(path):
    assert run_script(path, RaftScript()) > 0


def test_there_are_scripts_for_everything():
    assert len(list(SCRIPTS.glob("*.txt"))) >= 25


KILLED_BY = {
    "CommitsAnOlderTermByCounting": "older_term",
    "VotesBeforeTheSync": "vote_is_lost_with_its_write",
    "ForgetsTheVoteAtARestart": "vote_survives_restart",
    "CountsItselfBeforeItsSync": "own_sync",
    "CommitsBeforeAMajority": "majority",
    "AcceptsAppendsWithoutLooking": "append_needs_the_entry_before",
    "CutsEntriesThatMatch": "append_repeated_late",
    "DropsASuffixThatWasCounted": "snapshot_keeps_the_end",
    "ConfirmsWhatWasCutAndWrittenAgain": "aba",
    "ReadsWithoutARound": "read_index",
    "ServesBeforeItsFirstEntryIsCommitted": "began",
    "ChangesMembersTwiceAtOnce": "one_change",
    "AppliesWhatIsNotCommitted": "replicate",
    "CompactsBeyondApplied": "snapshot_beyond_applied",
    "PromotesALearnerThatIsBehind": "learner_behind",
}


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_script_finds_the_mistake(mutant, monkeypatch):
    monkeypatch.delenv(REWRITE_VARIABLE, raising=False)  # a mutant must not rewrite a script
    with pytest.raises(ScriptMismatch):
        run_script(SCRIPTS / f"{KILLED_BY[mutant.__name__]}.txt", RaftScript(mutant))
