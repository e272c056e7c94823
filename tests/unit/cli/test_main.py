from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli import COMMANDS, main
from penstock.cli.groups import LazyGroup


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


def groups(command: click.Command) -> Iterator[LazyGroup]:
    """A group and all below it, as far as they are lazy."""
    if isinstance(command, LazyGroup):
        yield command
        for name in command.lazy:
            yield from groups(command.get_command(click.Context(command), name))


def test_help_of_a_group_says_what_its_commands_say_of_themselves():
    for group in groups(main):
        for name, (_, text) in group.lazy.items():
            command = group.get_command(click.Context(group), name)
            assert command.get_short_help_str(limit=200) == text


def imported(*words: str) -> set[str]:
    """What `penstock` imports to answer; where nothing listens, so that it ends soon."""
    code = (
        "import sys\nfrom penstock.cli import main\n"
        f"try: main({list(words)!r})\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return {name for name in done.stderr.split() if not name.startswith("Error")}


HEAVY = ("rich", "pyarrow", "pyspark", "sqlglot", "numpy", "uvloop", "sqlite3")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["ingest", "--help"]], ids=" ".join)
def test_help_imports_neither_commands_nor_what_they_need(words):
    found = imported(*words)
    assert "penstock.cli" in found
    assert found.isdisjoint(f"penstock.cli.{name}" for name in COMMANDS if name not in words)
    assert found.isdisjoint({*HEAVY, "asyncio", "penstock.client", "penstock.config"})


@pytest.mark.parametrize(
    "words", [["--help"], ["list", "--url", "http://127.0.0.1:9", "--timeout-s", "0.2"]]
)
def test_a_topic_command_imports_the_client_and_no_more(words):
    found = imported("topic", *words)
    assert "penstock.cli.topic" in found
    others = ("server", "topics", "lake", "tables", "spark", "ingest", "config", "app")
    assert found.isdisjoint({*HEAVY, *(f"penstock.{name}" for name in others)})


def test_the_module_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True
    )
    assert penstock.__version__ in done.stdout
