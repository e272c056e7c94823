"""What `penstock inspect` prints: lines of JSON in a pipe, text on a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.log.stores import open_store
from penstock.topics.persist.data_dir import Layout, write_layout


@pytest.fixture
def data(tmp_path: Path) -> Path:
    open_store("segment", tmp_path / "log", segment_bytes=65_536).close()
    write_layout(tmp_path, Layout(1, "segment", 2))
    return tmp_path


def test_a_pipe_gets_lines_of_json(data: Path):
    result = CliRunner().invoke(main, ["inspect", str(data)])
    assert json.loads(result.stdout)["directory"] == str(data)
    result = CliRunner().invoke(main, ["inspect", str(data), "log"])
    assert [json.loads(line)["partition"] for line in result.stdout.splitlines()] == [0, 1]


def test_a_terminal_gets_text(data: Path):
    environ = {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}
    result = CliRunner(env=environ).invoke(main, ["inspect", str(data)])
    assert "store:              segment" in result.stdout
    result = CliRunner(env=environ).invoke(main, ["inspect", str(data), "log"])
    assert "boundary_index" in result.stdout
