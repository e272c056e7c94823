from __future__ import annotations

from pathlib import Path

import pytest

from tools import chromium


def program(directory: Path, name: str) -> str:
    path = directory / name
    path.write_text("")
    path.chmod(0o755)
    return str(path)


def test_a_named_browser_counts_before_all_others(tmp_path):
    program(tmp_path, "chromium")
    environ = {"PATH": str(tmp_path), chromium.NAMED: "/opt/mine"}
    assert chromium.find(environ, tmp_path) == "/opt/mine"


@pytest.mark.parametrize("name", chromium.NAMES)
def test_any_kind_of_chromium_on_the_path_is_found(tmp_path, name):
    path = program(tmp_path, name)
    assert chromium.find({"PATH": str(tmp_path)}, tmp_path) == path


def test_without_any_there_is_none(tmp_path):
    assert chromium.find({"PATH": str(tmp_path)}, tmp_path) is None
    assert "apt-get install chromium" in chromium.WHAT_TO_DO
