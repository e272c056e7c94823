"""`penstock demo topics` as a newcomer runs it: a real server, killed once."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from penstock.cli.demo_server import DemoServer

LIMIT_S = 120
COMMAND = [sys.executable, "-m", "penstock", "demo", "topics"]


def processes_in(directory: Path) -> list[str]:
    """Processes that were started there and still run."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            found += [str(link)] if directory in link.resolve().parents else []
        except OSError:
            continue
    return found


def test_nothing_is_lost_or_doubled_and_nothing_is_left(tmp_path):
    done = subprocess.run(
        [*COMMAND, "--seconds", "3"], env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9][\d,]* readings acknowledged: .* 0 missing, 0 twice", done.stdout)
    assert "the server was killed once" in done.stdout
    assert "topic follow meters" in done.stdout
    assert "\x1b" not in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


def test_ctrl_c_ends_it_with_a_summary_and_leaves_nothing(tmp_path):
    with subprocess.Popen(
        [*COMMAND, "--seconds", "60"], env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        said = iter(process.stdout.readline, "")
        assert any("written" in line for line in said), "it wrote for a second"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    assert "ended by Ctrl-C" in rest
    assert "readings acknowledged" in rest
    assert list(tmp_path.iterdir()) == []
    assert processes_in(tmp_path) == []


SLOW_SERVER = """
import os, sys
if "serve" in sys.argv:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from pathlib import Path
    class Answers(BaseHTTPRequestHandler):
        asked = 0
        def do_GET(self):
            Answers.asked += 1
            body = b'{"status":"ready","wal_replay_complete":true,"topics":0}'
            if Answers.asked < 4:
                body = b'{"error":{"code":"not_ready","message":"it reads its log"}}'
            else:
                Path("ready").touch()
            self.send_response(503 if Answers.asked < 4 else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
    server = HTTPServer(("127.0.0.1", 0), Answers)
    Path(os.environ["PENSTOCK_PORT_FILE"]).write_text(f"127.0.0.1:{server.server_port}")
    server.serve_forever()
"""


def test_the_server_counts_as_started_when_readyz_answers(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(SLOW_SERVER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = DemoServer(tmp_path)
    try:
        asyncio.run(server.start())
        assert (tmp_path / "ready").exists(), "it only listened"
    finally:
        server.end_now()


def test_a_server_that_cannot_start_is_told_in_one_line(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv:\n    sys.exit('no server today')\n"
    )
    done = subprocess.run(
        [*COMMAND, "--seconds", "1"], env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "Error: expected server to run, found that it ended"
    )
    assert "Traceback" not in done.stderr
