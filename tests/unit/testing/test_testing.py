"""The helpers themselves: a clock that stands, seeds that replay, scripts that can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import Command, ManualClock, run_script, seeded, seeds
from penstock.testing.script import ScriptMismatch


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=5_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (5_000, 0)
    clock.advance(0.5)
    assert (clock.now_ms(), clock.monotonic_ns()) == (5_000, 500_000)
    clock.advance(1_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (6_000, 1_000)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_a_failing_seeded_run_says_how_to_replay_it() -> None:
    with pytest.raises(ZeroDivisionError) as caught, seeded(42):
        raise ZeroDivisionError
    assert caught.value.__notes__ == ["replay this run with PENSTOCK_SEED=42"]


def test_seeds_are_fresh_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_SEED", raising=False)
    monkeypatch.delenv("PENSTOCK_RUNS", raising=False)
    assert len(set(seeds(50))) == 50
    monkeypatch.setenv("PENSTOCK_RUNS", "3")
    assert len(seeds(50)) == 3
    monkeypatch.setenv("PENSTOCK_SEED", "7")
    assert seeds(50) == [7]


def echo(command: Command) -> str:
    if command.verb == "fail":
        raise ValueError("no")
    return " ".join((command.verb, *command.words, *sorted(command.options)))


SCRIPT = """# a comment stays
say hello to=you
say again
----
say hello to
say again

fail
----
ValueError: no
"""


def test_a_script_passes_when_the_answers_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_REWRITE", raising=False)
    path = tmp_path / "s.txt"
    path.write_text(SCRIPT)
    assert run_script(path, echo) == 2


def test_a_script_fails_when_an_answer_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_REWRITE", raising=False)
    path = tmp_path / "s.txt"
    path.write_text(SCRIPT.replace("say again\n\n", "say nothing\n\n"))
    with pytest.raises(ScriptMismatch, match="PENSTOCK_REWRITE=1"):
        run_script(path, echo)


def test_the_rewrite_flag_takes_the_new_answers_and_keeps_the_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.txt"
    path.write_text(SCRIPT.replace("ValueError: no", "something else"))
    monkeypatch.setenv("PENSTOCK_REWRITE", "1")
    run_script(path, echo)
    assert path.read_text() == SCRIPT


@pytest.mark.parametrize("text", ["", "say hello\n"])
def test_a_script_without_steps_or_answers_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"no steps|must follow"):
        run_script(path, echo)
