"""What the demonstration of the server counts and shows, without a server."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from penstock.cli import main
from penstock.cli.demo_ledger import Ledger
from penstock.cli.demo_server import DemoServer
from penstock.cli.demo_topics import what_next
from penstock.cli.demo_town import Second, Town
from penstock.cli.demo_town_view import second_line, summary, view

SCHEDULER = {
    "pressure": 0.44, "rung": "widen", "coalesce_ms": 6.0, "commit_window_ms": 1.1,
    "deferring": False, "refusing": False,
}  # fmt: skip


@pytest.fixture
def town(tmp_path: Path) -> Town:
    town = Town(DemoServer(tmp_path), seconds=20)
    town.ledger.acknowledged("meter-1", 3, jobs=1)
    for number in (1, 2, 3):
        town.ledger.delivered("meter-1", number)
        town.delays.record(2_000_000)
    town.ledger.done("meter-1", 2)
    return town


def rendered(town: Town, width: int) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=width, height=32)
    console.print(view(town, width))
    return console.export_text().splitlines()


def test_a_ledger_in_which_all_arrived_once_is_right(town):
    ledger = town.ledger
    assert (ledger.missing, ledger.jobs_missing, ledger.twice) == (0, 0, 0)
    ledger.closed = True
    assert ledger.is_right


def test_what_comes_twice_is_wrong(town):
    town.ledger.delivered("meter-1", 3)
    assert town.ledger.twice == 1
    assert not town.ledger.is_right


def test_what_is_skipped_is_wrong_at_once():
    ledger = Ledger()
    ledger.acknowledged("meter-1", 3)
    ledger.delivered("meter-1", 1)
    assert ledger.is_right, "the rest may still come"
    ledger.delivered("meter-1", 3)
    assert ledger.missing == 1
    assert not ledger.is_right


@pytest.mark.parametrize("jobs", [0, 1])
def test_what_has_not_come_when_the_ledger_is_closed_is_missing(jobs):
    ledger = Ledger()
    ledger.acknowledged("meter-1", 1, jobs)
    if jobs:
        ledger.delivered("meter-1", 1)
    assert ledger.is_right
    ledger.closed = True
    assert not ledger.is_right


def test_a_job_done_again_counts_once(town):
    town.ledger.done("meter-1", 2)
    assert town.ledger.jobs_again == 1
    assert len(town.ledger.jobs_done) == 1


def test_a_second_is_one_line():
    line = second_line(Second(7.01, 9_648.2, 9_788.0, 74.0, 13.6, 27.1, SCHEDULER))
    assert line == (
        "   7 s  written   9,648/s  delivered   9,788/s  jobs   74/s"
        "  write to watcher p50 13.6 ms p99 27.1 ms  pressure 0.44 widen"
    )


def test_a_second_without_a_server_says_so():
    assert second_line(Second(7.0, 0, 0, 0, 0, 0, None)).endswith(
        "p50       – p99       –  no server"
    )


def test_the_summary_accounts_for_everything(town):
    town.down_ms = 862.0
    assert summary(town).splitlines() == [
        "3 readings acknowledged: 3 delivered in order, 0 missing, 0 twice",
        "1 of them jobs: 1 done, 0 waiting, 0 handed out again",
        "from write to watcher: half within 2.0 ms, 99 of 100 within 2.0 ms",
        "the server was killed once, and listened again 862 ms later",
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("scheduler", [SCHEDULER, None])
def test_a_view_fits_its_terminal(town, width, scheduler):
    for at_s in range(200):
        town.history.append(Second(at_s, 1e6, 5e5, 10, 1.5, 2_000, scheduler))
    lines = rendered(town, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24
    borders = [line for line in lines if line.startswith("│")]
    assert all(line.rstrip().endswith("│") for line in borders), "no line is broken"


def test_a_view_tells_rates_delays_and_the_ladder(town):
    town.history.append(Second(7.0, 9_648, 9_788, 74, 1.5, 27.1, SCHEDULER))
    text = "\n".join(rendered(town, 100))
    for words in ("9,648/s", "9,788/s", "74/s", "1.5 ms", "27.1 ms", "0.44", "widen"):
        assert words in text
    assert "● coalescing into frames of up to 6.0 ms" in text
    assert "○ new writes answered 429" in text


def test_a_view_before_the_first_second_is_there(town):
    assert "a server is started" in "\n".join(rendered(town, 80))


def test_what_to_type_next_names_the_command_where_it_is(monkeypatch):
    assert "penstock topic follow meters --from-seq 0" in what_next()
    monkeypatch.setenv("PATH", "")
    assert "bin/penstock serve" in what_next()


def test_too_short_a_time_is_refused():
    result = CliRunner().invoke(main, ["demo", "--seconds", "0.5"])
    assert result.exit_code == 2
    assert "0.5 is not in the range x>=1" in result.output
