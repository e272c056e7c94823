"""What `penstock backup` says when it is used wrongly, or asks a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from tests.unit.client.scripted import HANG, in_turn, scripted


class Answering(BaseHTTPRequestHandler):
    """Answers a backup as its server says; keeps what was asked."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], asked))  # type: ignore[attr-defined]
        for _ in range(2 if self.server.looks else 0):  # type: ignore[attr-defined]
            self.server.looks.acquire(timeout=10)  # type: ignore[attr-defined]
        status, answer = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_GET(self) -> None:
        """Tell how far it is; the second look comes when what the first saw was shown."""
        assert self.path == "/v0/scheduler"
        self.send_response(200)
        self.end_headers()
        told = {"compaction": {"backup": {"what": "files", "done": 1, "total": 4}}}
        self.wfile.write(json.dumps(told).encode())
        self.server.looks.release()  # type: ignore[attr-defined]

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    made: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    made.asked = []
    made.looks = None
    made.answer = (200, {})
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_it_takes_a_directory_or_a_server_and_not_both(tmp_path: Path) -> None:
    for more in ((), ("--data-dir", tmp_path, "--url", "http://localhost")):
        result = run("backup", tmp_path / "to", *more)
        assert result.exit_code == 2
        assert "say what to copy: --data-dir or --url" in result.output


def test_a_directory_without_a_layout_is_not_one_of_data(tmp_path: Path) -> None:
    result = run("backup", tmp_path / "to", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert "is not a data directory" in result.output
    assert not (tmp_path / "to").exists()


def test_a_running_server_is_asked_with_the_key(server: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    server.answer = (200, {"directory": "/there", "files": 3, "bytes": 2048})
    result = run("backup", tmp_path / "to", "--url", url, "--api-key", "secret")
    assert result.exit_code == 0
    assert result.output == "backup of 3 files, 2 KiB, in /there\n"
    asked = ("/v0/backup", "Bearer secret", {"directory": str(tmp_path / "to")})
    assert server.asked == [asked]


def test_a_server_that_refuses_or_is_not_there_is_told(server: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    server.answer = (409, {"error": {"code": "x", "message": "the directory is in use"}})
    result = run("backup", tmp_path / "to", "--url", url)
    assert result.exit_code == 1
    assert "the directory is in use" in result.output
    for url, code, said in (
        ("http://127.0.0.1:1", 1, "cannot connect to http://127.0.0.1:1:"),
        ("http://127.0.0.1:abc", 2, "must be between 0 and 65535"),
    ):
        result = run("backup", tmp_path / "to", "--url", url)
        assert result.exit_code == code
        assert said in result.output


def test_the_environment_names_the_server_unless_a_directory_is_named(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", f"http://127.0.0.1:{server.server_port}")
    server.answer = (200, {"directory": "/there", "files": 3, "bytes": 2048})
    result = run("backup", tmp_path / "to", "--json")
    assert json.loads(result.output)["files"] == 3
    result = run("backup", tmp_path / "to", "--data-dir", tmp_path)
    assert "is not a data directory" in result.output
    assert len(server.asked) == 1


def test_who_looks_on_sees_how_far_the_server_is(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    server.looks = threading.Semaphore(0)
    server.answer = (200, {"directory": "/there", "files": 3, "bytes": 2048})
    result = run("backup", tmp_path / "to", "--url", f"http://127.0.0.1:{server.server_port}")
    assert result.exit_code == 0, result.output
    assert "the server makes the copy: files" in result.output
    assert "25%" in result.output
    assert result.output.endswith("backup of 3 files, 2 KiB, in /there\n")


def test_a_server_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    with scripted(in_turn([HANG])) as silent:
        result = run("backup", tmp_path / "to", "--url", silent.url, "--timeout-s", "0.05")
    assert result.exit_code == 3, "the backup may be made nevertheless"
    assert "did not answer" in result.output
