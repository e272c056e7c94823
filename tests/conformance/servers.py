"""Servers as real processes: started with settings of their own, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conformance.wire import Address, Api, until

START_S = 30.0


class ServerProcess:
    """One `penstock serve` with a directory of its own, on a port that the system chooses."""

    command: tuple[str, ...] = ("-m", "penstock", "serve")

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self._port_file = directory / "port"
        self._log = directory / "server.log"
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")},
            "PENSTOCK_PORT": "0",
            "PENSTOCK_PORT_FILE": str(self._port_file),
            "PENSTOCK_DATA_DIR": str(directory / "data"),
            "PENSTOCK_TEST_MIN_HEARTBEAT_MS": "20",
            **{f"PENSTOCK_{name}": str(value) for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process and do not wait for anything."""
        self._port_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.command],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def listening(self) -> Address:
        """Wait until the server has written where it listens."""

        def bound() -> str:
            assert self.process.poll() is None, f"the server ended:\n{self.log}"
            return self._port_file.read_text() if self._port_file.exists() else ""

        host, _, port = until(bound, "the port file", START_S).strip().rpartition(":")
        return Address(host.strip("[]"), int(port))

    def start(self) -> ServerProcess:
        """Start the process and wait until it is ready."""
        self.launch()
        address = self.listening()
        until(lambda: self._is_ready(address), f"ready ({self.log})", START_S)
        return self

    def _is_ready(self, address: Address) -> bool:
        assert self.process.poll() is None, f"the server ended:\n{self.log}"
        try:
            return Api(address).get("/readyz").status == 200
        except (ConnectionError, TimeoutError):
            return False

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was never started"
        return self._process

    @property
    def address(self) -> Address:
        return self.listening()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def stay(self) -> None:
        """Keep the port for the next start."""
        self._environment["PENSTOCK_PORT"] = str(self.address.port)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.wait(START_S)

    def terminate(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, deadline_s: float = START_S) -> int:
        """Wait for the end of the process; its exit code."""
        return self.process.wait(deadline_s)

    def discard(self) -> None:
        """End the process at once, if it is still there."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def close(self) -> None:
        """End the process as a person would, or at once if it does not end."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        end = time.monotonic() + 12
        try:
            self._process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
