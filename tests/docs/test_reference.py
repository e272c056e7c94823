from __future__ import annotations

from pathlib import Path

import pytest

from tools.reference.pages import DIRECTORY, PACKAGES, pages
from tools.reference.readme import with_numbers

ROOT = Path(__file__).resolve().parents[2]
WANTED = pages(ROOT)


@pytest.mark.parametrize("name", WANTED)
def test_a_page_is_in_step_with_the_code(name):
    path = ROOT / DIRECTORY / name
    if not path.exists() or path.read_text() != WANTED[name]:
        pytest.fail(f"{path.relative_to(ROOT)} is out of step with the code; run: make docs", False)


def test_the_numbers_of_the_readme_are_those_that_were_kept():
    readme = (ROOT / "README.md").read_text()
    assert with_numbers(readme, ROOT / "bench" / "results") == readme, "run: make docs"


def test_no_page_is_left_of_something_that_is_gone():
    there = {path.name for path in (ROOT / DIRECTORY).glob("*.md")}
    assert there <= set(WANTED), "run: make docs"


def test_every_package_has_a_page():
    source = ROOT / "src" / "penstock"
    packages = {path.parent.name for path in source.glob("*/__init__.py")} - {"cli"}
    assert packages <= set(PACKAGES)


def test_an_error_is_listed_with_its_code_below_its_parent():
    page = WANTED["errors.md"]
    assert "`Busy` | `busy`" in page
    assert page.index("`PenstockError`") < page.index("`Rejected`")


def test_every_command_shows_its_help():
    assert "Usage: penstock [OPTIONS] COMMAND" in WANTED["cli.md"]
