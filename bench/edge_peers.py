"""What the edge is measured beside: a bare echo, and an edge with the topic engine inside.

`python -m bench.edge_peers echo PORT` or `python -m bench.edge_peers embedded PORT DIR`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import uvloop

from penstock.ingest.edge import Edge
from penstock.ingest.engine_topic import EngineTopic
from penstock.log.stores import open_store
from penstock.topics.engine.engine import Engine


class Echo(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def echo(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", port)
    await server.serve_forever()


async def embedded(port: int, directory: str) -> None:
    engine = Engine(open_store("segment", Path(directory)))
    await engine.open()
    edge = Edge(EngineTopic(engine))
    await edge.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    sys.setswitchinterval(0.0002)
    work = echo if sys.argv[1] == "echo" else embedded
    uvloop.run(work(int(sys.argv[2]), *sys.argv[3:]))
