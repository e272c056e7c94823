"""The processes of the demonstration: when they count as started, and what is said if not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from penstock.demo.part import DemoServer

LIMIT_S = 120
COMMAND = [sys.executable, "-m", "penstock", "demo", "--check"]


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
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
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
        COMMAND, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "Error: expected server to run, found that it ended"
    )
    assert "Traceback" not in done.stderr
