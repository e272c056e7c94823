"""Numbers, times and words of the dashboard."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.flow.governor import COALESCE_ABOVE, DEFER_ABOVE, WIDEN_ABOVE, Level
from penstock.kernel.units import format_bytes, format_ms
from penstock.protocol.config import DURABILITIES
from penstock.protocol.pages import PAGES
from tests.javascript import Modules

SPACE = "\u00a0"


@pytest.fixture(scope="module")
def js() -> Modules:
    return Modules("js/format.js")


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("count", 0, "0"),
        ("count", None, "–"),
        ("count", 2.6, "2.6"),
        ("count", 0.02, "0.02"),
        ("count", 0.000_04, "0.001"),
        ("count", 214, "214"),
        ("count", 9_999, "9,999"),
        ("count", 10_000, "10 k"),
        ("count", 25_460, "25.5 k"),
        ("count", 158_000_000, "158 M"),
        ("rate", 30_400, "30.4 k/s"),
        ("rate", 0, "0/s"),
        ("rate", None, "–"),
        ("grouped", 48_213_907, "48,213,907"),
        ("bytes", 0, "0"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 1024, "1 KiB"),
        ("bytes", 12.4 * 2**30, "12.4 GiB"),
        ("ms", 0, "0"),
        ("ms", None, "–"),
        ("ms", 0.764, "764 µs"),
        ("ms", 2.6, "2.6 ms"),
        ("ms", 999, "999 ms"),
        ("ms", 1_400, "1.4 s"),
        ("ms", 372_000, "6 min 12 s"),
        ("span", 0, "0.0 s"),
        ("span", 59_999, "59 s"),
        ("span", 60_000, "1 min"),
        ("span", 7_320_000, "2 h 2 min"),
        ("span", 277_200_000, "3 d 5 h"),
        ("span", -5, "0.0 s"),
        ("percent", 0.254, "25%"),
        ("percent", None, "–"),
    ],
)
def test_a_number_is_short_and_unknown_is_a_dash(
    js: Modules, function: str, value: Any, text: str
) -> None:
    assert js.call(function, value).replace(SPACE, " ") == text


@pytest.mark.parametrize("size", [1, 999, 1024, 70_000, 5 * 2**20, 2**30, 31 * 2**30])
def test_sizes_are_those_of_the_command_line(js: Modules, size: int) -> None:
    assert js.call("bytes", size).replace(SPACE, " ") == format_bytes(size)


@pytest.mark.parametrize("span_ms", [0.001, 0.25, 1, 2.64, 99.96, 640, 1_500, 9_900])
def test_latencies_are_those_of_the_command_line(js: Modules, span_ms: float) -> None:
    assert js.call("ms", span_ms).replace(SPACE, " ") == format_ms(span_ms)


def test_the_ladder_has_the_rungs_of_the_governor(js: Modules) -> None:
    rungs = js.value("RUNGS")
    assert [rung["name"] for rung in rungs] == [level.name.lower() for level in Level]
    assert [rung["from"] for rung in rungs[:4]] == [0, COALESCE_ABOVE, WIDEN_ABOVE, DEFER_ABOVE]


def test_every_durability_says_what_it_survives(js: Modules) -> None:
    for durability in DURABILITIES:
        assert js.call("survives", durability) != durability


@pytest.mark.parametrize(
    "state", ["fresh", "running", "waiting", "late", "error", "paused", "away"]
)
def test_a_state_of_a_table_has_a_colour_a_shape_and_a_word(js: Modules, state: str) -> None:
    assert all(js.call("look", state)[part] for part in ("kind", "icon", "word"))


def test_a_state_that_is_not_known_keeps_its_word(js: Modules) -> None:
    assert js.call("look", "molten")["word"] == "molten"


@pytest.mark.parametrize("level", ["ok", "slow", "failing", "refusing", "away"])
def test_only_a_good_verdict_looks_good(js: Modules, level: str) -> None:
    assert (js.call("verdictLook", level)["kind"] == "ok") == (level == "ok")


def test_a_verdict_of_an_unknown_level_does_not_look_good(js: Modules) -> None:
    assert js.call("verdictLook", "odd")["kind"] == "slow"


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_the_command_of_a_page_is_one_that_there_is(js: Modules, page: str) -> None:
    twin = {"page": page, "name": "a b", "id": "c", "query": {"prefix": "m", "space": "s"}}
    _, *words = shlex.split(js.call("pageCommand", twin))
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output


def test_a_command_quotes_what_the_shell_would_take_apart(js: Modules) -> None:
    line = js.call("command", "penstock", "topic", "write", "a.b", '{"it\'s": 1}')
    assert line == """penstock topic write a.b '{"it'\\''s": 1}'"""


def test_a_topic_without_limits_keeps_everything(js: Modules) -> None:
    assert js.call("keeps", {"ttl_ms": 0, "cap_bytes": 0}) == "everything"
    kept = js.call("keeps", {"ttl_ms": 60_000, "cap_bytes": 2**20, "cap_records": 1})
    assert kept.replace(SPACE, " ") == "1 min, 1 MiB, 1 record"


def queue(**facts: Any) -> dict[str, Any]:
    return {
        "ready": 0, "leased": 0, "in_per_s": 0, "finished_per_s": 0, "workers": [{}], **facts
    }  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "state", "text"),
    [
        ({}, "ok", "No job waits."),
        ({"ready": 3, "workers": []}, "late", "3 jobs and nobody works on them."),
        ({"ready": 3, "in_per_s": 2, "finished_per_s": 2}, "ok", "The workers keep up"),
        ({"ready": 9, "in_per_s": 3.1, "finished_per_s": 2.6}, "late", "3.1 a second against 2.6"),
        ({"ready": 9, "in_per_s": 2, "finished_per_s": 0}, "late", "The backlog only grows."),
        (
            {"ready": 1800, "in_per_s": 2, "finished_per_s": 1},
            "late",
            "its end is more than 30 minutes away",
        ),
        ({"ready": 1799, "in_per_s": 2, "finished_per_s": 1}, "late", "30 minutes old by 00:00"),
    ],
)
def test_a_queue_says_whether_its_workers_keep_up(
    js: Modules, facts: dict[str, Any], state: str, text: str
) -> None:
    told = js.call("backlog", queue(**facts), 0)
    assert told["state"] == state
    assert text in told["text"].replace(SPACE, " ")
