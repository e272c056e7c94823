"""A process of the demonstration: started with its own log, killed, ended, started again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.kernel.errors import Unavailable

END_S: Final = 20.0
LOOK_S: Final = 0.02


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
