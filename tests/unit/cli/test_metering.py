"""`penstock metering load` where there is no edge."""

from __future__ import annotations

from click.testing import CliRunner

from penstock.cli import main


def test_an_edge_that_is_not_there_is_told_and_given_up():
    words = ["metering", "load", "127.0.0.1:1", "--give-up-s", "0.2", "--seconds", "1000"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    first, last = result.output.splitlines()
    assert first.startswith("no edge at 127.0.0.1:1: ")
    assert "refused" in first.lower()
    assert last.startswith("Error: no edge answered at 127.0.0.1:1 for 0.2 s: ")
