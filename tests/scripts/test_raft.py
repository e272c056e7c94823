"""The Raft core as text: scripts in `raft`, rewritten with PENSTOCK_REWRITE=1."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import run_script
from penstock.testing.script import ScriptMismatch
from tests.simulator.raft import mutants
from tests.simulator.raft.script import RaftScript

SCRIPTS = Path(__file__).parent / "raft"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_core_answers_as_its_script_says(path):
    assert run_script(path, RaftScript()) > 0


def test_there_are_scripts_for_everything():
    assert len(list(SCRIPTS.glob("*.txt"))) >= 25
