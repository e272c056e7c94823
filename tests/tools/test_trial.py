"""What a soak keeps, and the tables that are made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.trial import Trial
from tools.reference.trials import BEGIN, END, with_trials

FACTS = {
    "command": "python -m tests.soak.cluster --kills 3",
    "seed": 7,
    "commit": "0123456789",
    "began": "2026-11-19T23:40+00:00",
    "load_before": 0.5,
    "machine": {"cpu": "a processor", "cores": 2, "python": "CPython"},
}


@pytest.fixture
def trial() -> Trial:
    made = Trial("faults", "Faults under load", dict(FACTS))
    made.at_least("kills", 3, 3)
    made.at_least("records", 10, 0)
    made.at_most("outage", 4.5, 4, "s")
    return made


def test_what_missed_its_goal_is_said(trial: Trial) -> None:
    assert trial.shortfalls() == ["outage: 4.5 s, asked for at most 4"]


def test_a_trial_is_read_as_it_was_kept(tmp_path: Path, trial: Trial) -> None:
    again = Trial.read(trial.keep(tmp_path))
    assert again.rows == trial.rows
    assert again.facts.items() >= FACTS.items()


def test_the_page_has_a_table_of_each_trial_between_its_markers(
    tmp_path: Path, trial: Trial
) -> None:
    trial.keep(tmp_path)
    page = with_trials(f"before\n\n{BEGIN}\nold\n{END}\nafter\n", tmp_path)
    assert page.startswith("before\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    assert "`python -m tests.soak.cluster --kills 3`" in page
    assert "at commit 0123456789, seed 7" in page
    assert "| kills | 3 |  |  |  | at least 3 | met |" in page
    assert "| outage | 4.5 | s |  |  | at most 4 | **missed** |" in page


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such pair"):
        with_trials("a page", tmp_path)
