"""The server of the demonstration: a process of its own that can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from penstock.kernel.errors import Unavailable

START_S: Final = 30.0
END_S: Final = 15.0
LOOK_S: Final = 0.02


class DemoServer:
    """One `penstock serve` on a free port, which it keeps when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port_file = directory / "address"
        self._log = directory / "server.log"
        self._port = "0"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        self._port_file.unlink(missing_ok=True)
        own = {
            "PENSTOCK_HOST": "127.0.0.1",
            "PENSTOCK_PORT": self._port,
            "PENSTOCK_PORT_FILE": str(self._port_file),
            "PENSTOCK_DATA_DIR": str(self._directory / "topics-data"),
        }
        others = {key: text for key, text in os.environ.items() if not key.startswith("PENSTOCK_")}
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demonstration, which ends the server itself.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "serve"],
                cwd=self._directory, env=others | own, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        async with asyncio.timeout(START_S):
            while not self._port_file.exists():
                if self._process.poll() is not None:
                    raise Unavailable(
                        f"expected a server, found that it ended: {self._last_line()}"
                    )
                await asyncio.sleep(LOOK_S)
        self._port = self._port_file.read_text().strip().rpartition(":")[2]

    async def kill(self) -> None:
        """End it as a crash would: SIGKILL, nothing is said or saved."""
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def end(self) -> None:
        """End it in good order."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            await self.kill()

    def end_now(self) -> None:
        """See that nothing is left of it, from wherever that is called."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
