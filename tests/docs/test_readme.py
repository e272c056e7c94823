"""Every command of the README is run, in a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import markdown

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
HIDDEN = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "VIRTUAL_ENV", "PYTHONPATH", "JAVA_HOME")
INSTEAD = {
    "make demo": 'make demo DEMO_ARGS="--seconds 2"',
    "make test": "make -n test checks",  # this test is part of it
    "make bench": "make -n bench",  # takes as long as measuring takes
}
"""What is run instead of a command that would not end soon."""

COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for _, text in markdown.blocks(ROOT / "README.md", "console")
    for line in text.splitlines()
    if line.startswith("$ ")
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is, or would be, in the repository."""
    copy = tmp_path_factory.mktemp("readme") / "penstock"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works(checkout, command):
    environ = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    path = f"{checkout / '.venv' / 'run' / 'bin'}:{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", INSTEAD.get(command, command)],
        cwd=checkout, env=environ | {"PATH": path}, timeout=LIMIT_S, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_readme_leads_with_the_two_commands():
    assert COMMANDS[:2] == ["make demo", "make test"]
