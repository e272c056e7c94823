"""The README and the pages that say what to type are followed, step by step."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.story import ADDRESS, Step, Story, commands, is_as_shown, steps
from tests.integration.cluster.processes import free_port
from tests.integration.spark.one import ENVIRON
from tools import markdown

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
CLUSTER = ROOT / "docs" / "how-to" / "cluster.md"
"""Its reader has a cluster and a PostgreSQL: see `test_cluster_page`."""
REPLICATION = ROOT / "docs" / "how-to" / "replication.md"
"""Its reader has six ports."""
PORTS = ("4000", "4010", "4020", "4100", "4110", "4120")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is, or would be, in the repository."""
    copy = tmp_path_factory.mktemp("checkout") / "penstock"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def follow(page: Path, story: Story) -> None:
    try:
        for step in steps(page):
            try:
                story.do(step)
            except Exception as error:
                error.add_note(f"{page.relative_to(ROOT)}:{step.line}")
                raise
    finally:
        story.close()


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "start.md"], ids=lambda page: page.name)
def test_a_page_can_be_followed_from_a_checkout(page, checkout):
    shutil.rmtree(checkout / "topics-data", ignore_errors=True)
    follow(page, Story(checkout, checkout / ".venv" / "run" / "bin"))


LONG = ("pipelines.md", "spark-topics.md", "tables.md", "up.md")
"""Pages that start Spark, some of them twice."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in LONG else [])
        for page in HOW_TO
        if page not in (CLUSTER, REPLICATION)
    ],
)
def test_a_how_to_can_be_followed(page, tmp_path):
    follow(page, Story(tmp_path, Path(sys.executable).parent, environ=ENVIRON))


@pytest.mark.slow
def test_three_nodes_can_be_started_by_the_page_of_replication(tmp_path):
    instead = {f":{port}": f":{free_port()}" for port in PORTS}
    instead |= {f"--port {port}": f"--port {instead[f':{port}'][1:]}" for port in PORTS}
    follow(REPLICATION, Story(tmp_path, Path(sys.executable).parent, instead))


def test_every_how_to_has_something_to_follow():
    assert all(steps(page) for page in HOW_TO)


def test_the_readme_leads_with_the_two_commands_and_then_a_server():
    typed = [step.text for step in steps(README) if step.kind == "command"]
    assert typed[:2] == ["make demo", "make test"]
    assert "penstock serve" in typed[2:4]


def test_the_readme_shows_the_client_at_work():
    assert any(ADDRESS in text for _, text in markdown.blocks(README, "python"))


def test_a_block_is_commands_with_what_they_show():
    block = "$ first \\\n  --flag  # why\n$ second\nshown\nmore\n"
    assert list(commands(7, block)) == [
        Step(7, "command", "first   --flag"),
        Step(9, "command", "second", "shown\nmore\n"),
    ]


def test_output_must_be_as_shown_but_for_times_and_blanks():
    shown = "   1 2026-01-02 03:04:05.678 {}\n..."
    assert is_as_shown(shown, "1 2027-11-12 13:14:15.167 {}\nmore\n")
    assert not is_as_shown(shown, "2 2027-11-12 13:14:15.167 {}\n")
