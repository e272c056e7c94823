"""What is said when something goes wrong outside of Penstock: one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRON = os.environ | {"PENSTOCK_URL": "http://127.0.0.1:9"}


def run(*words: object, stdin: bytes = b"", out: str | None = None) -> tuple[int, str]:
    """The exit code and what was said; `out` is where standard output goes."""
    with Path(out or os.devnull).open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *map(str, words)],
            env=ENVIRON, input=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    return done.returncode, done.stderr.decode()


def is_one_line(error: str) -> bool:
    return error.startswith("Error: ") and error.count("\n") == 1


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A place where nothing can be made, not even by root: what is above it is a file."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "below"


def test_standard_input_that_is_not_utf_8():
    for words in (("topic", "write", "a"), ("entity", "set", "s", "e")):
        code, error = run(*words, stdin=b'"caf\xe9"\n')
        assert code == 2
        assert "Traceback" not in error
        assert "0xe9" in error


def test_places_where_nothing_can_be_written(tmp_path: Path, closed: Path):
    (tmp_path / "backup").mkdir()
    listed = '{"version":1,"made_ms":0,"store":"segment","partitions":1,"indexes":[0],"files":[]}'
    (tmp_path / "backup" / "backup.json").write_text(listed)
    code, error = run("restore", tmp_path / "backup", "--data-dir", closed)
    assert (code, is_one_line(error)) == (1, True)
    assert "Not a directory" in error
    code, error = run("serve", "--port", "0", "--data-dir", closed)
    assert (code, is_one_line(error.splitlines(keepends=True)[-1])) == (1, True)
    assert "Traceback" not in error


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path: Path):
    (tmp_path / "layout.json").mkdir()
    code, error = run("inspect", tmp_path)
    assert (code, is_one_line(error)) == (1, True)
    assert "Is a directory" in error
    code, error = run("backup", tmp_path / "copy", "--data-dir", tmp_path)
    assert (code, is_one_line(error)) == (1, True)


@pytest.mark.parametrize(
    ("catalog", "said"),
    [("postgres:host=127.0.0.1 port=1", "refused"), ("sqlite:file", "file is not a database")],
)
def test_a_catalog_that_cannot_be_opened(tmp_path: Path, monkeypatch, catalog: str, said: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("this is text and no database of any kind\n" * 9)
    for words in (("table", "--catalog", catalog, "list"), ("query", "t", "--catalog", catalog)):
        code, error = run(*words)
        assert (code, is_one_line(error)) == (1, True), error
        assert said in error


CREATE = ("table", "create", "x", "SELECT 1 AS a")


@pytest.mark.parametrize("words", [CREATE, ("--help",)], ids=" ".join)
def test_standard_output_on_a_full_disk(words: tuple[str, ...], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, error = run(*words, out="/dev/full")
    assert (code, error) == (1, "Error: No space left on device\n")


def test_a_reader_that_had_enough_is_no_error(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *CREATE], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 0


@pytest.mark.parametrize("closing", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_take_and_give_nothing(closing):
    command = f"{sys.executable} -m penstock topic write t {closing}"
    done = subprocess.run(
        ["sh", "-c", command], env=ENVIRON, input=b"", capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), "no line, no record"
