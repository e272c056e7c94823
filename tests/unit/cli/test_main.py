from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

import penstock
from penstock.cli import COMMANDS, main


def test_the_version_is_the_packages():
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output == f"penstock, version {penstock.__version__}\n"


def test_help_lists_every_command_that_is_there():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name in main.list_commands(None):
        assert name in result.output


def test_an_unknown_command_is_refused():
    result = CliRunner().invoke(main, ["nonsense"])
    assert result.exit_code == 2
    assert "nonsense" in result.output


def test_asking_for_the_version_loads_no_command():
    code = "import sys, penstock.cli; print([m for m in sys.modules if m.startswith('penstock.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        assert f"penstock.cli.{name}" not in done.stdout


def test_the_module_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True
    )
    assert penstock.__version__ in done.stdout
