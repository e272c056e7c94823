"""Debian's Chromium without a screen, and a page in it that runs what a test tells it to run.

`make test` installs Chromium where it may (root, with apt-get). Names below `.test` lead to this
machine, as names do that an attacker's name server rebinds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

DEADLINE_S = 30.0
CHROMIUM = shutil.which("chromium")
MUST_BE_HERE = os.geteuid() == 0 and shutil.which("apt-get") is not None
"""Where `make test` installs it, a test without it would be a test that cannot fail."""
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
)  # fmt: skip


class Browser:
    """One tab, driven over Chromium's own debugging protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._ask("Page.enable", self._session)

    def visit(self, url: str) -> str:
        """Open a page; what it shows."""
        found = self._ask("Page.navigate", self._session, url=url)
        assert "errorText" not in found, found
        self._until(lambda message: message.get("method") == "Page.loadEventFired")
        return str(self.run("document.body.innerText"))

    def run(self, script: str) -> Any:
        """Run a script in the page, wait for its promise; its value, or `failed: ...`."""
        wrapped = f"(async () => {{ try {{ return await (async () => {script})(); }}"
        wrapped += " catch (error) { return 'failed: ' + error; } })()"
        done = self._ask(
            "Runtime.evaluate",
            self._session,
            expression=wrapped,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def _ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        answer = self._until(lambda found: found.get("id") == number)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, wanted: Any) -> dict[str, Any]:
        end_s = time.monotonic() + DEADLINE_S
        while True:
            message: dict[str, Any] = json.loads(
                self._socket.recv(timeout=max(0.0, end_s - time.monotonic()))
            )
            if wanted(message):
                return message


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with nothing remembered from before."""
    assert CHROMIUM is not None, "expected Chromium: apt-get install chromium"
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait, DEADLINE_S)
        stack.callback(process.kill)
        port, path = _door(home / "DevToolsActivePort", process)
        address = f"ws://127.0.0.1:{port}{path}"
        socket = stack.enter_context(connect(address, max_size=None, proxy=None, close_timeout=1))
        yield Browser(socket)


def _door(told: Path, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Where the browser can be driven, once it has written that."""
    end_s = time.monotonic() + DEADLINE_S
    while True:
        assert process.poll() is None, "the browser ended"
        assert time.monotonic() < end_s, "the browser did not start"
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) == 2:
            return lines[0], lines[1]


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title><body>a page</body>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_site() -> Iterator[int]:
    """The port of a web server with one page, which knows nothing of Penstock."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
