"""The server of the demonstration: a process of its own that can be killed and started again."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.cli.demo_part import Part

START_S: Final = 30.0


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
        """Start it, and wait until it listens."""
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
