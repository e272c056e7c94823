"""Edges with real sockets and a real topic server, and a look at what is in the raw topic."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeVar

import uvloop

from penstock.client import AsyncClient, ClientSettings
from penstock.client.raw_topic import ServerTopic
from penstock.ingest.edge import Edge
from penstock.ingest.raw_topic import Landed, TopicNames, identity_of
from penstock.metering.fleet import Fleet
from tests.waiting import until

LIMIT_S = 240.0
T = TypeVar("T")


def run(work: Awaitable[T]) -> T:
    """Run a test on uvloop, within a limit."""

    async def within() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work

    return uvloop.run(within())


def server_topic(url: str, raw: str) -> ServerTopic:
    """The topics of an edge on a server."""
    return ServerTopic(ClientSettings(url), TopicNames(raw, f"{raw}.rejects"))


@asynccontextmanager
async def edge_at(url: str, raw: str = "ingest.raw", **more: Any) -> AsyncIterator[Edge]:
    """An edge in this process on a free port."""
    topic = more.pop("topic", None) or server_topic(url, raw)
    edge = Edge(topic, **more)
    await edge.start(port=0)
    try:
        yield edge
    finally:
        await edge.stop(drain_s=5.0)


async def raw_messages(url: str, raw: str = "ingest.raw") -> list[tuple[str, int, bytes]]:
    """Every message of the raw topic: device, id, payload."""
    found = []
    async with AsyncClient(url) as client:
        async for page in client.read(raw, include_tags=True):
            for record in page.records:
                identity = identity_of(record.node, record.tag)
                assert identity is not None
                found.append((*identity, b64decode(bytes(record.raw_data)[1:-1])))
    return found


async def check_fleet(url: str, fleet: Fleet, sent: list[int], raw: str = "ingest.raw") -> None:
    """The raw topic holds every message that was sent, once, with its bytes, and no other."""
    found = await raw_messages(url, raw)
    payloads = {(device, message_id): payload for device, message_id, payload in found}
    assert len(payloads) == len(found), "expected every message once"
    expected = {
        (fleet.name(device), number + 1): fleet.payload(device, number)
        for device, count in enumerate(sent)
        for number in range(count)
    }
    assert payloads.keys() == expected.keys()
    assert payloads == expected


def lasting_port() -> int:
    """A free port that the system gives to nobody else while its server is down.

    It is below those of outgoing connections: one of them could take it, or even reach itself.
    """
    random = SystemRandom()
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class SlowTopic:
    """The topic of a server, behind something that lets only so many messages a second through."""

    def __init__(self, topic: ServerTopic, per_s: float) -> None:
        self._topic = topic
        self.per_s = per_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topic, name)

    async def append(self, body: bytes, key: str) -> Landed:
        await asyncio.sleep(body.count(b'"node"') / self.per_s)
        return await self._topic.append(body, key)


class EdgeProcess:
    """One `penstock ingest edge` on a port that it keeps when it is started again."""

    def __init__(self, directory: Path, url: str, **settings: object) -> None:
        self._directory = directory
        self._port_file = directory / "edge-port"
        self._log = directory / "edge.log"
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")},
            "PENSTOCK_INGEST_PORT_FILE": str(self._port_file),
            "PENSTOCK_INGEST_URL": url,
            "PENSTOCK_INGEST_STATUS_PORT": "0",
            **{f"PENSTOCK_INGEST_{name}": str(value) for name, value in settings.items()},
        }
        self.port = lasting_port()
        self.status_url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        self._port_file.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "ingest", "edge"],
                cwd=self._directory,
                env=self._environment | {"PENSTOCK_INGEST_PORT": str(self.port)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        self.launch()
        await until(self._is_there, f"an edge ({self.log})")
        _, status = self._port_file.read_text().split()
        self.status_url = f"http://{status}"

    def _is_there(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the edge ended:\n{self.log}"
        return self._port_file.exists()

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
