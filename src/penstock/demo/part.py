"""The processes of the demonstration: started with a log each, killed, ended, started again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.client import AsyncClient, ClientSettings
from penstock.kernel.errors import Unavailable
from penstock.protocol.errors import CallError

END_S: Final = 20.0
LOOK_S: Final = 0.02
START_S: Final = 30.0
LOOK_TIMEOUT_S: Final = 2.0


class Part:
    """One `penstock` command in a directory. `own` are settings that go over the visitor's."""

    def __init__(self, name: str, directory: Path, arguments: Sequence[str]) -> None:
        self.name = name
        self.arguments = arguments
        self.own: dict[str, str] = {}
        self.log = directory / f"{name}.log"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it."""
        others = {key: text for key, text in os.environ.items() if not key.startswith("PENSTOCK_")}
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demonstration, which ends its parts itself.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *self.arguments],
                cwd=self._directory, env=others | self.own, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    async def started(self, sign: Path, within_s: float) -> str:
        """Wait for the file in which it says where it listens; its text."""
        try:
            async with asyncio.timeout(within_s):
                while not sign.exists():
                    self.check()
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Unavailable(
                f"expected {self.name} to start within {within_s:g} s, found: {self.last_line()}"
            ) from None
        return sign.read_text()

    def check(self) -> None:
        """`Unavailable` if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise Unavailable(
                f"expected {self.name} to run, found that it ended: {self.last_line()}"
            )

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

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

    def last_line(self) -> str:
        """What it said last."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class DemoServer:
    """One `penstock serve` on a free port, which it keeps when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._port_file = directory / "address"
        self._port = "0"
        self._data = directory / "topics-data"
        self._part = Part("server", directory, ["serve"])
        self.kill = self._part.kill
        self.end = self._part.end
        self.end_now = self._part.end_now

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Start it, and wait until it is ready: it listens before it has read its log."""
        self._port_file.unlink(missing_ok=True)
        self._part.own = {
            "PENSTOCK_HOST": "127.0.0.1",
            "PENSTOCK_PORT": self._port,
            "PENSTOCK_PORT_FILE": str(self._port_file),
            "PENSTOCK_DATA_DIR": str(self._data),
        }
        self._part.start()
        said = await self._part.started(self._port_file, START_S)
        self._port = said.strip().rpartition(":")[2]
        await self._ready()

    async def _ready(self) -> None:
        """Wait until `/readyz` says yes."""
        async with AsyncClient(ClientSettings(self.url, timeout_s=LOOK_TIMEOUT_S)) as client:
            until_s = time.monotonic() + START_S
            while True:
                self._part.check()
                try:
                    await client.ready()
                except CallError as error:
                    if time.monotonic() > until_s:
                        raise Unavailable(
                            f"expected the server to be ready within {START_S:g} s, found: "
                            f"{error.message}"
                        ) from error
                    await asyncio.sleep(LOOK_S)
                else:
                    return
