from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import peers
from bench.peers import MissingError, program, take_turns


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """The only directory in which programs are found; asking to install starts over."""
    monkeypatch.setenv("PATH", str(tmp_path))
    peers._install.cache_clear()
    peers._say.cache_clear()
    yield tmp_path
    peers._install.cache_clear()


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_program_that_is_here_is_taken(path):
    script(path / "peerd", "")
    assert program("peerd", "peer") == str(path / "peerd")


def test_a_missing_program_is_installed_where_root_and_apt_are_there(path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script(path / "apt-get", f'echo "$@" >> {path}/asked; echo > {path}/peerd; '
                             f"/bin/chmod 755 {path}/peerd")  # fmt: skip
    assert program("peerd", "peer") == str(path / "peerd")
    assert (path / "asked").read_text().strip().endswith("install -y --no-install-recommends peer")


def test_the_lists_of_packages_are_brought_up_to_date_if_the_package_is_not_in_them(
    path, monkeypatch
):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script(path / "apt-get", f'case "$*" in *update*) echo > {path}/updated ;; '
                             f"*) test -e {path}/updated && echo > {path}/peerd && "
                             f"/bin/chmod 755 {path}/peerd ;; esac")  # fmt: skip
    assert program("peerd", "peer") == str(path / "peerd")


def test_without_root_nothing_is_installed_and_the_message_says_what_to_install(path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    script(path / "apt-get", f"echo > {path}/asked")
    with pytest.raises(MissingError, match=r"no peerd here \(Debian: apt-get install peer\)"):
        program("peerd", "peer")
    assert not (path / "asked").exists()


def test_an_install_that_fails_is_tried_once(path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    script(path / "apt-get", f"echo x >> {path}/asked; exit 100")
    for _ in range(3):
        with pytest.raises(MissingError, match="no peerd here"):
            program("peerd", "peer")
    assert (path / "asked").read_text().split() == ["x", "x"]  # install, update


def missing() -> int:
    raise MissingError("no peerd here")


def test_measurements_take_turns_and_a_missing_peer_is_left_out_with_one_line(capsys):
    turns: list[str] = []

    def measure(name: str) -> int:
        turns.append(name)
        return len(turns)

    peers._say.cache_clear()
    found = take_turns(2, {"ours": lambda: measure("ours")},
                       {"gone": missing, "theirs": lambda: measure("theirs")})  # fmt: skip
    assert found == {"ours": [1, 3], "theirs": [2, 4]}
    assert turns == ["ours", "theirs"] * 2
    assert capsys.readouterr().out == "left out: gone: no peerd here\n"


def test_our_own_side_is_never_left_out():
    with pytest.raises(MissingError):
        take_turns(1, {"ours": missing}, {})
