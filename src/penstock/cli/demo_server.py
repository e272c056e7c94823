"""The server of the demonstration: a process of its own that can be killed and started again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from penstock.cli.demo_part import Part
from penstock.client import AsyncClient, ClientError, ClientSettings
from penstock.kernel.errors import Unavailable

START_S: Final = 30.0
LOOK_S: Final = 0.02
LOOK_TIMEOUT_S: Final = 2.0


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
                except ClientError as error:
                    if time.monotonic() > until_s:
                        raise Unavailable(
                            f"expected the server to be ready within {START_S:g} s, found: "
                            f"{error.message}"
                        ) from error
                    await asyncio.sleep(LOOK_S)
                else:
                    return
