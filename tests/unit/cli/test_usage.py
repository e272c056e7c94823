"""Wrong usage is exit code 2 and a failure is 1, whatever the command."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from penstock.cli import main

NOWHERE = "http://127.0.0.1:9"


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of a command and of all below it."""
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            yield from walk(command.get_command(ctx, name), (*path, name))


COMMANDS = list(walk(main))


def run(*words: object, **environ: str):
    return CliRunner().invoke(main, [str(word) for word in words], env=environ)


def found(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path:
        command = command.get_command(click.Context(command), name)
    return command


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_wrong_usage(path):
    result = run(*path, "--no-such-option")
    assert result.exit_code == 2, result.output
    assert "No such option" in result.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_value_of_the_wrong_kind_is_wrong_usage(path):
    for option in found(path).params:
        is_flag = isinstance(option, click.Option) and option.is_flag
        is_checked = not isinstance(option.type, click.types.StringParamType | click.Path)
        if isinstance(option, click.Option) and is_checked and not is_flag:
            result = run(*path, option.opts[0], "\x00no such value")
            assert result.exit_code == 2, (option.opts, result.output)


@pytest.mark.parametrize(
    "path", [path for path in COMMANDS if isinstance(found(path), click.Group)], ids=" ".join
)
def test_an_unknown_command_is_wrong_usage(path):
    assert run(*path, "no-such-command").exit_code == 2


@pytest.mark.parametrize(
    "path", [path for path in COMMANDS if any(
        isinstance(each, click.Argument) and each.required for each in found(path).params
    )], ids=" ".join,
)  # fmt: skip
def test_a_missing_argument_is_wrong_usage(path):
    result = run(*path)
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "no-such-argument"],
        ["serve", "--port", "99999"],
        ["serve", "--host", "0.0.0.0"],
        ["serve", "--catalog", "nonsense"],
        ["topic", "--url", "nonsense", "list"],
        ["topic", "list", "--url", "ftp://a.example"],
        ["entity", "list", "s", "--url", "http://"],
        ["ingest", "run", "--url", "http://a b"],
        ["ingest", "run", "--port", "-1"],
        ["ingest", "run", "--catalog", "mysql://x"],
        ["ingest", "run", "--spark", "nonsense"],
        ["ingest", "edge", "--port", "70000"],
        ["metering", "replay", "--catalog", "mysql://x"],
        ["ingest", "status", "--url", "nonsense"],
        ["metering", "load", "nowhere"],
        ["backup", "x"],
        ["table", "--catalog", "mysql://x", "list"],
        ["table", "--runner-options", "{", "list"],
        ["table", "--spark", "nonsense", "list"],
        ["table", "create", "x", "SELECT 1", "--mode", "often"],
        ["table", "create", "x", "SELECT 1", "--schedule", "sometimes"],
        ["table", "alter", "x"],
        ["table", "alter", "x", "--consistency", "yes"],
        ["table", "run", "--keep-snapshots", "long"],
        ["table", "run", "--pool", "mysql://x"],
        ["query", "--catalog", "mysql://x", "t"],
        ["inspect", ".", "record"],
    ],
    ids=" ".join,
)
def test_what_can_be_seen_to_be_wrong_without_looking_anywhere_is_wrong_usage(
    words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "--url", NOWHERE, "--timeout-s", "0.2", "list"],
        ["entity", "--url", NOWHERE, "--timeout-s", "0.2", "list", "s"],
        ["ingest", "status", "--url", NOWHERE],
        ["metering", "tariffs", "--url", NOWHERE, "--timeout-s", "0.2", "meters"],
        ["backup", "x", "--url", NOWHERE, "--timeout-s", "0.2"],
        ["restore", ".", "--data-dir", "y"],
        ["inspect", "."],
        ["salvage", "."],
        ["table", "list"],
        ["table", "refresh", "x"],
        ["query", "x"],
    ],
    ids=" ".join,
)
def test_what_fails_in_the_world_is_a_failure(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert len([line for line in result.stderr.splitlines() if "Error: " in line]) == 1


@pytest.mark.parametrize("url", ["localhost:9", "127.0.0.1:9", "[::1]:9", "localhost:9/base"])
def test_a_host_and_a_port_are_a_url(url):
    result = run("topic", "--timeout-s", "0.2", "--url", url, "list")
    assert result.exit_code == 1
    assert f"cannot connect to http://{url}" in result.stderr


@pytest.mark.parametrize("words", [["topic", "list"], ["entity", "list", "s"], ["table", "list"],
                                   ["query", "t"], ["backup", "x", "--url", NOWHERE],
                                   ["ingest", "run"], ["metering", "tariffs", "meters"]],
                         ids=" ".join)  # fmt: skip
def test_the_name_that_api_keys_had_before_is_refused_with_the_one_they_have(words):
    for result in (run(*words, "--token", "secret"), run(*words, PENSTOCK_TOKEN="secret")):
        assert result.exit_code == 2
        assert "--token and PENSTOCK_TOKEN are now --api-key and PENSTOCK_API_KEY" in result.stderr


@pytest.mark.parametrize("word", ["load", "replay", "tariffs"])
def test_words_that_moved_to_metering_still_work_with_a_note(word):
    old, new = run("ingest", word, "--help"), run("metering", word, "--help")
    assert (old.exit_code, new.exit_code) == (0, 0)
    assert old.stderr == f"note: `penstock ingest {word}` is now `penstock metering {word}`\n"
    assert old.stdout == new.stdout.replace(f"metering {word}", f"ingest {word}")
    assert word not in run("ingest", "--help").stdout.split("Commands:")[1]
