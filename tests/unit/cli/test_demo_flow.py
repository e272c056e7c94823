"""The demonstration of flow: by line, as a view of any size, as a picture."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from penstock.cli import demo_flow as demo_module
from penstock.cli import main
from penstock.cli.demo_lines import ladder, summary
from penstock.cli.demo_view import bar, sparkline, view
from penstock.flow.governor import STEADY, climb
from penstock.sim.pipeline import STAGES
from penstock.sim.show import SCRIPT, SCRIPT_MS, Show

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "demo.svg"


def run(*options: str) -> Result:
    return CliRunner().invoke(main, ["demo", "flow", *options])


def shown(at_ms: int) -> Show:
    show = Show(seed=7, shape="square", growth="aimd")
    show.advance(at_ms)
    return show


@pytest.fixture(scope="module")
def busy() -> Show:
    """The moment of the picture in the docs: under load, a stage slowed down."""
    return shown(17_000)


@pytest.fixture(scope="module")
def beginning() -> Show:
    return shown(0)


@pytest.fixture(scope="module")
def stalled() -> Show:
    return shown(42_500)


def rendered(show: Show, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=width, height=height)
    console.print(view(show, width, height))
    return console.export_text().splitlines()


def test_without_a_terminal_it_prints_a_line_a_second_and_a_summary():
    result = run("--seconds", "3")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line[:6] for line in lines if line.startswith("  ") and "▸" not in line] == [
        "   1 s",
        "   2 s",
        "   3 s",
    ]
    assert lines[0].endswith(SCRIPT[0].text)
    assert "0 lost" in result.output
    assert "\x1b" not in result.output


def test_the_same_seed_shows_the_same_and_another_seed_another():
    first, again, other = (run("--seconds", "2", "--seed", seed).output for seed in "778")
    assert first == again
    assert first != other


@pytest.mark.parametrize("options", [("--shape", "day"), ("--growth", "cubic"), ("--speed", "50")])
def test_every_option_is_taken(options):
    assert run("--seconds", "0.5", *options).exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shape", "triangle"), "'triangle' is not one of 'square', 'sawtooth'"),
        (("--growth", "fast"), "'fast' is not one of 'aimd', 'cubic'"),
        (("--seconds", "-1"), "-1.0 is not in the range"),
        (("--speed", "0"), "0.0 is not in the range"),
        (("--seed", "x"), "'x' is not a valid integer"),
        (("--svg", "."), "is a directory"),
    ],
)
def test_a_bad_option_is_refused_in_words(options, words):
    result = run(*options)
    assert result.exit_code == 2
    assert words in result.output


def test_the_last_view_is_written_as_a_picture_that_fetches_nothing(tmp_path):
    path = tmp_path / "view.svg"
    result = run("--seconds", "2", "--svg", str(path))
    assert result.exit_code == 0
    assert str(path) in result.output
    text = path.read_text(encoding="utf-8")
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert text.replace("http://www.w3.org/2000/svg", "").count("http") == 0
    for name in STAGES:
        assert name in text


def test_the_picture_in_the_docs_is_of_today(busy):
    assert PICTURE.read_text(encoding="utf-8") == demo_module.picture(busy), (
        "make it anew: penstock demo flow --seconds 17 --svg docs/images/demo.svg"
    )


@pytest.mark.parametrize(("width", "height"), [(100, 32), (80, 24), (140, 50), (60, 24)])
@pytest.mark.parametrize("moment", ["beginning", "busy", "stalled"])
def test_a_view_fits_its_terminal(width, height, moment, request):
    lines = rendered(request.getfixturevalue(moment), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    borders = [line for line in lines if line.startswith("│")]
    assert borders
    assert all(line.rstrip().endswith("│") for line in borders), "no line is broken"


def test_a_view_tells_the_windows_the_decisions_the_pressure_and_the_bands(busy):
    text = "\n".join(rendered(busy, 100, 32))
    for name, channel in zip(STAGES, busy.pipeline.channels, strict=True):
        assert name in text
        assert f"{channel.window:,}" in text
    assert "evaluate takes 3 times as long" in text
    assert "is above 2 × baseline" in text
    assert "● coalescing into frames of up to 20 ms" in text
    assert "B0 < 0" in text
    assert "paused" in text
    assert "wait outside" in text


def test_a_small_terminal_is_told_the_most_telling_decision(busy):
    text = "\n".join(rendered(busy, 80, 24))
    assert "evaluate: decrease to" in text
    assert "reassemble: hold" not in text


def test_the_script_begins_again_after_a_minute():
    show = Show(seed=7, shape="steady", growth="aimd")
    show.now_ms = SCRIPT_MS
    assert [event.text for event in show.advance(10)] == [SCRIPT[0].text]


def test_every_item_of_the_whole_script_is_accounted_for():
    show = shown(SCRIPT_MS)
    assert f"{show.pipeline.delivered:,} delivered in order" in summary(show)
    show.set_load(0)
    show.pipeline.drain(within_ms=60_000)
    assert show.pipeline.delivered == show.pipeline.offered > 300_000


def test_ctrl_c_ends_it_with_a_summary(monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "_lines", interrupted)
    result = run("--seconds", "0")
    assert result.exit_code == 0
    assert "ended by Ctrl-C" in result.output
    assert "0 lost" in result.output


def test_the_ladder_in_words():
    assert ladder(STEADY)[0] == (True, "a frame for every record")
    words = ladder(climb(0.44, STEADY))
    assert [active for active, _ in words] == [False, True, True, False, False]
    assert words[1][1] == "coalescing into frames of up to 6.0 ms"


def test_a_bar_marks_its_zone_and_never_overflows():
    assert bar(0.7, 20, "red").plain == "━" * 14 + "─" * 6
    assert bar(3.4, 20, "red").plain == "━" * 20
    assert [span.style for span in bar(0.0, 20, "red").spans].count("#3d6b59") == 7


def test_a_sparkline_shows_the_newest_at_the_right():
    assert sparkline([0, 50, 100], 100, 5) == "  ▁▅█"
    assert sparkline([100] * 9, 100, 5) == "█████"
